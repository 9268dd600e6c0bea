"""The stages of a gang's decision: with which rules, and when who else is gone, its members are tried out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from mandor.model.meta import Key
from mandor.placement.cycle import AVOIDED, DISLIKED, going_soon, shown
from mandor.placement.decision import Moment
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot


class StageKind(Enum):
    FIND = auto()
    """As things stand."""
    WAIT = auto()
    """When those who are about to go are gone, so that no rule need be given up."""
    STILL = auto()
    """When those are gone who had to go for it, where room is held for it."""
    ROOM = auto()
    """When others make room."""


@dataclass(frozen=True, slots=True)
class RelaxationStep:
    requests: tuple[PlacementRequest, ...]
    """Of all members, with what is left of their rules."""
    relaxed: tuple[str, ...] = ()
    """What was given up."""
    next_up: str = ""
    """What the next relaxation gives up; empty: this is the last, or that is nothing to wait for."""


@dataclass(frozen=True, slots=True)
class Stage:
    kind: StageKind
    relaxation: RelaxationStep
    spared: frozenset[Key] = frozenset()
    """They stay, whatever comes: one of several ways to keep all budgets."""


def stages(
    profile: Profile, requests: tuple[PlacementRequest, ...], nodes: Snapshot, moment: Moment, held: Mapping[Key, str]
) -> Iterator[Stage]:
    """As for one instance, but each is for all members at once."""
    rungs = list(_rungs(requests, nodes))
    waits = moment.patience > 0 and bool(going_soon(nodes.occupancy, moment))
    kinds = ([StageKind.STILL] if held else []) + [StageKind.ROOM] if profile.post_filters else []
    first = any(request.shape.preempt_first for request in requests)
    for relaxation in rungs:
        yield Stage(StageKind.FIND, relaxation)
        if waits and relaxation.next_up:
            yield Stage(StageKind.WAIT, relaxation)
        if first:
            yield from (Stage(kind, relaxation) for kind in kinds)
    if not first:
        yield from (Stage(kind, relaxation) for kind in kinds for relaxation in rungs)


def _rungs(requests: tuple[PlacementRequest, ...], nodes: Snapshot) -> Iterator[RelaxationStep]:
    ladder = list(_ladder(requests, nodes))
    for (eased, relaxed), (_, then) in zip(ladder, [*ladder[1:], ladder[-1]], strict=True):
        given_up = ", ".join(then[len(relaxed) :])
        yield RelaxationStep(eased, relaxed, "" if given_up == AVOIDED else given_up)


def _ladder(
    requests: tuple[PlacementRequest, ...], nodes: Snapshot
) -> Iterator[tuple[tuple[PlacementRequest, ...], tuple[str, ...]]]:
    relaxed: tuple[str, ...] = ()
    yield requests, relaxed
    if any(request.avoid - nodes.pressed(request.avoid) for request in requests):
        requests = tuple(request.without_avoid(nodes.pressed(request.avoid)) for request in requests)
        relaxed += (AVOIDED,)
        yield requests, relaxed
    if any(
        _disliked(request, nodes)
        for request in {(request.shape, request.identity): request for request in requests}.values()
    ):
        requests = tuple(request.without_others_should() for request in requests)
        relaxed += (DISLIKED,)
        yield requests, relaxed
    while any(_soft(request) for request in requests):
        given_up = {shown(request.hard[-1]): None for request in requests if _soft(request)}
        requests = tuple(request.without_last_should() if _soft(request) else request for request in requests)
        relaxed += tuple(given_up)
        yield requests, relaxed


def _soft(request: PlacementRequest) -> bool:
    return request.dropped < len(request.shape.should)


def _disliked(request: PlacementRequest, nodes: Snapshot) -> bool:
    """By somebody who is placed, or by its fellows once they are."""
    fellows = (tie for tie in request.shape.affinity_terms(request.identity) if tie.selector.matches(request.identity))
    return nodes.topology.avoided(request.identity) or any(
        tie.kind == "apart" and tie.strength == "should" for tie in fellows
    )
