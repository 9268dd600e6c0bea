"""What the scheduler knows: the table and the queue, kept by changes; and what it has promised and not yet written."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

from msgspec import Struct
from msgspec.structs import replace

from mandor.lib.steps import FEW, WRITTEN, Steps, pieces
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.priority import PriorityClass, class_of
from mandor.model.quota import Quota
from mandor.model.reservation import Reservation
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload
from mandor.placement import claims
from mandor.placement.budgets import Budgets
from mandor.placement.conversion import (
    NOTHING,
    PlacementState,
    ask_of,
    held_of,
    limit_of,
    placement_state,
    release_key,
    shapes_of,
    tenure_of,
    workload_key,
)
from mandor.placement.framework.context import Context
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.occupancy import AllocationTerms, Rank
from mandor.placement.framework.points import ClusterChange, ClusterEvent
from mandor.placement.framework.ports import recorded
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.volumes import KnownVolume
from mandor.placement.group_attributes import GroupAttributes
from mandor.placement.table import Table
from mandor.scheduler.queue import Entry, SchedulingQueue
from mandor.store.base import Change
from mandor.store.mirror import Mirror

log = logging.getLogger(__name__)

DETAILS_MOST = 1024
"""When more happens at once, everybody whom it can concern is tried again without being asked for hints."""

NOWHERE: frozenset[str] = frozenset()
_ONE_PLACED = frozenset({ClusterEvent.PLACED})
_NEITHER, _PLACED, _RESERVED = PlacementState.NEITHER, PlacementState.PLACED, Phase.RESERVED


class Promise(Struct, frozen=True, eq=False, gc=False):
    """A decision that is counted in the table and on its way to the store."""

    entry: Entry
    instance: Instance
    node: str
    node_version: int
    relaxed: tuple[str, ...] = ()
    context: Context | None = None
    """For the plugins that are still to hear of it."""
    shape: Shape | None = None
    """The form that was chosen, if it is not the main one."""
    ports: dict[str, int] | None = None
    """The node's ports that were chosen for it, by name."""

    @property
    def key(self) -> Key:
        return self.entry.request.key

    @property
    def uid(self) -> str:
        return self.instance.meta.uid

    def bound(self, *, at: float, now: Instance | None = None) -> Instance:
        """`now`: the instance as it is stored now, if that is newer."""
        request = self.entry.request
        volumes = tuple(sorted(wanted.key.name for wanted in request.local_volumes)) if request.shape.volumes else ()
        variant = self.shape.variant if self.shape is not None else 0
        return (now or self.instance).bound(
            self.node, at=at, relaxed=self.relaxed, volumes=volumes, variant=variant, ports=self.ports
        )


