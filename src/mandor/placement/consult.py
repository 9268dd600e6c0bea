"""What must be asked elsewhere about an instance before it is decided: the questions, and what their answers mean."""

from collections.abc import Callable, Generator, Mapping

from mandor.placement.cycle import widest
from mandor.placement.framework.ask import Ask
from mandor.placement.framework.cycle_state import CycleState, key_of_form
from mandor.placement.framework.points import ConsultPlugin, Question, Reply
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.runtime import PluginFault, blamed, run_filters
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Guard

QUESTIONS_MOST = 16
"""Of one plugin about one instance."""

Consult = Callable[[Profile, Ask, Snapshot], Mapping[str, object]]
"""Asks elsewhere, and waits for the answers; raises `PluginFault`."""
Talk = Generator[Question, Reply, object]


def consult(
    profile: Profile, ask: Ask, nodes: Snapshot, guard: Guard
) -> Generator[Question, Reply, Mapping[str, object]]:
    """Yields questions, one after another, and returns the answers by plugin; whoever is asked is asked about the
    nodes that all others let pass, for each form of the instance. A `PluginFault` when an answer cannot be had and is
    needed."""
    # All look at the nodes now, before anybody is waited for: the snapshot is a window on what changes.
    begun = [(form, each) for form in ask.forms for each in _begin(profile, form, nodes, guard)]
    answers: dict[str, object] = {}
    for form, (plugin, talk, (over, value)) in begun:
        for _ in range(QUESTIONS_MOST):
            if over:
                break
            assert isinstance(value, Question)
            reply = yield value
            over, value = _step(plugin, talk, reply, guard)
        else:
            raise PluginFault(plugin.name, f"asks more than {QUESTIONS_MOST} questions")
        answers[key_of_form(plugin.name, form.shape.variant)] = value
    return answers


def _begin(
    profile: Profile, ask: Ask, nodes: Snapshot, guard: Guard
) -> list[tuple[ConsultPlugin, Talk, tuple[bool, object]]]:
    eased = widest(ask)
    verdict = guard.run(lambda: run_filters(profile, CycleState(), eased, nodes, guard))
    if not verdict.feasible.any():
        return []
    talks = [(plugin, plugin.consult(eased, nodes, verdict.feasible)) for plugin in profile.consults]
    return [(plugin, talk, _step(plugin, talk, None, guard)) for plugin, talk in talks]


def _step(plugin: ConsultPlugin, talk: Talk, reply: Reply | None, guard: Guard) -> tuple[bool, object]:
    """(True, what it returns) or (False, its next question)."""

    def taken() -> tuple[bool, object]:
        guard.begin(plugin.name)
        try:
            question = next(talk) if reply is None else talk.send(reply)
        except StopIteration as end:
            return True, end.value
        finally:
            guard.end()
        if not isinstance(question, Question):
            raise TypeError(f"consult asked {question!r}, not a Question")
        return False, question

    with blamed(plugin):
        return guard.run(taken)
