"""The stages of a gang's decision: with which rules, and when who else is gone, its members are tried out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from mandor.model.meta import Key
from mandor.placement.cycle import AVOIDED, DISLIKED, Moment, going_soon, shown
from mandor.placement.framework.ask import Ask
from mandor.placement.framework.profile import Profile
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
    asks: tuple[Ask, ...]
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
    profile: Profile, asks: tuple[Ask, ...], nodes: Snapshot, moment: Moment, held: Mapping[Key, str]
) -> Iterator[Stage]:
    """As for one instance, but each is for all members at once."""
    rungs = list(_rungs(asks, nodes))
    waits = moment.patience > 0 and bool(going_soon(nodes.lodging, moment))
    kinds = ([StageKind.STILL] if held else []) + [StageKind.ROOM] if profile.post_filters else []
    first = any(ask.shape.preempt_first for ask in asks)
    for relaxation in rungs:
        yield Stage(StageKind.FIND, relaxation)
        if waits and relaxation.next_up:
            yield Stage(StageKind.WAIT, relaxation)
        if first:
            yield from (Stage(kind, relaxation) for kind in kinds)
    if not first:
        yield from (Stage(kind, relaxation) for kind in kinds for relaxation in rungs)


def _rungs(asks: tuple[Ask, ...], nodes: Snapshot) -> Iterator[RelaxationStep]:
    ladder = list(_ladder(asks, nodes))
    for (eased, relaxed), (_, then) in zip(ladder, [*ladder[1:], ladder[-1]], strict=True):
        given_up = ", ".join(then[len(relaxed) :])
        yield RelaxationStep(eased, relaxed, "" if given_up == AVOIDED else given_up)


def _ladder(asks: tuple[Ask, ...], nodes: Snapshot) -> Iterator[tuple[tuple[Ask, ...], tuple[str, ...]]]:
    relaxed: tuple[str, ...] = ()
    yield asks, relaxed
    if any(ask.avoid - nodes.pressed(ask.avoid) for ask in asks):
        asks = tuple(ask.without_avoid(nodes.pressed(ask.avoid)) for ask in asks)
        relaxed += (AVOIDED,)
        yield asks, relaxed
    if any(_disliked(ask, nodes) for ask in {(ask.shape, ask.who): ask for ask in asks}.values()):
        asks = tuple(ask.without_others_should() for ask in asks)
        relaxed += (DISLIKED,)
        yield asks, relaxed
    while any(_soft(ask) for ask in asks):
        given_up = {shown(ask.hard[-1]): None for ask in asks if _soft(ask)}
        asks = tuple(ask.without_last_should() if _soft(ask) else ask for ask in asks)
        relaxed += tuple(given_up)
        yield asks, relaxed


def _soft(ask: Ask) -> bool:
    return ask.dropped < len(ask.shape.should)


def _disliked(ask: Ask, nodes: Snapshot) -> bool:
    """By somebody who is placed, or by its fellows once they are."""
    fellows = (tie for tie in ask.shape.ties(ask.who) if tie.selector.matches(ask.who))
    return nodes.census.disliked(ask.who) or any(tie.kind == "apart" and tie.strength == "should" for tie in fellows)
