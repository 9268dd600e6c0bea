"""The placement request: an instance that needs a node, as amounts and rules."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from msgspec import Struct, structs

from mandor.model.group import AUTO, GroupTemplate
from mandor.model.meta import Key
from mandor.model.placement import Apart, Near, PlacementRule, Spread, Toleration, Where
from mandor.model.resources import Resources
from mandor.model.task import Task
from mandor.model.volume import GroupVolume
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
"""CPU and memory that Kubernetes counts, in scores only, for a task without a request."""


class SpreadOver(NamedTuple):
    """A `spread` rule with its selector resolved."""

    rule: Spread
    selector: Selector
    counts_itself: bool


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a request by kind: those that must hold, and those that are preferred.

    A `should` rule must hold until it is relaxed; then it is preferred with the highest weight.
    """

    where: tuple[Where, ...]
    near: tuple[AffinityTerm, ...]
    apart: tuple[AffinityTerm, ...]
    spread: tuple[SpreadOver, ...]
    preferred_where: tuple[tuple[Where, int], ...]
    """Preferred rules with their weights."""
    preferred_terms: tuple[tuple[AffinityTerm, int], ...]
    """Preferred terms with their weights; negative for `apart`."""
    preferred_spread: tuple[SpreadOver, ...]


NO_RULES = Rules((), (), (), (), (), (), ())
RELAXED_WEIGHT = 100
"""Weight of a relaxed `should` rule."""


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Requirements that the instances of one group of one release share; computed once."""

    wanted: tuple[tuple[str, int], ...]
    """Amounts by resource, without zeros."""
    counted: tuple[int, int]
    """CPU and memory as scores count them."""
    host_ports: tuple[HostPort, ...]
    engines: tuple[str, ...]
    """Acceptable engines in order of preference; empty: any engine that can run the tasks."""
    images: frozenset[bool]
    """Kinds of its tasks: True for an image, False for a command of the node."""
    pool: str | None
    tolerate: tuple[Toleration, ...]
    must: tuple[PlacementRule, ...]
    should: tuple[PlacementRule, ...]
    """`should` rules of all kinds in the order of the manifest; they are relaxed from the end."""
    prefer: tuple[PlacementRule, ...]
    image_names: tuple[str, ...] = ()
    """Image of each task; empty for a task without an image."""
    dedicated: bool = False
    """Whether its node runs no instances of other workloads."""
    machine: bool = False
    """Whether it is a virtual machine on at least one engine."""
    machine_on: frozenset[str] = frozenset()
    """Engines on which it is a virtual machine."""
    heads: int = 1
    """Number of instances that it counts as: an entry of an inventory can stand for several."""
    grace: float = 0.0
    """Grace period in seconds."""
    patience: float = 0.0
    """Seconds that it waits for the room of stopping instances before a rule is relaxed."""
    preempt_first: bool = False
    """Whether preemption is tried before rules are relaxed."""
    volumes: Mapping[str, GroupVolume] = field(default_factory=dict)
    """Local and host volumes by their names in the group."""
    any_ports: tuple[AnyPort, ...] = ()
    """Host ports that are chosen when the instance is placed."""
    needs: frozenset[str] = frozenset()
    """Capabilities that its mounts need: `mounts`, `links`, `tmpfs`."""
    home: str = "default"
    """Pool whose scheduler places it."""
    known: dict[tuple[int, Identity], Rules] = field(default_factory=dict)
    """Cache of `rules` by number of relaxed rules and identity."""
    affinity_cache: dict[Identity, tuple[AffinityTerm, ...]] = field(default_factory=dict)
    """Cache of `affinity_terms`."""
    variant: int = 0
    """Number of the form of the group; 0 is the main form."""
    alternatives: tuple["Shape", ...] = ()
    """Alternative forms of the group in the order in which they are tried; only the main form has them."""
    devices: tuple[str, ...] = field(init=False, default=())
    """Device kinds that it takes."""

    def __post_init__(self) -> None:
        devices = tuple(name for name, _ in self.wanted if name not in {CPU, MEMORY, DISK})
        object.__setattr__(self, "devices", devices)

    @classmethod
    def of(cls, group: GroupTemplate) -> "Shape":
        """Return the main form of a group with its alternatives."""
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
        """Return a form by its number; called on the main form."""
        return self.alternatives[variant - 1] if 0 < variant <= len(self.alternatives) else self

    @property
    def form_name(self) -> str:
        """Name of the form for messages."""
        if not self.variant:
            return "the main form"
        return f"alternative {self.variant}" + (f" ({' or '.join(self.engines)})" if self.engines else "")

    def affinity_terms(self, identity: Identity) -> tuple[AffinityTerm, ...]:
        """Return the `near` and `apart` rules of every strength."""
        if not (self.must or self.should or self.prefer):
            return ()
        found = self.affinity_cache.get(identity)
        if found is None:
            rules = (*self.must, *self.should, *self.prefer)
            found = tuple(affinity_term(each, identity) for each in rules if isinstance(each, Near | Apart))
            _keep(self.affinity_cache, identity, found)
        return found

    def takes_room_alone(self, identity: Identity) -> bool:
        """Return whether a placement affects the next one only by the resources that it takes."""
        return not (
            self.host_ports or self.any_ports or self.volumes or self.dedicated or self.affinity_terms(identity)
        )

    def rules(self, dropped: int, identity: Identity) -> Rules:
        """Return the rules with the last `dropped` of the `should` rules relaxed."""
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
    """Cache a value; a shape usually has one identity, and more only while labels change."""
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
    found = group.total(_counted_of)
    return found.cpu_milli, found.memory_bytes


def _counted_of(task: Task) -> Resources:
    cpu, memory = task.resources.cpu, task.resources.memory
    return Resources(
        CPU_COUNTED_MILLI if cpu is None else int(cpu), MEMORY_COUNTED_BYTES if memory is None else int(memory)
    )


class GangMembership(NamedTuple):
    """The gang of an instance: at least `least` members are placed together, or none."""

    gang: tuple[str, str, str]
    """Namespace, workload, group."""
    least: int
    seconds: float
    """Seconds that some members may hold nodes while others are missing."""


class PlacementRequest(Struct, frozen=True, gc=False):
    """One instance that needs a node."""

    key: Key
    shape: Shape
    priority: int = 0
    profile: str = "default"
    avoid: frozenset[str] = frozenset()
    """Nodes where earlier instances failed; other nodes are tried first."""
    dropped: int = 0
    """Number of relaxed `should` rules, counted from the last one."""
    identity: Identity = NO_IDENTITY
    """Identity that the rules of other instances select."""
    pin: str = ""
    """Name of the only node that it may be placed on; empty: any."""
    daemon: bool = False
    """Whether it belongs to a daemon workload, and is placed on its node even if that is cordoned."""
    gates: tuple[str, ...] = ()
    """Scheduling gates of its workload; it is not queued while there are any."""
    preempts: bool = True
    """Whether it may preempt instances of lower priority."""
    lenient: bool = False
    """Whether the `should` rules of other instances about it are relaxed, too."""
    member: GangMembership | None = None
    """Gang of the instance; None: the instance is placed by itself."""

    @property
    def local_volumes(self) -> list[WantedVolume]:
        return wanted_volumes(self.shape.volumes, self.key, self.identity) if self.shape.volumes else []

    @property
    def class_key(self) -> tuple[Shape, Identity, int, frozenset[str], str, bool]:
        """Key of the scheduling class: requests with equal keys get equal answers."""
        return self.shape, self.identity, self.dropped, self.avoid, self.pin, self.lenient

    @property
    def rules(self) -> Rules:
        return self.shape.rules(self.dropped, self.identity)

    @property
    def hard(self) -> tuple[PlacementRule, ...]:
        """Rules that must hold: `must`, and `should` that are not relaxed."""
        return self.shape.must + self.shape.should[: len(self.shape.should) - self.dropped]

    @property
    def given_up(self) -> tuple[PlacementRule, ...]:
        return self.shape.should[len(self.shape.should) - self.dropped :]

    @property
    def forms(self) -> tuple["PlacementRequest", ...]:
        """One request for each form of its group, in the order in which they are tried."""
        others = self.shape.alternatives
        return (self, *(structs.replace(self, shape=each) for each in others)) if others else (self,)

    def without_avoid(self, but: frozenset[str] = frozenset()) -> "PlacementRequest":
        return structs.replace(self, avoid=self.avoid & but)

    def without_last_should(self) -> "PlacementRequest":
        return structs.replace(self, dropped=self.dropped + 1)

    def without_others_should(self) -> "PlacementRequest":
        return structs.replace(self, lenient=True)
