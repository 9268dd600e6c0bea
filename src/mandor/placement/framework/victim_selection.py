"""The fewest and cheapest who must leave a node so that an ask fits there."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from typing import Protocol

from mandor.placement.framework.dry_run import DryRun
from mandor.placement.framework.occupancy import Occupancy, PlacedInstance
from mandor.placement.framework.points import Offer

NO_VICTIMS = -2_000_000
"""Lower than any priority."""
_OFFSET = 1_000_001
"""Added to each priority in a sum of them, so that one victim more always costs more."""
_CHOICES_MOST = 64

Group = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class PreemptionCandidate:
    """A node, and who must leave it."""

    slot: int
    node: str
    victims: tuple[PlacedInstance, ...]
    violations: int
    """Of these, so many are more than their budgets allow."""
    luck: int

    @property
    def bound(self) -> tuple[int, int]:
        """What counts most: budgets, then the highest priority that has to go."""
        return self.violations, max([each.terms.rank.priority for each in self.victims], default=NO_VICTIMS)

    @property
    def cost(self) -> tuple[int, int, int, int, float, int]:
        """The least is best: then the sum of priorities, how many they are, and how long the highest have run."""
        all_terms, count = [each.terms for each in self.victims], len(self.victims)
        priorities = [each.rank.priority for each in all_terms]
        highest = max(priorities, default=NO_VICTIMS)
        oldest = min([each.born for each in all_terms if each.rank.priority == highest], default=0.0)
        return self.violations, highest, sum(priorities) + count * _OFFSET, count, -oldest, self.luck


def goes_anyway(placed_instance: PlacedInstance, dry_run: DryRun) -> bool:
    """It need not be asked to leave: it is about to, or room is only held for it, and it matters less."""
    terms, request = placed_instance.terms, dry_run.request
    if terms.held:
        return placed_instance.key == request.key or placed_instance.priority < request.priority
    return terms.until is not None and terms.until <= dry_run.soon


def may_go(placed_instance: PlacedInstance, dry_run: DryRun) -> bool:
    terms = placed_instance.terms
    rank = terms.rank
    return terms.until is None and not terms.held and not rank.spared and rank.priority < dry_run.request.priority


class Scene(Protocol):
    """One node, where lodgers leave and come back."""

    def leave(self, placed_instance: PlacedInstance) -> None: ...

    def come(self, placed_instance: PlacedInstance) -> None: ...

    def fits(self) -> bool:
        """Would it take the ask now?"""


class _InTable:
    """Really tried: every plugin has its say."""

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


class _InNumbers:
    """The same where nothing but amounts counts."""

    def __init__(self, dry_run: DryRun, slot: int) -> None:
        nodes = dry_run.nodes
        # What is still missing, by resource: the ask fits when nothing is.
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


def candidate(dry_run: DryRun, slot: int) -> PreemptionCandidate | None:
    """None: the ask would not fit there if all went who may."""
    nodes = dry_run.nodes
    if not dry_run.possible[slot]:
        return None
    node, luck = nodes.nodes[slot].meta.name, int(nodes.order()[slot])
    placed_instances = dry_run.occupancy.placed_instances(node)
    if dry_run.by_amounts:
        found = _victims(dry_run, _InNumbers(dry_run, slot), placed_instances)
    else:
        with dry_run.trial():
            found = _victims(dry_run, _InTable(dry_run, slot, node), placed_instances)
    return None if found is None else PreemptionCandidate(slot, node, tuple(found), _violations(dry_run, found), luck)


def agreed(dry_run: DryRun, offer: Offer) -> PreemptionCandidate | None:
    """As somebody else wants it; None: they are not all there any more, or it would not fit."""
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
    """All are gone. Whoever can come back does: first those whom a budget protects, then the most important."""
    protected, others = by_budget(dry_run.occupancy, gone)
    victims = _return(scene, [*protected, *others])
    if not protected or not _violations(dry_run, victims):
        return victims
    back = [each for each in gone if each not in victims]
    for each in back:
        scene.leave(each)
    for stay in islice(kept_budgets(dry_run.occupancy, gone), _CHOICES_MOST):
        for each in stay:
            scene.come(each)
        if scene.fits():
            return _return(scene, [each for each in gone if each not in stay])
        for each in stay:
            scene.leave(each)
    return victims


def _return(scene: Scene, gone: Iterable[PlacedInstance]) -> list[PlacedInstance]:
    """One after the other, if the ask still fits then; those who cannot."""
    victims = []
    for each in gone:
        scene.come(each)
        if not scene.fits():
            scene.leave(each)
            victims.append(each)
    return victims


def by_budget(
    occupancy: Occupancy, placed_instances: Sequence[PlacedInstance]
) -> tuple[list[PlacedInstance], list[PlacedInstance]]:
    """Those who are one too many for their budget, if all go; and the others."""
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


def kept_budgets(occupancy: Occupancy, placed_instances: Sequence[PlacedInstance]) -> Iterator[list[PlacedInstance]]:
    """Every choice of those who stay so that all budgets hold; others than them may all go."""
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
