"""Asks elsewhere what the plugins of a profile want to know about an instance, before its cycle."""

from collections.abc import Awaitable, Callable, Mapping

from mandor.placement.consult import consult
from mandor.placement.framework.points import Question, Reply
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot
from mandor.scheduler.watchdog import Watchdog

Inquire = Callable[[Question], Awaitable[Reply]]
"""Brings a question to whom it is for; the deciding process itself talks to nobody."""


async def ask_nobody(question: Question) -> Reply:
    return Reply(problem=f"there is no way to {question.url} from here")


class Consulting:
    def __init__(self, inquire: Inquire, watchdog: Watchdog) -> None:
        self._inquire = inquire
        self._watchdog = watchdog

    async def consult(
        self, profile: Profile, request: PlacementRequest, nodes: Snapshot, now: float
    ) -> Mapping[str, object]:
        """The answers by plugin; a `PluginFault` when one cannot be had and is needed."""
        talk = consult(profile, request, nodes, self._watchdog, now=now)
        try:
            question = next(talk)
            while True:
                question = talk.send(await self._inquire(question))
        except StopIteration as end:
            answers: Mapping[str, object] = end.value
            return answers
