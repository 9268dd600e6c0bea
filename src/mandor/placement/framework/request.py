"""The instance being placed, as numbers and rules."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from msgspec import Struct, structs

from mandor.model.meta import Key
from mandor.model.placement import Apart, Near, PlacementRule, Spread, Toleration, Where
from mandor.model.volume import GroupVolume
from mandor.model.workload import AUTO, GroupTemplate
from mandor.placement.framework.identity import (
    NO_IDENTITY,
    AffinityTerm,
    Identity,
    Selector,
    affinity_term,
    selector_of,
)
from mandor.placement.framework.ports import AnyPort, HostPort
from mandor.placement.framework.volumes import WantedVolume, wanted_volumes

CPU, MEMORY, DISK = "cpu", "memory", "disk"

CPU_COUNTED_MILLI = 100
MEMORY_COUNTED_BYTES = 200 * 1024 * 1024
"""What Kubernetes counts, in scores only, for a program that asks for nothing: else all such would look weightless."""


class SpreadOver(NamedTuple):
    """A `spread` rule of one identity."""

    rule: Spread
    selector: Selector
    counts_itself: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of an ask as things stand, by kind: what is hard now, and what is only wished for.

    `should` is hard until it is given up, and then the strongest wish.
    """

    where: tuple[Where, ...]
    near: tuple[AffinityTerm, ...]
    apart: tuple[AffinityTerm, ...]
    spread: tuple[SpreadOver, ...]
    preferred_where: tuple[tuple[Where, int], ...]
    """With their weights."""
    preferred_terms: tuple[tuple[AffinityTerm, int], ...]
    """With their weights; negative for `apart`."""
    preferred_spread: tuple[SpreadOver, ...]


