"""What must be asked elsewhere about an instance before it is decided: the questions, and what their answers mean."""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

from mandor.placement.cycle import widest
from mandor.placement.framework.cycle_state import CycleState, key_of_form
from mandor.placement.framework.dry_run import DryRun
from mandor.placement.framework.incremental import SteppedPostFilter
from mandor.placement.framework.points import Agreed, ConsultPlugin, HttpCall, HttpReply, Offer, PostFilterPlugin
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault, blamed, run_filters
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Guard

QUESTIONS_MOST = 16
"""Of one plugin about one instance."""

Consult = Callable[[Profile, PlacementRequest, Snapshot], Mapping[str, object]]
"""Asks elsewhere, and waits for the answers; raises `PluginFault`."""
Talk = Generator[HttpCall, HttpReply, object]


def consult(
    profile: Profile, request: PlacementRequest, nodes: Snapshot, guard: Guard, *, now: float = 0.0
) -> Generator[HttpCall, HttpReply, Mapping[str, object]]:
    """Yields questions, one after another, and returns the answers by plugin; whoever is asked is asked about the
    nodes that all others let pass, for each form of the instance, and if there is none, about those who would have to
    go. A `PluginFault` when an answer cannot be had and is needed."""
    # All look at the nodes now, before anybody is waited for: the snapshot is a window on what changes.
    forms = [_Form(form, *_begin(profile, form, nodes, guard, now)) for form in request.forms]
    answers: dict[str, object] = {}
    for each in forms:
        said = {}
        for plugin, talk, first in each.begun:
            said[plugin] = yield from _answer(plugin, talk, first, guard)
        left = bool(said) and not any(plugin.leaves_none(value) for plugin, value in said.items())
        for maker, offers in each.offers:
            agreed = () if left else (yield from _agree(profile, each.request, offers, guard))
            answers[key_of_form(maker, each.request.shape.variant)] = Agreed(agreed)
            said = {plugin: plugin.agreeing(value, agreed) for plugin, value in said.items()}
        answers |= {key_of_form(plugin.name, each.request.shape.variant): value for plugin, value in said.items()}
    return answers


def unasked(profile: Profile, state: CycleState) -> bool:
    """A place was found without those who are asked elsewhere: nothing fitted when there was time to ask them."""
    return any(each.name not in state for each in profile.consults)


Begun = tuple[ConsultPlugin, Talk, tuple[bool, object]]
Offers = tuple[str, tuple[Offer, ...]]
"""What a PostFilter plugin of this name could nominate."""


class _Form(NamedTuple):
    request: PlacementRequest
    begun: Sequence[Begun]
    offers: Sequence[Offers]


def _begin(
    profile: Profile, request: PlacementRequest, nodes: Snapshot, guard: Guard, now: float
) -> tuple[list[Begun], list[Offers]]:
    eased, held = widest(request), _held(request, nodes)
    trials = nodes._trials
    with trials.trial():
        trials.drop_allocation(request.key)  # Room that is held for it is not in its own way.
        verdict = guard.run(lambda: run_filters(profile, CycleState(), eased, nodes, guard))
        begun: list[Begun] = []
        if verdict.feasible.any():
            talks = [(plugin, plugin.consult(eased, nodes, verdict.feasible)) for plugin in profile.consults]
            begun = [(plugin, talk, _step(plugin, talk, None, guard)) for plugin, talk in talks]
        if not any(each.agrees_to_victims for each in profile.consults):
            return begun, []
        dry_run = DryRun(profile, eased, nodes, guard, nominated=held, now=now)
        if held and dry_run.still_waits():
            return begun, [(each.name, ()) for each in profile.post_filters]
        return begun, [(each.name, _offers(each, dry_run, guard)) for each in profile.post_filters]


def _held(request: PlacementRequest, nodes: Snapshot) -> str:
    return next((node for node, each in nodes.occupancy.held() if each.key == request.key), "")


def _offers(plugin: PostFilterPlugin, dry_run: DryRun, guard: Guard) -> tuple[Offer, ...]:
    with blamed(plugin), dry_run.trial():
        return guard.run(lambda: tuple(plugin.offers(dry_run) if isinstance(plugin, SteppedPostFilter) else ()))


def _agree(
    profile: Profile, request: PlacementRequest, offers: tuple[Offer, ...], guard: Guard
) -> Generator[HttpCall, HttpReply, tuple[Offer, ...]]:
    """Each who has a say is asked about what those before him agreed to."""
    for plugin in profile.consults:
        if plugin.agrees_to_victims and offers:
            talk = plugin.consult_victims(request, offers)
            value = yield from _answer(plugin, talk, _step(plugin, talk, None, guard), guard)
            if not isinstance(value, tuple):
                raise PluginFault(plugin.name, f"consult_victims answered {value!r}, not a tuple of Offers")
            offers = value
    return offers


def _answer(
    plugin: ConsultPlugin, talk: Talk, first: tuple[bool, object], guard: Guard
) -> Generator[HttpCall, HttpReply, object]:
    over, value = first
    for _ in range(QUESTIONS_MOST):
        if over:
            return value
        assert isinstance(value, HttpCall)
        reply = yield value
        over, value = _step(plugin, talk, reply, guard)
    if over:
        return value
    raise PluginFault(plugin.name, f"asks more than {QUESTIONS_MOST} questions")


def _step(plugin: ConsultPlugin, talk: Talk, reply: HttpReply | None, guard: Guard) -> tuple[bool, object]:
    """(True, what it returns) or (False, its next question)."""

    def taken() -> tuple[bool, object]:
        guard.begin(plugin.name, "Consult")
        try:
            question = next(talk) if reply is None else talk.send(reply)
        except StopIteration as end:
            return True, end.value
        finally:
            guard.end()
        if not isinstance(question, HttpCall):
            raise TypeError(f"consult asked {question!r}, not a Question")
        return False, question

    with blamed(plugin):
        return guard.run(taken)
