"""Selection of victims: the fewest and least important instances of a node without which a request fits."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from typing import Protocol

from mandor.placement.framework.dry_run import DryRun
from mandor.placement.framework.occupancy import Occupancy, PlacedInstance
from mandor.placement.framework.points import Offer

NO_VICTIMS = -2_000_000
"""Stands for "no victims"; lower than any priority."""
_OFFSET = 1_000_001
"""Added to each priority in a sum, so that an additional victim always costs more."""
_CHOICES_MOST = 64

Group = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class PreemptionCandidate:
    """A node and the victims there."""

    slot: int
    node: str
    victims: tuple[PlacedInstance, ...]
    violations: int
    """Number of victims beyond what their disruption budgets allow."""
    tie_break: int

    @property
    def bound(self) -> tuple[int, int]:
        """First part of the cost: violated budgets, then the highest priority of a victim."""
        return self.violations, max([each.terms.rank.priority for each in self.victims], default=NO_VICTIMS)

    @property
    def cost(self) -> tuple[int, int, int, int, float, int]:
        """Sort key, the lowest is best: `bound`, sum of priorities, number of victims, age of those with the
        highest."""
        all_terms, count = [each.terms for each in self.victims], len(self.victims)
        priorities = [each.rank.priority for each in all_terms]
        highest = max(priorities, default=NO_VICTIMS)
        oldest = min([each.born for each in all_terms if each.rank.priority == highest], default=0.0)
        return self.violations, highest, sum(priorities) + count * _OFFSET, count, -oldest, self.tie_break


def goes_anyway(placed_instance: PlacedInstance, dry_run: DryRun) -> bool:
    """Return whether an instance is no obstacle: it ends in time, or room is held for it at a lower priority."""
    terms, request = placed_instance.terms, dry_run.request
    if terms.held:
        return placed_instance.key == request.key or placed_instance.priority < request.priority
    return terms.until is not None and terms.until <= dry_run.soon


def may_go(placed_instance: PlacedInstance, dry_run: DryRun) -> bool:
    """Return whether an instance may be preempted for the request."""
    terms = placed_instance.terms
    rank = terms.rank
    return terms.until is None and not terms.held and not rank.spared and rank.priority < dry_run.request.priority


class Scene(Protocol):
    """One node from which instances are removed and to which they are added back."""

    def leave(self, placed_instance: PlacedInstance) -> None: ...

    def come(self, placed_instance: PlacedInstance) -> None: ...

    def fits(self) -> bool:
        """Return whether the request fits now."""

    def fits_with(self, placed_instance: PlacedInstance) -> bool:
        """Add an instance back if the request still fits; return whether it does."""


class _InTable:
    """Changes the table in a trial and runs all filters."""

    def __init__(self, dry_run: DryRun, slot: int, node: str) -> None:
        self._rehearsal = dry_run
        self._slot = slot
        self._node = node

    def leave(self, placed_instance: PlacedInstance) -> None:
        self._rehearsal.leave([placed_instance])

    def come(self, placed_instance: PlacedInstance) -> None:
        self._rehearsal.come(self._node, placed_instance)

    def fits(self) -> bool:
        return self._rehearsal.fits(self._slot)

    def fits_with(self, placed_instance: PlacedInstance) -> bool:
        # Amounts are compared first: most refusals come from them, and a change of the table takes much longer.
        if not _InNumbers(self._rehearsal, self._slot).fits_with(placed_instance):
            return False
        self.come(placed_instance)
        if self.fits():
            return True
        self.leave(placed_instance)
        return False


class _InNumbers:
    """Computes with amounts only, where nothing else decides."""

    def __init__(self, dry_run: DryRun, slot: int) -> None:
        nodes = dry_run.nodes
        # Missing amounts by resource: the request fits when none is positive.
        self._missing = {name: need - int(nodes.free[nodes.rows[name], slot]) for name, need in dry_run.needs.items()}

    def leave(self, placed_instance: PlacedInstance) -> None:
        for name, amount in placed_instance.shape.wanted:
            if name in self._missing:
                self._missing[name] -= amount

    def come(self, placed_instance: PlacedInstance) -> None:
        for name, amount in placed_instance.shape.wanted:
            if name in self._missing:
                self._missing[name] += amount

    def fits(self) -> bool:
        return all(amount <= 0 for amount in self._missing.values())

    def fits_with(self, placed_instance: PlacedInstance) -> bool:
        self.come(placed_instance)
        if self.fits():
            return True
        self.leave(placed_instance)
        return False


def candidate(dry_run: DryRun, slot: int) -> PreemptionCandidate | None:
    """Return the victims of one node; None: the request does not fit even without all that may be preempted."""
    nodes = dry_run.nodes
    if not dry_run.possible[slot]:
        return None
    node, tie_break = nodes.nodes[slot].meta.name, int(nodes.order()[slot])
    placed_instances = dry_run.occupancy.placed_instances(node)
    if dry_run.by_amounts:
        found = _victims(dry_run, _InNumbers(dry_run, slot), placed_instances)
    else:
        with dry_run.trial():
            found = _victims(dry_run, _InTable(dry_run, slot, node), placed_instances)
    return (
        None if found is None else PreemptionCandidate(slot, node, tuple(found), _violations(dry_run, found), tie_break)
    )


def agreed(dry_run: DryRun, offer: Offer) -> PreemptionCandidate | None:
    """Return an offer of an extender as a candidate; None: a victim is gone, or the request would not fit."""
    nodes, keys = dry_run.nodes, {each.key for each in offer.victims}
    slot = nodes.slots.get(offer.node)
    if slot is None or not dry_run.possible[slot]:
        return None
    placed_instances = dry_run.occupancy.placed_instances(offer.node)
    victims = tuple(each for each in placed_instances if each.key in keys and may_go(each, dry_run))
    with dry_run.trial():
        dry_run.leave(each for each in placed_instances if goes_anyway(each, dry_run))
        dry_run.leave(victims)
        fits = len(victims) == len(keys) and dry_run.fits(slot)
    return PreemptionCandidate(slot, offer.node, victims, offer.violations, int(nodes.order()[slot])) if fits else None


def _victims(dry_run: DryRun, scene: Scene, placed_instances: Sequence[PlacedInstance]) -> list[PlacedInstance] | None:
    anyway = [each for each in placed_instances if goes_anyway(each, dry_run)]
    for each in anyway:
        scene.leave(each)
    if anyway and scene.fits():
        return []
    gone = [each for each in placed_instances if may_go(each, dry_run)]
    for each in gone:
        scene.leave(each)
    if not gone or not scene.fits():
        return None
    return _fewest(dry_run, scene, gone)


def _fewest(dry_run: DryRun, scene: Scene, gone: Sequence[PlacedInstance]) -> list[PlacedInstance]:
    """Add removed instances back while the request fits: first those that a budget protects, then by importance."""
    protected, others = by_budget(dry_run.occupancy, gone)
    victims = _return(scene, [*protected, *others])
    if not protected or not _violations(dry_run, victims):
        return victims
    back = [each for each in gone if each not in victims]
    for each in back:
        scene.leave(each)
    for stay in islice(within_budgets(dry_run.occupancy, gone), _CHOICES_MOST):
        for each in stay:
            scene.come(each)
        if scene.fits():
            return _return(scene, [each for each in gone if each not in stay])
        for each in stay:
            scene.leave(each)
    return victims


def _return(scene: Scene, gone: Iterable[PlacedInstance]) -> list[PlacedInstance]:
    """Add instances back one by one if the request still fits; return those that stay removed."""
    return [each for each in gone if not scene.fits_with(each)]


def by_budget(
    occupancy: Occupancy, placed_instances: Sequence[PlacedInstance]
) -> tuple[list[PlacedInstance], list[PlacedInstance]]:
    """Split instances into those beyond their disruption budgets, if all are removed, and the others."""
    left: dict[Group, int] = {}
    protected: list[PlacedInstance] = []
    others: list[PlacedInstance] = []
    for each in placed_instances:
        allowed = occupancy.allowed(each.identity)
        if allowed is None:
            others.append(each)
            continue
        group = _group(each)
        left[group] = left.get(group, allowed) - 1
        (protected if left[group] < 0 else others).append(each)
    return protected, others


def _violations(dry_run: DryRun, victims: Sequence[PlacedInstance]) -> int:
    return len(by_budget(dry_run.occupancy, victims)[0])


def within_budgets(occupancy: Occupancy, placed_instances: Sequence[PlacedInstance]) -> Iterator[list[PlacedInstance]]:
    """Yield every choice of instances to keep so that no budget is violated."""
    groups: dict[Group, list[PlacedInstance]] = {}
    for each in placed_instances:
        if occupancy.allowed(each.identity) is not None:
            groups.setdefault(_group(each), []).append(each)
    choices = []
    for members in groups.values():
        go = max(0, occupancy.allowed(members[0].identity) or 0)
        choices.append(combinations(members, max(0, len(members) - go)))
    for chosen in product(*choices):
        yield [each for members in chosen for each in members]


def _group(placed_instance: PlacedInstance) -> Group:
    return placed_instance.identity.namespace, placed_instance.identity.workload, placed_instance.identity.group