NO_RULES = Rules((), (), (), (), (), (), ())
RELAXED_WEIGHT = 100
"""What a `should` rule that was given up still counts."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What all instances of one group of one release ask for; computed once."""

    wanted: tuple[tuple[str, int], ...]
    """Amounts by resource; nothing that is zero."""
    counted: tuple[int, int]
    """CPU and memory as scores count them."""
    host_ports: tuple[HostPort, ...]
    engines: tuple[str, ...]
    """Any of these, in order of preference; empty: whichever can run it."""
    images: frozenset[bool]
    """What its tasks are: True for an image, False for a command of the node itself."""
    pool: str | None
    tolerate: tuple[Toleration, ...]
    must: tuple[PlacementRule, ...]
    should: tuple[PlacementRule, ...]
    """Of all kinds, as declared; they are given up from the end."""
    prefer: tuple[PlacementRule, ...]
    image_names: tuple[str, ...] = ()
    """One for each task; empty for a task without an image."""
    dedicated: bool = False
    """Its node is its workload's alone."""
    machine: bool = False
    """It is a virtual machine, on one engine at least."""
    machine_on: frozenset[str] = frozenset()
    """The engines on which it is one."""
    heads: int = 1
    """It counts as so many: what an inventory shows on a node is counted as one."""
    grace: float = 0.0
    """Seconds it gets to stop."""
    patience: float = 0.0
    """Seconds it waits for room that others are about to free, before it gives a rule up."""
    preempt_first: bool = False
    """It would rather take the place of others than give a rule up."""
    volumes: Mapping[str, GroupVolume] = field(default_factory=dict)
    """Local and host ones, by the names the group gives them."""
    any_ports: tuple[AnyPort, ...] = ()
    """Ports of the node that are chosen when it is placed."""
    needs: frozenset[str] = frozenset()
    """What an engine has to be able to do for its mounts: `mounts`, `links`, `tmpfs`."""
    home: str = "default"
    """The pool it names, as a must or not: the scheduler of that pool places it."""
    known: dict[tuple[int, Identity], Rules] = field(default_factory=dict)
    """The rules by what is given up and for whom; an answer that is computed once."""
    affinity_cache: dict[Identity, tuple[AffinityTerm, ...]] = field(default_factory=dict)
    variant: int = 0
    """The form of the group: 0 is the main one."""
    alternatives: tuple["Shape", ...] = ()
    """Of the main form: the others, in the order in which they are tried."""

    @classmethod
    def of(cls, group: GroupTemplate) -> "Shape":
        """The main form, with the others."""
        main, *others = (cls._of(form, variant) for variant, form in enumerate(group.forms))
        return replace(main, alternatives=tuple(others)) if others else main

    @classmethod
    def _of(cls, group: GroupTemplate, variant: int) -> "Shape":
        request = group.request
        amounts = {CPU: request.cpu_milli, MEMORY: request.memory_bytes, DISK: request.disk_bytes, **request.devices}
        rules = group.placement.rules
        return cls(
            wanted=tuple((name, amount) for name, amount in amounts.items() if amount > 0),
            counted=_counted(group),
            host_ports=tuple(
                HostPort(port.host, port.protocol) for port in group.ports.values() if isinstance(port.host, int)
            ),
            any_ports=tuple(
                AnyPort(name, port.protocol) for name, port in sorted(group.ports.items()) if port.host == AUTO
            ),
            engines=group.engine,
            images=frozenset(task.image is not None for task in group.tasks.values()),
            pool=group.placement.only_pool,
            tolerate=group.placement.tolerate,
            must=tuple(each for each in rules if each.strength == "must"),
            should=tuple(each for each in rules if each.strength == "should"),
            prefer=tuple(each for each in rules if each.strength == "prefer"),
            image_names=tuple(task.image or "" for task in group.tasks.values()),
            dedicated=group.placement.dedicated,
            home=group.placement.home,
            machine=bool(group.machine_on),
            machine_on=group.machine_on,
            grace=float(max(task.stop.grace for task in group.tasks.values())),
            patience=float(group.placement.patience),
            preempt_first=group.placement.relax == "after-preemption",
            volumes={name: each for name, each in group.volumes.items() if each.type in {"local", "host"}},
            needs=group.needs_anywhere,
            variant=variant,
        )

    def form(self, variant: int) -> "Shape":
        """Of the main form: that form."""
        return self.alternatives[variant - 1] if 0 < variant <= len(self.alternatives) else self

    @property
    def form_name(self) -> str:
        """For people."""
        if not self.variant:
            return "the main form"
        return f"alternative {self.variant}" + (f" ({' or '.join(self.engines)})" if self.engines else "")

    def affinity_terms(self, identity: Identity) -> tuple[AffinityTerm, ...]:
        """All `near` and `apart` rules, of every strength: what binds others to it."""
        if not (self.must or self.should or self.prefer):
            return ()
        found = self.affinity_cache.get(identity)
        if found is None:
            rules = (*self.must, *self.should, *self.prefer)
            found = tuple(affinity_term(each, identity) for each in rules if isinstance(each, Near | Apart))
            _keep(self.affinity_cache, identity, found)
        return found

    def takes_room_alone(self, identity: Identity) -> bool:
        """Where one of it goes matters to the next only by the room it takes."""
        return not (
            self.host_ports or self.any_ports or self.volumes or self.dedicated or self.affinity_terms(identity)
        )

    def rules(self, dropped: int, identity: Identity) -> Rules:
        found = self.known.get((dropped, identity))
        if found is None:
            if not (self.must or self.should or self.prefer):
                return NO_RULES
            kept = len(self.should) - dropped
            found = _rules(self.must + self.should[:kept], self.should[kept:], self.prefer, identity)
            _keep(self.known, (dropped, identity), found)
        return found


K = TypeVar("K")
V = TypeVar("V")


def _keep(known: dict[K, V], key: K, value: V) -> None:
    """A shape has one identity at a time; a few more when labels change."""
    if len(known) >= 64:
        known.clear()
    known[key] = value