class View:
    """Every change goes in by `apply`, in each kind's order; the kinds may come in any order."""

    def __init__(
        self,
        queue: SchedulingQueue,
        instances: Mirror,
        workloads: Mirror,
        *,
        seed: str = "",
        gone: Callable[[Promise], None] = lambda promise: None,
        pools: frozenset[str] | None = None,
    ) -> None:
        """`gone`: told of a promise whose instance is gone, or has been stopped, before it was bound. `pools`: the
        nodes of others, and the instances that wait for those, are another scheduler's; None: all are ours."""
        self.table = Table(seed)
        self.queue = queue
        self.happened: set[ClusterEvent] = set()
        """Since the queue was last told."""
        self._details: list[ClusterChange] = []
        self._gone = gone
        self._pools = pools
        self._instances = instances
        self._workloads = workloads
        self._shapes: dict[Key, Mapping[str, Shape]] = {}
        self._roster = GroupAttributes(workloads.get)
        self._budgets = Budgets(self.table.lodgings)
        self._kin: dict[tuple[str, str, str, str], PlacementRequest] = {}
        """What all instances of a group of a release ask for, by namespace, workload, release and group: as long as
        no object changes that it was made of."""
        self._promises: dict[Key, Promise] = {}
        self.elsewhere: dict[Key, tuple[str, str]] = {}
        """Instances that wait for nodes of other schedulers, with their uid and pool."""
        self._waiting_for: dict[Key, dict[Key, None]] = {}  # in order: who comes first decides
        """Instances whose release or workload is not here yet, by that."""
        self._due: deque[Steps[None]] = deque()

    def apply_all(self, changes: Sequence[Change]) -> None:
        """Of one kind, in their order."""
        if not isinstance(changes[0].value, Instance):
            for change in changes:
                self.apply(change)
            return
        counted = self._budgets.any
        for change in changes:
            if counted:
                self._budgets.see(change.before, change.after)
            if not _stays(change.before, change.after) and not self._is_bound(change):
                self._apply_instance(change.key, change.after)

    def apply(self, change: Change) -> None:
        value = change.after if change.after is not None else change.before
        if type(value) is Instance:
            self._budgets.see(change.before, change.after)
            self._apply_instance(change.key, change.after)
            return
        self._kin.clear()
        if isinstance(value, Node):
            self._apply_node(value, change.before, gone=change.after is None)
        elif isinstance(value, Release):
            self._apply_release(value, gone=change.after is None)
        elif isinstance(value, Workload):
            self._apply_workload(change)
        elif isinstance(value, Volume):
            known = KnownVolume.of(value) if change.after is not None else None
            if self.table.set_volume(change.key, known):
                self._happen(ClusterEvent.VOLUME, None)
        elif isinstance(value, PriorityClass):
            self._apply_class(value, gone=change.after is None)
        elif isinstance(value, Reservation):
            self._apply_reservation(value, gone=change.after is None)
        elif isinstance(value, Quota):
            self._apply_quota(value, change.before, gone=change.after is None)

    @property
    def behind(self) -> bool:
        """Something has changed that concerns many: nothing is decided before all of them show it (`catch_up`)."""
        return bool(self._due)

    def catch_up(self) -> Steps[None]:
        """Each is taken as it is when its turn comes: changes go in meanwhile."""
        while self._due:
            yield from self._due[0]
            self._due.popleft()

    # Nodes and releases.

    def _apply_node(self, node: Node, before: Object | None, *, gone: bool) -> None:
        if gone or not self.owns(node.spec.pool):
            claims.remove_node(self.table, node.meta.name)
            return
        new = self.table.node(node.meta.name) is None
        claims.set_node(self.table, node)
        if new or not isinstance(before, Node):
            self._happen(ClusterEvent.NODE_ADDED, node)
            self._look_again(node.key)
            return
        if _matters(before) != _matters(node):
            self._happen(ClusterEvent.NODE_CHANGED, node, before=before)
        if before.status.usage != node.status.usage:
            self._happen(ClusterEvent.LOAD_CHANGED, node)

    def owns(self, pool: str) -> bool:
        return self._pools is None or pool in self._pools

    def _happen(
        self, event: ClusterEvent, node: Node | None, instance: Key | None = None, *, before: Node | None = None
    ) -> None:
        self.happened.add(event)
        if len(self._details) <= DETAILS_MOST:
            self._details.append(ClusterChange(event, node, instance, before))

    def take_happened(self) -> tuple[set[ClusterEvent], list[ClusterChange]]:
        """What happened since the last time; details of all of it, or of nothing when it was too much."""
        happened, details = self.happened, self._details
        self.happened, self._details = set(), []
        return happened, details if len(details) <= DETAILS_MOST else []

    def _apply_release(self, release: Release, *, gone: bool) -> None:
        if gone:
            self._shapes.pop(release.key, None)
            return
        self._shapes[release.key] = shapes_of(release)
        self._look_again(release.key)

    def _apply_workload(self, change: Change) -> None:
        before, after = change.before, change.after
        workload = after if isinstance(after, Workload) else None
        self._due.extend(self._relabel(*each) for each in self._roster.relabel(change.key, workload))
        self._roster.forget_ranks(change.key)
        budgets = self._budgets.set_workload(change.key, workload)
        if budgets:
            self._due.append(self._budgets.count(budgets, self._all, self._instances.get))
        self._look_again(change.key)
        if (
            isinstance(before, Workload)
            and isinstance(after, Workload)
            and _matters_to_queue(before) != _matters_to_queue(after)
        ):
            self._due.append(self._rank_again({change.key}))

    def _apply_class(self, changed: PriorityClass, *, gone: bool) -> None:
        classes = self._roster.classes
        workloads = [each for each in self._workloads.items() if isinstance(each, Workload)]
        before = {each.key: class_of(each.spec.priority, classes) for each in workloads}
        if gone:
            classes.pop(changed.meta.name, None)
        else:
            classes[changed.meta.name] = changed
        moved = {each.key for each in workloads if class_of(each.spec.priority, classes) != before[each.key]}
        for key in moved:
            self._roster.forget_ranks(key)
        if moved:
            self._due.append(self._rank_again(moved))

    def _apply_quota(self, quota: Quota, before: Object | None, *, gone: bool) -> None:
        """What is used of it is its status, and nothing new here."""
        if gone:
            self.table.drop_quota(quota.meta.namespace, quota.meta.name)
        elif isinstance(before, Quota) and before.spec == quota.spec:
            return
        else:
            self.table.set_quota(quota.meta.namespace, limit_of(quota))
        self._happen(ClusterEvent.QUOTA_CHANGED, None, quota.key)

    def _apply_reservation(self, value: Reservation, *, gone: bool) -> None:
        held = None if gone else held_of(value)
        if held is not None:
            self.table.reservations.set(held)
        elif self.table.reservations.drop(str(value.key)):
            self._happen(ClusterEvent.ROOM_FREED, None)

    def _all(self) -> list[Object]:
        return list(self._instances.items())

    def _rank_again(self, workloads: Set[Key]) -> Steps[None]:
        """Those of their instances that wait are queued anew, by what they are now; the others count as that."""
        names = {key.name for key in workloads}
        for piece in pieces(self._all(), FEW // 2):
            theirs = [each for each in piece if isinstance(each, Instance) and each.spec.workload in names]
            for key in [each.key for each in theirs if workload_key(each) in workloads]:
                now = self._instances.get(key)
                if isinstance(now, Instance):
                    self._rank_one(key, now)
            yield len(piece) + 3 * WRITTEN * len(theirs)
        self._happen(ClusterEvent.ROOM_FREED, None)

    def _rank_one(self, key: Key, instance: Instance) -> None:
        allocation = self.table.allocation(key)
        if allocation is not None:
            terms = replace(allocation.terms, rank=self._roster.rank(instance))
            self.table.set_allocation(key, allocation.node, allocation.shape, allocation.identity, terms)
        if self.queue.place(key):
            self.queue.remove(key)
            self._enqueue(key, instance)

    def _relabel(self, before: Identity, after: Identity) -> Steps[None]:
        """Instances are to others what their labels say now."""
        placed = yield from self.table.relabel(before, after)
        if placed:
            self._happen(ClusterEvent.PLACED, None)
            self._happen(ClusterEvent.ROOM_FREED, None)

    def _who(self, instance: Instance) -> Identity:
        allocation = self.table.allocation(instance.key)
        if allocation is not None and self._workloads.get(workload_key(instance)) is None:
            return allocation.identity
        return self._roster.identity(instance)

    def _look_again(self, arrived: Key) -> None:
        waiting = self._waiting_for.pop(arrived, None)
        if waiting is not None:
            self._due.append(self._look_at(list(waiting)))

    def _look_at(self, keys: Sequence[Key]) -> Steps[None]:
        for piece in pieces(keys, FEW):
            for key in piece:
                self._apply_instance(key, self._instances.get(key))
            yield 2 * WRITTEN * len(piece)

    # Instances.

    def _is_bound(self, change: Change) -> bool:
        """It is as it was promised, and counted since: most changes of a burst are that, or new instances."""
        after, place = change.after, change.place
        if place is None or type(after) is not Instance or not after.spec.node:
            return False
        promise = self._promises.get(place)  # type: ignore[call-overload]
        if promise is None or not _as_promised(promise, after) or after.status.phase is not _RESERVED:
            return False
        del self._promises[place]  # type: ignore[arg-type]
        return True

    def _apply_instance(self, key: Key, after: Object | None) -> None:
        stands = placement_state(after) if isinstance(after, Instance) else _NEITHER
        if not isinstance(after, Instance) or stands is _NEITHER:
            self._forget(key)
        elif stands is _PLACED:
            self._count(key, after)
        elif not self._promised(key, after.meta.uid):
            allocation = self.table.allocation(key)
            if key in self._promises or (allocation is not None and not allocation.terms.held):
                self._uncount(key)
            self._enqueue(key, after)

    def _forget(self, key: Key) -> None:
        self.queue.remove(key)
        self._uncount(key)

    def _uncount(self, key: Key) -> None:
        promise = self._promises.pop(key, None)
        allocation = self.table.allocation(key)
        if allocation is not None:
            self.table.drop_allocation(key)
            self._happen(ClusterEvent.ROOM_FREED, self.table.node(allocation.node), key)
        if promise is not None:
            self._gone(promise)

    def _promised(self, key: Key, uid: str) -> bool:
        promise = self._promises.get(key)
        return promise is not None and promise.uid == uid

    def _count(self, key: Key, instance: Instance) -> None:
        promise = self._promises.pop(key, None)
        if promise is not None and _as_promised(promise, instance):
            return  # It is counted since it was decided.
        self.queue.remove(key)
        shape = self._shape(instance)
        if shape is not None:
            shape = shape.form(instance.spec.variant)
        else:
            known = self.table.allocation(key)
            shape = known.shape if known is not None and known.node == instance.spec.node else None
        if shape is not None:
            new = self.table.allocation(key) is None or bool(self.nominated(key))
            terms = tenure_of(instance, shape, self._roster.rank(instance))
            ports = recorded(shape.any_ports, instance.spec.ports) if shape.any_ports else ()
            self.table.set_allocation(key, instance.spec.node, shape, self._who(instance), terms, ports)
            if new:
                self._happen(ClusterEvent.PLACED, self.table.node(instance.spec.node), key)

    def _enqueue(self, key: Key, instance: Instance) -> None:
        """A new one is active at once; one that is known keeps its place in the queue."""
        meta, spec = instance.meta, instance.spec
        daemon = bool(spec.pin) and bool(spec.home)
        if daemon and self._pools is not None and self.table.node(spec.pin) is None:
            self._wait_for(Key(Node.kind, "", spec.pin), instance)  # or it is another scheduler's
            return
        name = (meta.namespace, spec.workload, spec.release, spec.group)
        kin = self._kin.get(name)
        if kin is None:
            kin = self._kin_of(instance)
            if kin is None:
                return
            self._kin[name] = kin
        avoid = frozenset(spec.avoid) if spec.avoid else NOWHERE
        gates = kin.gates + spec.waits if spec.waits else kin.gates
        request = replace(kin, key=key, avoid=avoid, pin=spec.pin, daemon=daemon, gates=gates)
        held = instance.status.nominated
        if held and self.queue.place(request.key) is None and not self.nominated(request.key):
            self._hold(request, held, meta.created_at)  # as an earlier scheduler decided
        self.queue.add(request, meta.uid, meta.created_at)

    def _kin_of(self, instance: Instance) -> PlacementRequest | None:
        """What it and its like ask for; None: not all of that is here yet."""
        if instance.spec.claim is not None:
            made = claims.claim_ask(instance, instance.spec.claim)
            return made if self._is_ours(instance, made.shape) else None
        workload = self._workloads.get(workload_key(instance))
        if not isinstance(workload, Workload):
            self._wait_for(workload_key(instance), instance)
            return None
        shape = self._shape(instance)
        if shape is None:
            return None
        if not instance.spec.home and not self._is_ours(instance, shape):
            return None
        made = ask_of(instance, workload, shape, self._who(instance), self._roster.rank(instance))
        return replace(made, gates=workload.spec.gates)  # what it waits for by itself is its own

    def _is_ours(self, instance: Instance, shape: Shape) -> bool:
        if self.owns(shape.home):
            return True
        self.elsewhere[instance.key] = instance.meta.uid, shape.home
        return False

    def _shape(self, instance: Instance) -> Shape | None:
        """Of its main form. None: its release is not here yet; the instance is looked at again when it comes."""
        if instance.spec.claim is not None:
            return claims.shape_of(instance.spec.claim)
        release = release_key(instance)
        shape = self._shapes.get(release, {}).get(instance.spec.group)
        if shape is None:
            self._wait_for(release, instance)
        return shape

    def _wait_for(self, missing: Key, instance: Instance) -> None:
        self._waiting_for.setdefault(missing, {})[instance.key] = None

    # Decisions.

    def promise(
        self,
        entry: Entry,
        node: str,
        relaxed: tuple[str, ...] = (),
        context: Context | None = None,
        shape: Shape | None = None,
    ) -> Promise | None:
        """Count it at once, before it is written; None: the instance is not what it was any more. `shape`: the form
        that was chosen, if it is not the main one."""
        request = entry.request
        key = request.key
        instance, chosen = self._instances.get(key), self.table.node(node)
        if not isinstance(instance, Instance) or instance.meta.uid != entry.uid or chosen is None:
            return None
        terms, form = AllocationTerms(self._roster.rank(instance), instance.meta.created_at), shape or request.shape
        self.table.set_allocation(key, node, form, request.identity, terms)
        ports = self._chosen(key) if form.any_ports else None
        made = Promise(entry, instance, node, chosen.meta.version, relaxed, context, shape, ports)
        self._promises[key] = made
        if self.queue.hopes(_ONE_PLACED):  # Whoever is decided later sees it in the table.
            self._happen(ClusterEvent.PLACED, chosen, key)
        return made

    def waiting(self, entry: Entry) -> Instance | None:
        """The instance, if it is what it was when it was queued, and counted nowhere."""
        key = entry.request.key
        instance = self._instances.get(key)
        if (
            not isinstance(instance, Instance)
            or instance.meta.uid != entry.uid
            or self.table.allocation(key) is not None
        ):
            return None
        return instance

    def promise_all(
        self, entries: Sequence[Entry], instances: Sequence[Instance], slots: Sequence[int]
    ) -> list[Promise]:
        """As `promise` of each, one after another: of a class that takes room alone, whose instances are `waiting`."""
        if not slots:
            return []
        request, rank = entries[0].request, self._roster.rank(instances[0])
        keys = [each.request.key for each in entries]
        terms = [AllocationTerms(rank, each.meta.created_at) for each in instances]
        self.table.set_allocations(slots, keys, request.shape, request.identity, terms)
        nodes, promises = self.table.nodes, self._promises
        made: list[Promise] = []
        for entry, instance, slot in zip(entries, instances, slots, strict=True):
            node, key = nodes[slot], entry.request.key
            promises[key] = promise = Promise(entry, instance, node.meta.name, node.meta.version)
            made.append(promise)
            if self.queue.hopes(_ONE_PLACED):
                self._happen(ClusterEvent.PLACED, node, key)
        return made

    def _chosen(self, key: Key) -> dict[str, int]:
        allocation = self.table.allocations[key]
        return {each.name: number for each, number in zip(allocation.shape.any_ports, allocation.ports, strict=False)}

    # Room that is held.

    def nominated(self, key: Key) -> str:
        """The node where room is held for it; empty: nowhere."""
        allocation = self.table.allocation(key)
        return allocation.node if allocation is not None and allocation.terms.held else ""

    def nominate(self, entry: Entry, node: str, request: PlacementRequest | None = None) -> None:
        """Hold room for it there, and nowhere else; nowhere at all, if that is empty. `request`: in another form."""
        if node:
            self._hold(request or entry.request, node, entry.queued_at)
        elif self.nominated(entry.request.key):
            self._uncount(entry.request.key)

    def _hold(self, request: PlacementRequest, node: str, born: float) -> None:
        rank = Rank(request.priority, request.preempts, profile=request.profile)
        terms = AllocationTerms(rank, born, held=True)
        self.table.set_allocation(request.key, node, request.shape, request.identity, terms)

    def displaced(self, node: str, priority: int) -> list[Key]:
        """Those of lower priority for whom room is held there."""
        lowest = self.table.lodgings.lowest_held()
        if lowest is None or lowest >= priority:
            return []
        return [each.key for where, each in self.table.lodgings.held() if where == node and each.priority < priority]

    def evict(self, instances: Iterable[Instance], now: float) -> None:
        """They count as stopping from now on."""
        for each in instances:
            allocation = self.table.allocation(each.key)
            if allocation is not None:
                terms = replace(allocation.terms, until=now + allocation.shape.grace)
                self.table.set_allocation(each.key, allocation.node, allocation.shape, allocation.identity, terms)
                self._budgets.see(each, None)

    def look_again(self, keys: Iterable[Key]) -> None:
        """They are what the store says."""
        for key in keys:
            now = self._instances.get(key)
            self._budgets.see(None, now)
            self._apply_instance(key, now)

    def promised(self, key: Key) -> Promise | None:
        return self._promises.get(key)

    def take_back(self, promise: Promise) -> bool:
        """Its room is free again. True: the instance still waits for a node, and is not in the queue."""
        if self._promises.get(promise.key) is not promise:
            return False  # The mirror has shown its end, or that it is bound, before we heard of it.
        del self._promises[promise.key]
        self._forget(promise.key)
        now = self._instances.get(promise.key)
        return (
            isinstance(now, Instance)
            and now.meta.uid == promise.instance.meta.uid
            and placement_state(now) is PlacementState.WAITING
        )

    @property
    def promises(self) -> int:
        return len(self._promises)

    # At the start.

    def missing(self) -> Iterable[Key]:
        """Releases and workloads that instances name and that have not been seen."""
        return tuple(self._waiting_for)

    def without(self, missing: Key) -> None:
        """It does not exist: what is placed counts as nothing, and what is not placed goes on waiting for it."""
        for key in self._waiting_for.get(missing, ()):
            instance = self._instances.get(key)
            if isinstance(instance, Instance) and instance.spec.node and self.table.allocation(key) is None:
                log.warning("%s runs on %s, and its %s is gone: it counts as nothing", key, instance.node, missing)
                self.table.set_allocation(key, instance.spec.node, NOTHING)


def _stays(before: Object | None, after: Object | None) -> bool:
    """Where it is, and takes what it took: that it starts and runs is no news to a table."""
    if type(before) is not Instance or type(after) is not Instance or before.spec is not after.spec:
        return False
    same = before.meta.uid == after.meta.uid
    return same and placement_state(before) is _PLACED and placement_state(after) is _PLACED


def _as_promised(promise: Promise, instance: Instance) -> bool:
    spec = instance.spec
    return promise.node == spec.node and promise.instance.meta.uid == instance.meta.uid and spec.stop is None


def _matters(node: Node) -> tuple[object, ...]:
    """What placement looks at; the rest of a node may change without anybody being tried again."""
    status = node.status
    health = status.phase, status.pressure
    room = status.capacity, status.occupied
    return node.spec, node.meta.labels, health, room, status.engines, status.facts, status.ports


def _matters_to_queue(workload: Workload) -> tuple[object, ...]:
    spec = workload.spec
    spared = tuple(name for name, group in spec.groups.items() if group.disruption.preempt == "never")
    gangs = tuple((name, spec.gang_of(name), group.gang) for name, group in spec.groups.items() if group.gang)
    return spec.priority, spec.profile, spec.gates, spared, gangs, workload.meta.labels
