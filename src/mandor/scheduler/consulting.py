"""Asks elsewhere what the plugins of a profile want to know about an instance, before its cycle."""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from mandor.placement.cycle import widest
from mandor.placement.framework.ask import Ask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import ConsultPlugin, Question, Reply
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.runtime import PluginFault, run_filters
from mandor.placement.framework.snapshot import Snapshot
from mandor.scheduler.watchdog import Watchdog

QUESTIONS_MOST = 16
"""Of one plugin about one instance."""

Inquire = Callable[[Question], Awaitable[Reply]]
"""Brings a question to whom it is for; the deciding process itself talks to nobody."""


async def ask_nobody(question: Question) -> Reply:
    return Reply(problem=f"there is no way to {question.url} from here")


class Consulting:
    """Whoever is asked is asked about the nodes that all others let pass."""

    def __init__(self, inquire: Inquire, watchdog: Watchdog) -> None:
        self._inquire = inquire
        self._watchdog = watchdog

    async def ask(self, profile: Profile, ask: Ask, nodes: Snapshot) -> Mapping[str, object]:
        """The answers by plugin; a `PluginFault` when one cannot be had and is needed."""
        eased = widest(ask)
        verdict = self._watchdog.run(lambda: run_filters(profile, CycleState(), eased, nodes, self._watchdog))
        if not verdict.feasible.any():
            return {}
        # All look at the nodes now, before anybody is waited for: the snapshot is a window on what changes.
        talks = [(plugin, plugin.consult(eased, nodes, verdict.feasible)) for plugin in profile.consults]
        first = [(plugin, talk, self._step(plugin, partial(next, talk))) for plugin, talk in talks]
        answers: dict[str, object] = {}
        for plugin, talk, (over, value) in first:
            for _ in range(QUESTIONS_MOST):
                if over:
                    break
                assert isinstance(value, Question)
                reply: Reply = await self._inquire(value)
                over, value = self._step(plugin, partial(talk.send, reply))
            else:
                raise PluginFault(plugin.name, f"asks more than {QUESTIONS_MOST} questions")
            answers[plugin.name] = value
        return answers

    def _step(self, plugin: ConsultPlugin, step: "partial[Question]") -> tuple[bool, object]:
        def taken() -> tuple[bool, object]:
            try:
                question = step()
            except StopIteration as end:
                return True, end.value
            if not isinstance(question, Question):
                raise TypeError(f"consult asked {question!r}, not a Question")
            return False, question

        return self._watchdog.call(plugin, taken)
