"""Consultations: plugins get answers from outside about an instance before it is decided."""

from collections.abc import Awaitable, Callable, Mapping

from mandor.lib.clock import Clock
from mandor.placement.consult import consult
from mandor.placement.framework.points import HttpCall, HttpReply
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Overrun
from mandor.placement.table import Table
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.pending_work import PendingWork
from mandor.scheduler.queue import SchedulingQueue
from mandor.scheduler.requeue import Requeue
from mandor.scheduler.tracing import Tracing, step_of
from mandor.scheduler.watchdog import Watchdog

Inquire = Callable[[HttpCall], Awaitable[HttpReply]]
"""Sends a question to its URL and returns the reply; the deciding code itself opens no connections."""


async def refuse_questions(question: HttpCall) -> HttpReply:
    """Answer every question with a problem: this process has no access to the network."""
    return HttpReply(problem=f"{question.url} cannot be reached from here")


class Consultations:
    """Each consultation is a task; its attempt stays in the queue meanwhile, in state CONSULTING."""

    def __init__(
        self,
        inquire: Inquire,
        table: Table,
        queue: SchedulingQueue,
        requeue: Requeue,
        work: PendingWork,
        watchdog: Watchdog,
        clock: Clock,
        tracing: Tracing | None,
    ) -> None:
        self._inquire = inquire
        self._table = table
        self._queue = queue
        self._requeue = requeue
        self._work = work
        self._watchdog = watchdog
        self._clock = clock
        self._tracing = tracing

    def start(self, attempt: Attempt, profile: Profile) -> None:
        self._work.running += 1
        self._queue.hold(attempt)
        self._work.consultations.append((attempt, profile))

    async def run(self, attempt: Attempt, profile: Profile) -> None:
        """Get the answers and return the attempt to the active queue."""
        names = ", ".join(each.name for each in profile.consults)
        try:
            with step_of(self._tracing, attempt)("Consult", names):
                answers = await self._answers(profile, attempt.request, self._table.snapshot())
        except (PluginFault, Overrun) as fault:
            if self._queue.drop_held(attempt):
                self._requeue.after_fault(attempt, self._watchdog.describe(fault))
        else:
            self._queue.release(attempt, answers)
        finally:
            self._work.running -= 1
            self._work.wake.set()

    async def _answers(self, profile: Profile, request: PlacementRequest, nodes: Snapshot) -> Mapping[str, object]:
        """Return the answers by plugin; raise `PluginFault` when a required answer cannot be had."""
        dialogue = consult(profile, request, nodes, self._watchdog, now=self._clock.now())
        try:
            question = next(dialogue)
            while True:
                question = dialogue.send(await self._inquire(question))
        except StopIteration as end:
            answers: Mapping[str, object] = end.value
            return answers
