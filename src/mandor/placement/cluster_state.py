"""ClusterState: the table of a cluster, updated by changes of the objects that placement depends on."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from msgspec.structs import replace

from mandor.lib.steps import FEW, WRITTEN, Steps, pieces
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.node import Node
from mandor.model.priority import PriorityClass
from mandor.model.quota import Quota
from mandor.model.record import Namespace
from mandor.model.reservation import Reservation
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload
from mandor.placement import claims
from mandor.placement.allocation import Allocation
from mandor.placement.budgets import Budgets
from mandor.placement.conversion import (
    NOTHING,
    PlacementState,
    held_of,
    limit_of,
    placement_state,
    release_key,
    request_of,
    shapes_of,
    terms_of,
    workload_key,
)
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.occupancy import AllocationTerms, Rank
from mandor.placement.framework.points import ClusterEvent
from mandor.placement.framework.ports import recorded
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.volumes import KnownVolume
from mandor.placement.group_attributes import GroupAttributes
from mandor.placement.table import Table

Find = Callable[[Key], Object | None]
_PLACED, _WAITING = PlacementState.PLACED, PlacementState.WAITING


class Pending(Protocol):
    """Called for an instance that needs a node, when the instance or its workload or release changes."""

    def __call__(self, key: Key, instance: Instance, *, requeue: bool) -> None:
        """`requeue`: the workload has changed, so that an earlier request of the instance is void."""


class Notify(Protocol):
    """Called with each cluster event; the arguments are the fields of `ClusterChange`."""

    def __call__(
        self, event: ClusterEvent, node: Node | None = ..., instance: Key | None = ..., before: Node | None = ...
    ) -> None: ...


class ClusterState:
    """Counts objects in a table. Changes go in by `apply`, in order within a kind; the kinds may come in any order.

    An update of many instances is not made at once: it is due, and `catch_up` makes it in steps.
    """

    def __init__(
        self,
        find_instance: Find,
        find_workload: Find,
        pending: Pending,
        *,
        placed: Callable[[Key, Instance], bool] = lambda key, instance: False,
        ended: Callable[[Key], None] = lambda key: None,
        notify: Notify = lambda event, node=None, instance=None, before=None: None,
        seed: str = "",
        pools: frozenset[str] | None = None,
    ) -> None:
        """`find_instance` and `find_workload` return the current object, which may be newer than the last change that
        was applied. `placed` is called for an instance that has a node, and returns whether the table counts it there
        already. `ended` is called for an instance that the table does not count any more. `pools`: the pools whose
        nodes are counted; None: all pools.
        """
        self.table = Table(seed)
        self._find_instance, self._find_workload = find_instance, find_workload
        self._pending, self._placed, self._ended, self._notify = pending, placed, ended, notify
        self._pools = pools
        self._shapes: dict[Key, Mapping[str, Shape]] = {}
        """Shapes by release, then by group."""
        self._instances_of: dict[Key, dict[Key, None]] = {}
        """Keys of instances by workload, in the order of their creation."""
        self._groups = GroupAttributes(find_workload)
        self._budgets = Budgets(self.table.allocation_state)
        self._waiting_for: dict[Key, dict[Key, None]] = {}  # ordered: the first instance is decided first
        """Instances by the key of a missing object: a release, a workload or a node."""
        self._due: deque[Steps[None]] = deque()

    def apply(self, before: Object | None, after: Object | None) -> None:
        """Apply the change of one object. Created: no `before`. Deleted: no `after`."""
        value = before if after is None else after
        if type(value) is Instance:
            self._apply_instance(before, after)
        elif isinstance(value, Node):
            self._apply_node(value, before, gone=after is None)
        elif isinstance(value, Workload):
            self._apply_workload(value, before, gone=after is None)
        elif isinstance(value, Release):
            self._apply_release(value, before, gone=after is None)
        elif isinstance(value, Volume):
            if self.table.set_volume(value.key, KnownVolume.of(value) if after is not None else None):
                self._notify(ClusterEvent.VOLUME)
        elif isinstance(value, PriorityClass):
            changed = self._groups.set_class(value.meta.name, value if after is not None else None)
            self._due.extend(map(self._update_attributes, changed))
        elif isinstance(value, Namespace):
            relabelled = self._groups.set_namespace(value.meta.name, value.meta.labels if after is not None else {})
            self._due.extend(map(self._update_attributes, relabelled))
        elif isinstance(value, Reservation):
            self._apply_reservation(value, gone=after is None)
        elif isinstance(value, Quota):
            self._apply_quota(value, before, gone=after is None)

    @property
    def behind(self) -> bool:
        """Return whether updates are due."""
        return bool(self._due)

    def catch_up(self) -> Steps[None]:
        """Make the updates that are due; each instance is read when its turn comes, as changes go in meanwhile."""
        while self._due:
            yield from self._due[0]
            self._due.popleft()

    # Nodes, quotas and reservations.

    def owns(self, pool: str) -> bool:
        return self._pools is None or pool in self._pools

    def _apply_node(self, node: Node, before: Object | None, *, gone: bool) -> None:
        if gone or not self.owns(node.spec.pool):
            claims.remove_node(self.table, node.meta.name)
            return
        new = self.table.node(node.meta.name) is None
        claims.set_node(self.table, node)
        if new or not isinstance(before, Node):
            self._notify(ClusterEvent.NODE_ADDED, node)
            self._resume_waiting(node.key)
            return
        if _matters(before) != _matters(node):
            self._notify(ClusterEvent.NODE_CHANGED, node, before=before)
        if before.status.usage != node.status.usage:
            self._notify(ClusterEvent.LOAD_CHANGED, node)

    def _apply_quota(self, quota: Quota, before: Object | None, *, gone: bool) -> None:
        """Ignore changes of the status, which only reports the usage."""
        if gone:
            self.table.drop_quota(quota.meta.namespace, quota.meta.name)
        elif isinstance(before, Quota) and before.spec == quota.spec:
            return
        else:
            self.table.set_quota(quota.meta.namespace, limit_of(quota))
        self._notify(ClusterEvent.QUOTA_CHANGED, instance=quota.key)

    def _apply_reservation(self, value: Reservation, *, gone: bool) -> None:
        held = None if gone else held_of(value)
        if held is not None:
            self.table.reservations.set(held)
        elif self.table.reservations.drop(str(value.key)):
            self._notify(ClusterEvent.ROOM_FREED)

    # Workloads and releases.

    def _apply_release(self, release: Release, before: Object | None, *, gone: bool) -> None:
        if gone:
            self._shapes.pop(release.key, None)
            return
        self._shapes[release.key] = shapes_of(release)
        self._resume_waiting(release.key)
        if isinstance(before, Release) and before.spec != release.spec:
            self._due.append(self._recount_release(release))

    def _recount_release(self, release: Release) -> Steps[None]:
        owner = Key(Workload.kind, release.meta.namespace, release.spec.workload)
        yield from self._recount_all(self.keys_of(owner))
        self._notify(ClusterEvent.ROOM_FREED)

    def _apply_workload(self, workload: Workload, before: Object | None, *, gone: bool) -> None:
        key = workload.key
        if gone:
            self._groups.forget(key)
            self._budgets.set_workload(key, None)
            return
        if isinstance(before, Workload) and before.spec is workload.spec and before.meta.labels == workload.meta.labels:
            return  # only the status has changed
        budgets = self._budgets.set_workload(key, workload)
        if budgets:
            self._due.append(self._budgets.count(budgets, self.keys_of(key), self._find_instance))
        if not isinstance(before, Workload):
            self._groups.forget(key)
            self._waiting_for.pop(key, None)
            if key in self._instances_of:
                self._due.append(self._recount_all(self.keys_of(key)))
        elif _matters_to_instances(before) != _matters_to_instances(workload):
            self._groups.forget(key)
            self._due.append(self._update_attributes(key))

    def _update_attributes(self, workload: Key) -> Steps[None]:
        """Apply the current priority and labels of a workload to its instances."""
        relabelled = False
        for piece in pieces(self.keys_of(workload), FEW // 2):
            for key in piece:
                now = self._find_instance(key)
                if isinstance(now, Instance):
                    relabelled |= self._update_allocation(key, now)
                    if placement_state(now) is _WAITING:
                        self._pending(key, now, requeue=True)
            yield 3 * WRITTEN * len(piece)
        if relabelled:
            self._notify(ClusterEvent.PLACED)
        self._notify(ClusterEvent.ROOM_FREED)

    def _update_allocation(self, key: Key, instance: Instance) -> bool:
        """Update rank and identity of an allocation; return whether the identity has changed."""
        known = self.table.allocation(key)
        if known is None:
            return False
        if known.terms.held:
            request = self.request(instance)
            if request is not None:
                self.hold(replace(request, shape=known.shape), known.node, known.terms.born)
            return False
        rank, identity = self._attributes(instance, known)
        self.table.set_allocation(key, known.node, known.shape, identity, replace(known.terms, rank=rank))
        return identity != known.identity

    def _attributes(self, instance: Instance, known: Allocation | None) -> tuple[Rank, Identity]:
        """Return rank and identity; an instance without its workload keeps those of its allocation."""
        if known is not None and instance.spec.claim is None and self._find_workload(workload_key(instance)) is None:
            return known.terms.rank, known.identity
        return self._groups.rank(instance), self._groups.identity(instance)

    # Instances.

    def keys_of(self, workload: Key) -> list[Key]:
        """Return the keys of the instances of a workload."""
        return list(self._instances_of.get(workload, ()))

    def rank(self, instance: Instance) -> Rank:
        return self._groups.rank(instance)

    def request(self, instance: Instance) -> PlacementRequest | None:
        """Return the request of an instance, pending or placed; None: its release or workload is missing."""
        if instance.spec.claim is not None:
            return claims.claim_request(instance, instance.spec.claim)
        workload, shape = self._find_workload(workload_key(instance)), self._shape(instance)
        if not isinstance(workload, Workload) or shape is None:
            return None
        return request_of(instance, workload, shape, self._groups.identity(instance), self._groups.rank(instance))

    def _shape(self, instance: Instance) -> Shape | None:
        """Return the shape of the main form; None: the release is missing."""
        if instance.spec.claim is not None:
            return claims.shape_of(instance.spec.claim)
        return self._shapes.get(release_key(instance), {}).get(instance.spec.group)

    def _apply_instance(self, before: Object | None, after: Object | None) -> None:
        if type(before) is Instance and type(after) is Instance:
            if before.meta.uid != after.meta.uid:  # another instance of the same name
                self._apply_instance(before, None)
                self._apply_instance(None, after)
                return
            if self._budgets.any:
                self._budgets.see(before, after)
            if before.spec is after.spec and placement_state(before) is placement_state(after) is _PLACED:
                return  # The table need not change.
            self._recount(after.key, after)
            return
        self._budgets.see(before, after)
        if isinstance(after, Instance):
            key, owner = after.key, workload_key(after)
            theirs = self._instances_of.get(owner)
            if theirs is None:
                theirs = self._instances_of[owner] = {}
            theirs[key] = None
        elif isinstance(before, Instance):
            key, owner = before.key, workload_key(before)
            theirs = self._instances_of.get(owner, {})
            theirs.pop(key, None)
            if not theirs:
                self._instances_of.pop(owner, None)
            self._end_wait(key, before)
        self._recount(key, after)

    def _recount(self, key: Key, now: Object | None) -> None:
        stands = placement_state(now) if isinstance(now, Instance) else PlacementState.NEITHER
        if isinstance(now, Instance) and stands is _PLACED:
            if not self._placed(key, now):
                self._count(key, now)
        elif isinstance(now, Instance) and stands is _WAITING:
            self._pending(key, now, requeue=False)
        else:
            self.free(key)
            self._ended(key)

    def _count(self, key: Key, instance: Instance) -> None:
        """Count an instance on its node. Without its release it keeps the shape that was counted before."""
        known, shape = self.table.allocation(key), self._shape(instance)
        if shape is not None:
            shape = shape.form(instance.spec.variant)
        else:
            shape = known.shape if known is not None and known.node == instance.spec.node else NOTHING
        self.wait_for_missing(key, instance)
        rank, identity = self._attributes(instance, known)
        ports = recorded(shape.any_ports, instance.spec.ports) if shape.any_ports else ()
        self.table.set_allocation(key, instance.spec.node, shape, identity, terms_of(instance, shape, rank), ports)
        if known is None or known.terms.held:
            self._notify(ClusterEvent.PLACED, self.table.node(instance.spec.node), key)

    def free(self, key: Key) -> None:
        """Free the allocation of an instance, if there is one."""
        allocation = self.table.allocation(key)
        if allocation is not None:
            self.table.drop_allocation(key)
            self._notify(ClusterEvent.ROOM_FREED, self.table.node(allocation.node), key)

    def hold(self, request: PlacementRequest, node: str, born: float) -> None:
        """Hold room on a node for a pending instance. `born`: the time of its creation."""
        rank = Rank(request.priority, request.preempts, profile=request.profile)
        terms = AllocationTerms(rank, born, held=True)
        self.table.set_allocation(request.key, node, request.shape, request.identity, terms)

    def held(self, key: Key) -> str:
        """Return the node where room is held for a pending instance; empty: no node."""
        allocation = self.table.allocation(key)
        return allocation.node if allocation is not None and allocation.terms.held else ""

    def assume_stopping(self, instance: Instance, now: float) -> None:
        """Count an instance as stopping before the change that stops it is applied; `reset` undoes this."""
        allocation = self.table.allocation(instance.key)
        if allocation is not None:
            terms = replace(allocation.terms, until=now + allocation.shape.grace)
            self.table.set_allocation(instance.key, allocation.node, allocation.shape, allocation.identity, terms)
            self._budgets.see(instance, None)

    def reset(self, key: Key) -> None:
        """Count an instance by its current object."""
        now = self._find_instance(key)
        self._budgets.see(None, now)
        self._recount(key, now)

    # Instances that wait for a missing object.

    def wait_for_missing(self, key: Key, instance: Instance) -> None:
        """Apply an instance again when its release and its workload have come, if they are missing."""
        if instance.spec.claim is None:
            if self._find_workload(workload_key(instance)) is None:
                self.wait_for(workload_key(instance), key)
            if self._shape(instance) is None:
                self.wait_for(release_key(instance), key)

    def wait_for(self, missing: Key, key: Key) -> None:
        """Apply an instance again when an object has come."""
        self._waiting_for.setdefault(missing, {})[key] = None

    def _end_wait(self, key: Key, instance: Instance) -> None:
        for missing in (workload_key(instance), release_key(instance), Key(Node.kind, "", instance.spec.pin)):
            waiting = self._waiting_for.get(missing, {})
            waiting.pop(key, None)
            if not waiting:
                self._waiting_for.pop(missing, None)

    def missing(self) -> Iterable[Key]:
        """Return the keys of missing objects for which instances wait."""
        return tuple(self._waiting_for)

    def waiting_for(self, missing: Key) -> Iterable[Key]:
        """Return the keys of the instances that wait for an object."""
        return tuple(self._waiting_for.get(missing, ()))

    def _resume_waiting(self, arrived: Key) -> None:
        waiting = self._waiting_for.pop(arrived, None)
        if waiting is not None:
            self._due.append(self._recount_all(list(waiting)))

    def _recount_all(self, keys: list[Key]) -> Steps[None]:
        for piece in pieces(keys, FEW):
            for key in piece:
                self._recount(key, self._find_instance(key))
            yield 2 * WRITTEN * len(piece)


def _matters(node: Node) -> tuple[object, ...]:
    """Return the fields of a node that placement depends on."""
    status = node.status
    health = status.phase, status.pressure
    room = status.capacity, status.occupied
    return node.spec, node.meta.labels, health, room, status.engines, status.facts, status.ports


def _matters_to_instances(workload: Workload) -> tuple[object, ...]:
    """Return the fields of a workload that the requests and allocations of its instances depend on."""
    spec = workload.spec
    spared = tuple(name for name, group in spec.groups.items() if group.disruption.preempt == "never")
    gangs = tuple((name, spec.gang_of(name), group.gang) for name, group in spec.groups.items() if group.gang)
    return spec.priority, spec.profile, spec.gates, spared, gangs, workload.meta.labels