def _rules(
    hard: tuple[PlacementRule, ...],
    given_up: tuple[PlacementRule, ...],
    prefer: tuple[PlacementRule, ...],
    identity: Identity,
) -> Rules:
    wished = [(each, _weight(each)) for each in prefer] + [(each, RELAXED_WEIGHT) for each in given_up]
    return Rules(
        where=tuple(each for each in hard if isinstance(each, Where)),
        near=tuple(affinity_term(each, identity) for each in hard if isinstance(each, Near)),
        apart=tuple(affinity_term(each, identity) for each in hard if isinstance(each, Apart)),
        spread=tuple(_spread(each, identity) for each in hard if isinstance(each, Spread)),
        preferred_where=tuple((each, weight) for each, weight in wished if isinstance(each, Where)),
        preferred_terms=tuple(
            (affinity_term(each, identity), weight if isinstance(each, Near) else -weight)
            for each, weight in wished
            if isinstance(each, Near | Apart)
        ),
        preferred_spread=tuple(_spread(each, identity) for each, _ in wished if isinstance(each, Spread)),
    )


def _weight(rule: PlacementRule) -> int:
    return 1 if isinstance(rule, Spread) else rule.weight or 1


def _spread(rule: Spread, identity: Identity) -> SpreadOver:
    selector = selector_of(rule, identity)
    return SpreadOver(rule, selector, selector.matches(identity))


def _counted(group: GroupTemplate) -> tuple[int, int]:
    together = [task.resources.request for task in group.tasks.values() if task.role != "init"]
    request = group.request
    cpu = sum(each.cpu_milli or CPU_COUNTED_MILLI for each in together)
    memory = sum(each.memory_bytes or MEMORY_COUNTED_BYTES for each in together)
    return max(cpu, request.cpu_milli), max(memory, request.memory_bytes)


class GangMembership(NamedTuple):
    """The gang that an instance belongs to: so many of it are placed together, or none is."""

    gang: tuple[str, str, str]
    """Namespace, workload, group."""
    least: int
    seconds: float
    """So long some of it may hold nodes without the others."""


class PlacementRequest(Struct, frozen=True, gc=False):
    """One instance that needs a node."""

    key: Key
    shape: Shape
    priority: int = 0
    profile: str = "default"
    avoid: frozenset[str] = frozenset()
    """Nodes where earlier copies failed: elsewhere first."""
    dropped: int = 0
    """So many of the `should` rules are given up, the last declared first."""
    identity: Identity = NO_IDENTITY
    """What the rules of others see of it."""
    pin: str = ""
    """The only node it may go to."""
    daemon: bool = False
    """It belongs to that node, and goes there also while it is cordoned."""
    gates: tuple[str, ...] = ()
    """What its workload waits for before it may be queued."""
    preempts: bool = True
    """It may take the place of others of lower priority."""
    lenient: bool = False
    """The `should` rules of others against it are given up, too."""
    member: GangMembership | None = None
    """None: it is placed by itself."""

    @property
    def local_volumes(self) -> list[WantedVolume]:
        return wanted_volumes(self.shape.volumes, self.key, self.identity) if self.shape.volumes else []

    @property
    def class_key(self) -> tuple[Shape, Identity, int, frozenset[str], str, bool]:
        """Asks that have it in common get the same answers."""
        return self.shape, self.identity, self.dropped, self.avoid, self.pin, self.lenient

    @property
    def rules(self) -> Rules:
        return self.shape.rules(self.dropped, self.identity)

    @property
    def hard(self) -> tuple[PlacementRule, ...]:
        """The rules a node must keep, as things stand."""
        return self.shape.must + self.shape.should[: len(self.shape.should) - self.dropped]

    @property
    def given_up(self) -> tuple[PlacementRule, ...]:
        return self.shape.should[len(self.shape.should) - self.dropped :]

    @property
    def forms(self) -> tuple["PlacementRequest", ...]:
        """For each form of its group, in the order in which they are tried."""
        others = self.shape.alternatives
        return (self, *(structs.replace(self, shape=each) for each in others)) if others else (self,)

    def without_avoid(self, but: frozenset[str] = frozenset()) -> "PlacementRequest":
        return structs.replace(self, avoid=self.avoid & but)

    def without_last_should(self) -> "PlacementRequest":
        return structs.replace(self, dropped=self.dropped + 1)

    def without_others_should(self) -> "PlacementRequest":
        return structs.replace(self, lenient=True)
