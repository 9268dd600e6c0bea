"""The stages of a gang's decision: the rules, and the other instances that are assumed to be gone."""

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
    """The assumption of a stage about other instances."""

    FIND = auto()
    """The cluster is as it is."""
    WAIT = auto()
    """Stopping instances are gone; waiting for them avoids giving up a rule."""
    HELD = auto()
    """Instances that were preempted for the gang are gone, where room is held for it."""
    PREEMPT = auto()
    """Instances of lower priority can be preempted."""


@dataclass(frozen=True, slots=True)
class RelaxationStep:
    """The requests of all members with some soft rules given up."""

    requests: tuple[PlacementRequest, ...]
    relaxed: tuple[str, ...] = ()
    """The rules given up."""
    next_up: str = ""
    """The rules that the next step gives up; empty: this is the last step, or the rule is not worth waiting for."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A relaxation step under one assumption about other instances."""

    kind: StageKind
    relaxation: RelaxationStep
    spared: frozenset[Key] = frozenset()
    """Instances that may not be preempted: one of several ways to keep all disruption budgets."""


def stages(
    profile: Profile, requests: tuple[PlacementRequest, ...], nodes: Snapshot, moment: Moment, held: Mapping[Key, str]
) -> Iterator[Stage]:
    """Yield the stages in the order in which they are tried, as for one instance."""
    steps = list(_relaxation_steps(requests, nodes))
    waits = moment.patience > 0 and bool(going_soon(nodes.occupancy, moment))
    kinds = ([StageKind.HELD] if held else []) + [StageKind.PREEMPT] if profile.post_filters else []
    first = any(request.shape.preempt_first for request in requests)
    for relaxation in steps:
        yield Stage(StageKind.FIND, relaxation)
        if waits and relaxation.next_up:
            yield Stage(StageKind.WAIT, relaxation)
        if first:
            yield from (Stage(kind, relaxation) for kind in kinds)
    if not first:
        yield from (Stage(kind, relaxation) for kind in kinds for relaxation in steps)


def _relaxation_steps(requests: tuple[PlacementRequest, ...], nodes: Snapshot) -> Iterator[RelaxationStep]:
    found = list(_relaxations(requests, nodes))
    for (relaxed_requests, relaxed), (_, then) in zip(found, [*found[1:], found[-1]], strict=True):
        given_up = ", ".join(then[len(relaxed) :])
        yield RelaxationStep(relaxed_requests, relaxed, "" if given_up == AVOIDED else given_up)


def _relaxations(
    requests: tuple[PlacementRequest, ...], nodes: Snapshot
) -> Iterator[tuple[tuple[PlacementRequest, ...], tuple[str, ...]]]:
    relaxed: tuple[str, ...] = ()
    yield requests, relaxed
    if any(request.avoid - nodes.under_pressure(request.avoid) for request in requests):
        requests = tuple(request.without_avoid(nodes.under_pressure(request.avoid)) for request in requests)
        relaxed += (AVOIDED,)
        yield requests, relaxed
    if any(
        _under_apart_rule(request, nodes)
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


def _under_apart_rule(request: PlacementRequest, nodes: Snapshot) -> bool:
    """Return whether an `apart` rule of a placed instance or of another member concerns this one."""
    fellows = (tie for tie in request.shape.affinity_terms(request.identity) if tie.selector.matches(request.identity))
    return nodes.topology.avoided(request.identity) or any(
        tie.kind == "apart" and tie.strength == "should" for tie in fellows
    )
