"""The fewest and cheapest who must leave a node so that an ask fits there."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, islice, product
from typing import Protocol

from mandor.placement.framework.lodging import Lodger, Lodging
from mandor.placement.framework.points import Offer
from mandor.placement.framework.rehearsal import Rehearsal

NOBODY_GOES = -2_000_000
"""Lower than any priority."""
_OFFSET = 1_000_001
"""Added to each priority in a sum of them, so that one victim more always costs more."""
_CHOICES_MOST = 64

Group = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A node, and who must leave it."""

    slot: int
    node: str
    victims: tuple[Lodger, ...]
    violations: int
    """Of these, so many are more than their budgets allow."""
    luck: int

    @property
    def bound(self) -> tuple[int, int]:
        """What counts most: budgets, then the highest priority that has to go."""
        return self.violations, max([each.tenure.rank.priority for each in self.victims], default=NOBODY_GOES)

    @property
    def cost(self) -> tuple[int, int, int, int, float, int]:
        """The least is best: then the sum of priorities, how many they are, and how long the highest have run."""
        tenures, count = [each.tenure for each in self.victims], len(self.victims)
        priorities = [each.rank.priority for each in tenures]
        highest = max(priorities, default=NOBODY_GOES)
        oldest = min([each.born for each in tenures if each.rank.priority == highest], default=0.0)
        return self.violations, highest, sum(priorities) + count * _OFFSET, count, -oldest, self.luck


def goes_anyway(lodger: Lodger, rehearsal: Rehearsal) -> bool:
    """It need not be asked to leave: it is about to, or room is only held for it, and it matters less."""
    tenure, ask = lodger.tenure, rehearsal.ask
    if tenure.held:
        return lodger.key == ask.key or lodger.priority < ask.priority
    return tenure.until is not None and tenure.until <= rehearsal.soon


def may_go(lodger: Lodger, rehearsal: Rehearsal) -> bool:
    tenure = lodger.tenure
    rank = tenure.rank
    return tenure.until is None and not tenure.held and not rank.spared and rank.priority < rehearsal.ask.priority


class Scene(Protocol):
    """One node, where lodgers leave and come back."""

    def leave(self, lodger: Lodger) -> None: ...

    def come(self, lodger: Lodger) -> None: ...

    def fits(self) -> bool:
        """Would it take the ask now?"""


class _InTable:
    """Really tried: every plugin has its say."""

    def __init__(self, rehearsal: Rehearsal, slot: int, node: str) -> None:
        self._rehearsal = rehearsal
        self._slot = slot
        self._node = node

    def leave(self, lodger: Lodger) -> None:
        self._rehearsal.leave([lodger])

    def come(self, lodger: Lodger) -> None:
        self._rehearsal.come(self._node, lodger)

    def fits(self) -> bool:
        return self._rehearsal.fits(self._slot)


class _InNumbers:
    """The same where nothing but amounts counts."""

    def __init__(self, rehearsal: Rehearsal, slot: int) -> None:
        nodes = rehearsal.nodes
        # What is still missing, by resource: the ask fits when nothing is.
        self._missing = {name: need - int(nodes.free[nodes.rows[name], slot]) for name, need in rehearsal.needs.items()}

    def leave(self, lodger: Lodger) -> None:
        for name, amount in lodger.shape.wanted:
            if name in self._missing:
                self._missing[name] -= amount

    def come(self, lodger: Lodger) -> None:
        for name, amount in lodger.shape.wanted:
            if name in self._missing:
                self._missing[name] += amount

    def fits(self) -> bool:
        return all(amount <= 0 for amount in self._missing.values())


def candidate(rehearsal: Rehearsal, slot: int) -> Candidate | None:
    """None: the ask would not fit there if all went who may."""
    nodes = rehearsal.nodes
    if not rehearsal.possible[slot]:
        return None
    node, luck = nodes.nodes[slot].meta.name, int(nodes.order()[slot])
    lodgers = rehearsal.lodging.lodgers(node)
    if rehearsal.by_amounts:
        found = _victims(rehearsal, _InNumbers(rehearsal, slot), lodgers)
    else:
        with rehearsal.trial():
            found = _victims(rehearsal, _InTable(rehearsal, slot, node), lodgers)
    return None if found is None else Candidate(slot, node, tuple(found), _violations(rehearsal, found), luck)


