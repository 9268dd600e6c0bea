"""Consultations before a decision: the questions that plugins send to services outside, and their answers."""

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple

from mandor.placement.cycle import widest
from mandor.placement.framework.cycle_state import CycleState, key_of_form
from mandor.placement.framework.dry_run import DryRun
from mandor.placement.framework.incremental import SteppedPostFilter
from mandor.placement.framework.points import Agreed, ConsultPlugin, HttpCall, HttpReply, Offer, PostFilterPlugin
from mandor.placement.framework.post_filters import ProfileFilters
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault, blamed, run_filters
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Guard

QUESTIONS_MOST = 16
"""Questions of one plugin about one instance."""

Consult = Callable[[Profile, PlacementRequest, Snapshot], Mapping[str, object]]
"""Runs a consultation and returns the answers by plugin; raises `PluginFault`."""
Dialogue = Generator[HttpCall, HttpReply, object]


def consult(
    profile: Profile, request: PlacementRequest, nodes: Snapshot, guard: Guard, *, now: float = 0.0
) -> Generator[HttpCall, HttpReply, Mapping[str, object]]:
    """Yield questions and return the answers by plugin; raise `PluginFault` if a required answer cannot be had.

    For each form of the instance, the questions are about the nodes that pass all filters, and if there is none, about
    the instances that would be preempted.
    """
    # All plugins read the nodes now: the snapshot changes while answers are awaited.
    forms = [_Form(form, *_begin(profile, form, nodes, guard, now)) for form in request.forms]
    answers: dict[str, object] = {}
    for each in forms:
        answered = {}
        for plugin, dialogue, first in each.begun:
            answered[plugin] = yield from _answer(plugin, dialogue, first, guard)
        left = bool(answered) and not any(plugin.leaves_none(value) for plugin, value in answered.items())
        for maker, offers in each.offers:
            agreed = () if left else (yield from _agree(profile, each.request, offers, guard))
            answers[key_of_form(maker, each.request.shape.variant)] = Agreed(agreed)
            answered = {plugin: plugin.agreeing(value, agreed) for plugin, value in answered.items()}
        answers |= {key_of_form(plugin.name, each.request.shape.variant): value for plugin, value in answered.items()}
    return answers


def unasked(profile: Profile, state: CycleState) -> bool:
    """Return whether a node was found without a consultation, because no node fitted when it took place."""
    return any(each.name not in state for each in profile.consults)


Begun = tuple[ConsultPlugin, Dialogue, tuple[bool, object]]
Offers = tuple[str, tuple[Offer, ...]]
"""A PostFilter plugin, and the nominations that it offers."""


class _Form(NamedTuple):
    request: PlacementRequest
    begun: Sequence[Begun]
    offers: Sequence[Offers]


def _begin(
    profile: Profile, request: PlacementRequest, nodes: Snapshot, guard: Guard, now: float
) -> tuple[list[Begun], list[Offers]]:
    relaxed_request, held = widest(request), _held(request, nodes)
    trials = nodes._trials
    with trials.trial():
        trials.drop_allocation(request.key)  # Its own nomination does not count against it.
        verdict = guard.run(lambda: run_filters(profile, CycleState(), relaxed_request, nodes, guard))
        begun: list[Begun] = []
        if verdict.feasible.any():
            dialogues = [
                (plugin, plugin.consult(relaxed_request, nodes, verdict.feasible)) for plugin in profile.consults
            ]
            begun = [(plugin, dialogue, _step(plugin, dialogue, None, guard)) for plugin, dialogue in dialogues]
        if not any(each.agrees_to_victims for each in profile.consults):
            return begun, []
        filters = ProfileFilters(profile, relaxed_request, nodes, guard)
        dry_run = DryRun(relaxed_request, nodes, filters, nominated=held, now=now)
        if held and dry_run.victims_remain():
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
    """Let each plugin in turn choose among the offers that the plugins before it agreed to."""
    for plugin in profile.consults:
        if plugin.agrees_to_victims and offers:
            dialogue = plugin.consult_victims(request, offers)
            value = yield from _answer(plugin, dialogue, _step(plugin, dialogue, None, guard), guard)
            if not isinstance(value, tuple):
                raise PluginFault(plugin.name, f"consult_victims answered {value!r}, not a tuple of Offers")
            offers = value
    return offers


def _answer(
    plugin: ConsultPlugin, dialogue: Dialogue, first: tuple[bool, object], guard: Guard
) -> Generator[HttpCall, HttpReply, object]:
    over, value = first
    for _ in range(QUESTIONS_MOST):
        if over:
            return value
        assert isinstance(value, HttpCall)
        reply = yield value
        over, value = _step(plugin, dialogue, reply, guard)
    if over:
        return value
    raise PluginFault(plugin.name, f"asks more than {QUESTIONS_MOST} questions")


def _step(plugin: ConsultPlugin, dialogue: Dialogue, reply: HttpReply | None, guard: Guard) -> tuple[bool, object]:
    """Return (True, the result) or (False, the next question)."""

    def taken() -> tuple[bool, object]:
        guard.begin(plugin.name, "Consult")
        try:
            question = next(dialogue) if reply is None else dialogue.send(reply)
        except StopIteration as end:
            return True, end.value
        finally:
            guard.end()
        if not isinstance(question, HttpCall):
            raise TypeError(f"consult asked {question!r}, not a Question")
        return False, question

    with blamed(plugin):
        return guard.run(taken)