def agreed(rehearsal: Rehearsal, offer: Offer) -> Candidate | None:
    """As somebody else wants it; None: they are not all there any more, or it would not fit."""
    nodes, keys = rehearsal.nodes, {each.key for each in offer.victims}
    slot = nodes.slots.get(offer.node)
    if slot is None or not rehearsal.possible[slot]:
        return None
    lodgers = rehearsal.lodging.lodgers(offer.node)
    victims = tuple(each for each in lodgers if each.key in keys and may_go(each, rehearsal))
    with rehearsal.trial():
        rehearsal.leave(each for each in lodgers if goes_anyway(each, rehearsal))
        rehearsal.leave(victims)
        fits = len(victims) == len(keys) and rehearsal.fits(slot)
    return Candidate(slot, offer.node, victims, offer.violations, int(nodes.order()[slot])) if fits else None


def _victims(rehearsal: Rehearsal, scene: Scene, lodgers: Sequence[Lodger]) -> list[Lodger] | None:
    anyway = [each for each in lodgers if goes_anyway(each, rehearsal)]
    for each in anyway:
        scene.leave(each)
    if anyway and scene.fits():
        return []
    gone = [each for each in lodgers if may_go(each, rehearsal)]
    for each in gone:
        scene.leave(each)
    if not gone or not scene.fits():
        return None
    return _fewest(rehearsal, scene, gone)


def _fewest(rehearsal: Rehearsal, scene: Scene, gone: Sequence[Lodger]) -> list[Lodger]:
    """All are gone. Whoever can come back does: first those whom a budget protects, then the most important."""
    protected, others = by_budget(rehearsal.lodging, gone)
    victims = _return(scene, [*protected, *others])
    if not protected or not _violations(rehearsal, victims):
        return victims
    back = [each for each in gone if each not in victims]
    for each in back:
        scene.leave(each)
    for stay in islice(kept_budgets(rehearsal.lodging, gone), _CHOICES_MOST):
        for each in stay:
            scene.come(each)
        if scene.fits():
            return _return(scene, [each for each in gone if each not in stay])
        for each in stay:
            scene.leave(each)
    return victims


def _return(scene: Scene, gone: Iterable[Lodger]) -> list[Lodger]:
    """One after the other, if the ask still fits then; those who cannot."""
    victims = []
    for each in gone:
        scene.come(each)
        if not scene.fits():
            scene.leave(each)
            victims.append(each)
    return victims


def by_budget(lodging: Lodging, lodgers: Sequence[Lodger]) -> tuple[list[Lodger], list[Lodger]]:
    """Those who are one too many for their budget, if all go; and the others."""
    left: dict[Group, int] = {}
    protected: list[Lodger] = []
    others: list[Lodger] = []
    for each in lodgers:
        allowed = lodging.allowed(each.who)
        if allowed is None:
            others.append(each)
            continue
        group = _group(each)
        left[group] = left.get(group, allowed) - 1
        (protected if left[group] < 0 else others).append(each)
    return protected, others


def _violations(rehearsal: Rehearsal, victims: Sequence[Lodger]) -> int:
    return len(by_budget(rehearsal.lodging, victims)[0])


def kept_budgets(lodging: Lodging, lodgers: Sequence[Lodger]) -> Iterator[list[Lodger]]:
    """Every choice of those who stay so that all budgets hold; others than them may all go."""
    groups: dict[Group, list[Lodger]] = {}
    for each in lodgers:
        if lodging.allowed(each.who) is not None:
            groups.setdefault(_group(each), []).append(each)
    choices = []
    for members in groups.values():
        go = max(0, lodging.allowed(members[0].who) or 0)
        choices.append(combinations(members, max(0, len(members) - go)))
    for chosen in product(*choices):
        yield [each for members in chosen for each in members]


def _group(lodger: Lodger) -> Group:
    return lodger.who.namespace, lodger.who.workload, lodger.who.group
