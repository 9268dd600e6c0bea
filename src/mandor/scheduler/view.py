"""The scheduler's view of the cluster: the table and the queue, updated by store changes, and the assigned attempts."""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set

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
    held_of,
    limit_of,
    placement_state,
    release_key,
    request_of,
    shapes_of,
    terms_of,
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
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.queue import SchedulingQueue
from mandor.store.base import Change
from mandor.store.mirror import Mirror

log = logging.getLogger(__name__)

DETAILS_MOST = 1024
"""Changes kept between two turns; above that, every instance that waits for such an event is retried without hints."""

NOWHERE: frozenset[str] = frozenset()
_ONE_PLACED = frozenset({ClusterEvent.PLACED})
_NEITHER, _PLACED, _RESERVED = PlacementState.NEITHER, PlacementState.PLACED, Phase.RESERVED


class View:
    """Changes go in by `apply`, in order within a kind; the kinds may come in any order."""

    def __init__(
        self,
        queue: SchedulingQueue,
        instances: Mirror,
        workloads: Mirror,
        *,
        seed: str = "",
        gone: Callable[[Attempt], None] = lambda attempt: None,
        pools: frozenset[str] | None = None,
    ) -> None:
        """`gone` is called with an attempt whose instance is deleted or stopped before the bind. `pools`: the node
        pools of this scheduler; None: all pools."""
        self.table = Table(seed)
        self.queue = queue
        self.events: set[ClusterEvent] = set()
        """Events since the queue was last updated."""
        self._details: list[ClusterChange] = []
        self._gone = gone
        self._pools = pools
        self._instances = instances
        self._workloads = workloads
        self._shapes: dict[Key, Mapping[str, Shape]] = {}
        self._groups = GroupAttributes(workloads.get)
        self._budgets = Budgets(self.table.allocation_state)
        self._class_requests: dict[tuple[str, str, str, str], PlacementRequest] = {}
        """Requests shared by the instances of a group, by namespace, workload, release and group; cleared by every
        change of another kind than Instance."""
        self._assigned: dict[Key, Attempt] = {}
        self.elsewhere: dict[Key, tuple[str, str]] = {}
        """Pending instances for pools of other schedulers, with uid and pool."""
        self._waiting_for: dict[Key, dict[Key, None]] = {}  # ordered: the first instance is decided first
        """Instances by the key of the missing object: a release, a workload or a node."""
        self._due: deque[Steps[None]] = deque()
        """Updates that concern many instances and run in steps."""

    def apply_all(self, changes: Sequence[Change]) -> None:
        """Apply changes of one kind, in order."""
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
        self._class_requests.clear()
        if isinstance(value, Node):
            self._apply_node(value, change.before, gone=change.after is None)
        elif isinstance(value, Release):
            self._apply_release(value, gone=change.after is None)
        elif isinstance(value, Workload):
            self._apply_workload(change)
        elif isinstance(value, Volume):
            known = KnownVolume.of(value) if change.after is not None else None
            if self.table.set_volume(change.key, known):
                self._add_event(ClusterEvent.VOLUME, None)
        elif isinstance(value, PriorityClass):
            self._apply_class(value, gone=change.after is None)
        elif isinstance(value, Reservation):
            self._apply_reservation(value, gone=change.after is None)
        elif isinstance(value, Quota):
            self._apply_quota(value, change.before, gone=change.after is None)

    @property
    def behind(self) -> bool:
        """Return whether updates are due (`catch_up`) before the next decision."""
        return bool(self._due)

    def catch_up(self) -> Steps[None]:
        """Run the updates that are due; each instance is read when its turn comes, as changes go in meanwhile."""
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
            self._add_event(ClusterEvent.NODE_ADDED, node)
            self._resume_waiting(node.key)
            return
        if _matters(before) != _matters(node):
            self._add_event(ClusterEvent.NODE_CHANGED, node, before=before)
        if before.status.usage != node.status.usage:
            self._add_event(ClusterEvent.LOAD_CHANGED, node)

    def owns(self, pool: str) -> bool:
        return self._pools is None or pool in self._pools

    def _add_event(
        self, event: ClusterEvent, node: Node | None, instance: Key | None = None, *, before: Node | None = None
    ) -> None:
        self.events.add(event)
        if len(self._details) <= DETAILS_MOST:
            self._details.append(ClusterChange(event, node, instance, before))

    def take_events(self) -> tuple[set[ClusterEvent], list[ClusterChange]]:
        """Return and reset events and changes; the changes are empty when there were more than `DETAILS_MOST`."""
        events, details = self.events, self._details
        self.events, self._details = set(), []
        return events, details if len(details) <= DETAILS_MOST else []

    def _apply_release(self, release: Release, *, gone: bool) -> None:
        if gone:
            self._shapes.pop(release.key, None)
            return
        self._shapes[release.key] = shapes_of(release)
        self._resume_waiting(release.key)

    def _apply_workload(self, change: Change) -> None:
        before, after = change.before, change.after
        workload = after if isinstance(after, Workload) else None
        self._due.extend(self._relabel(*each) for each in self._groups.relabel(change.key, workload))
        self._groups.forget_ranks(change.key)
        budgets = self._budgets.set_workload(change.key, workload)
        if budgets:
            self._due.append(self._budgets.count(budgets, self._all, self._instances.get))
        self._resume_waiting(change.key)
        if (
            isinstance(before, Workload)
            and isinstance(after, Workload)
            and _matters_to_queue(before) != _matters_to_queue(after)
        ):
            self._due.append(self._update_ranks({change.key}))

    def _apply_class(self, changed: PriorityClass, *, gone: bool) -> None:
        classes = self._groups.classes
        workloads = [each for each in self._workloads.items() if isinstance(each, Workload)]
        before = {each.key: class_of(each.spec.priority, classes) for each in workloads}
        if gone:
            classes.pop(changed.meta.name, None)
        else:
            classes[changed.meta.name] = changed
        moved = {each.key for each in workloads if class_of(each.spec.priority, classes) != before[each.key]}
        for key in moved:
            self._groups.forget_ranks(key)
        if moved:
            self._due.append(self._update_ranks(moved))

    def _apply_quota(self, quota: Quota, before: Object | None, *, gone: bool) -> None:
        """Ignore changes of the status, which only reports the usage."""
        if gone:
            self.table.drop_quota(quota.meta.namespace, quota.meta.name)
        elif isinstance(before, Quota) and before.spec == quota.spec:
            return
        else:
            self.table.set_quota(quota.meta.namespace, limit_of(quota))
        self._add_event(ClusterEvent.QUOTA_CHANGED, None, quota.key)

    def _apply_reservation(self, value: Reservation, *, gone: bool) -> None:
        held = None if gone else held_of(value)
        if held is not None:
            self.table.reservations.set(held)
        elif self.table.reservations.drop(str(value.key)):
            self._add_event(ClusterEvent.ROOM_FREED, None)

    def _all(self) -> list[Object]:
        return list(self._instances.items())

    def _update_ranks(self, workloads: Set[Key]) -> Steps[None]:
        """Apply the current priority of these workloads to their placed and queued instances."""
        names = {key.name for key in workloads}
        for piece in pieces(self._all(), FEW // 2):
            theirs = [each for each in piece if isinstance(each, Instance) and each.spec.workload in names]
            for key in [each.key for each in theirs if workload_key(each) in workloads]:
                now = self._instances.get(key)
                if isinstance(now, Instance):
                    self._update_rank(key, now)
            yield len(piece) + 3 * WRITTEN * len(theirs)
        self._add_event(ClusterEvent.ROOM_FREED, None)

    def _update_rank(self, key: Key, instance: Instance) -> None:
        allocation = self.table.allocation(key)
        if allocation is not None:
            terms = replace(allocation.terms, rank=self._groups.rank(instance))
            self.table.set_allocation(key, allocation.node, allocation.shape, allocation.identity, terms)
        if self.queue.state(key):
            self.queue.remove(key)
            self._enqueue(key, instance)

    def _relabel(self, before: Identity, after: Identity) -> Steps[None]:
        """Count the instances of a group under its new labels."""
        placed = yield from self.table.relabel(before, after)
        if placed:
            self._add_event(ClusterEvent.PLACED, None)
            self._add_event(ClusterEvent.ROOM_FREED, None)

    def _identity(self, instance: Instance) -> Identity:
        allocation = self.table.allocation(instance.key)
        if allocation is not None and self._workloads.get(workload_key(instance)) is None:
            return allocation.identity
        return self._groups.identity(instance)

    def _resume_waiting(self, arrived: Key) -> None:
        waiting = self._waiting_for.pop(arrived, None)
        if waiting is not None:
            self._due.append(self._apply_again(list(waiting)))

    def _apply_again(self, keys: Sequence[Key]) -> Steps[None]:
        for piece in pieces(keys, FEW):
            for key in piece:
                self._apply_instance(key, self._instances.get(key))
            yield 2 * WRITTEN * len(piece)

    # Instances.

    def _is_bound(self, change: Change) -> bool:
        """Return whether the change is the bind of an assigned attempt, which the table counts already.

        In a burst most changes are that, or new instances.
        """
        after, key = change.after, change.key_tuple
        if key is None or type(after) is not Instance or not after.spec.node:
            return False
        attempt = self._assigned.get(key)  # type: ignore[call-overload]
        if attempt is None or not _as_assigned(attempt, after) or after.status.phase is not _RESERVED:
            return False
        del self._assigned[key]  # type: ignore[arg-type]
        return True

    def _apply_instance(self, key: Key, after: Object | None) -> None:
        stands = placement_state(after) if isinstance(after, Instance) else _NEITHER
        if not isinstance(after, Instance) or stands is _NEITHER:
            self._forget(key)
        elif stands is _PLACED:
            self._count(key, after)
        elif not self._is_assigned(key, after.meta.uid):
            allocation = self.table.allocation(key)
            if key in self._assigned or (allocation is not None and not allocation.terms.held):
                self._uncount(key)
            self._enqueue(key, after)

    def _forget(self, key: Key) -> None:
        self.queue.remove(key)
        self._uncount(key)

    def _uncount(self, key: Key) -> None:
        attempt = self._assigned.pop(key, None)
        allocation = self.table.allocation(key)
        if allocation is not None:
            self.table.drop_allocation(key)
            self._add_event(ClusterEvent.ROOM_FREED, self.table.node(allocation.node), key)
        if attempt is not None:
            self._gone(attempt)

    def _is_assigned(self, key: Key, uid: str) -> bool:
        attempt = self._assigned.get(key)
        return attempt is not None and attempt.uid == uid

    def _count(self, key: Key, instance: Instance) -> None:
        attempt = self._assigned.pop(key, None)
        if attempt is not None and _as_assigned(attempt, instance):
            return  # Counted since the decision.
        self.queue.remove(key)
        shape = self._shape(instance)
        if shape is not None:
            shape = shape.form(instance.spec.variant)
        else:
            known = self.table.allocation(key)
            shape = known.shape if known is not None and known.node == instance.spec.node else None
        if shape is not None:
            new = self.table.allocation(key) is None or bool(self.nominated(key))
            terms = terms_of(instance, shape, self._groups.rank(instance))
            ports = recorded(shape.any_ports, instance.spec.ports) if shape.any_ports else ()
            self.table.set_allocation(key, instance.spec.node, shape, self._identity(instance), terms, ports)
            if new:
                self._add_event(ClusterEvent.PLACED, self.table.node(instance.spec.node), key)

    def _enqueue(self, key: Key, instance: Instance) -> None:
        """Queue a pending instance; if it is in the queue already, update its request."""
        meta, spec = instance.meta, instance.spec
        daemon = bool(spec.pin) and bool(spec.home)
        if daemon and self._pools is not None and self.table.node(spec.pin) is None:
            self._wait_for(Key(Node.kind, "", spec.pin), instance)  # or the node belongs to another scheduler
            return
        name = (meta.namespace, spec.workload, spec.release, spec.group)
        shared = self._class_requests.get(name)
        if shared is None:
            shared = self._make_class_request(instance)
            if shared is None:
                return
            self._class_requests[name] = shared
        avoid = frozenset(spec.avoid) if spec.avoid else NOWHERE
        request = PlacementRequest(
            key,
            shared.shape,
            shared.priority,
            shared.profile,
            avoid,
            identity=shared.identity,
            pin=spec.pin,
            daemon=daemon,
            gates=shared.gates + spec.waits if spec.waits else shared.gates,
            preempts=shared.preempts,
            member=shared.member,
        )
        held = instance.status.nominated
        if held and self.queue.state(request.key) is None and not self.nominated(request.key):
            self._hold(request, held, meta.created_at)  # decided by an earlier leader
        self.queue.add(request, meta.uid, meta.created_at)

    def _make_class_request(self, instance: Instance) -> PlacementRequest | None:
        """Return the shared request of a group; None: an object is missing, or the pool is not ours."""
        if instance.spec.claim is not None:
            made = claims.claim_request(instance, instance.spec.claim)
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
        made = request_of(instance, workload, shape, self._identity(instance), self._groups.rank(instance))
        return replace(made, gates=workload.spec.gates)  # gates of a single instance are added later

    def _is_ours(self, instance: Instance, shape: Shape) -> bool:
        if self.owns(shape.home):
            return True
        self.elsewhere[instance.key] = instance.meta.uid, shape.home
        return False

    def _shape(self, instance: Instance) -> Shape | None:
        """Return the shape of the main form; None: the release is not known yet, and the instance waits for it."""
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

    def assign(
        self,
        attempt: Attempt,
        node: str,
        relaxed: tuple[str, ...] = (),
        context: Context | None = None,
        shape: Shape | None = None,
    ) -> bool:
        """Count an attempt on its node before the bind is written; return False if the instance has changed.

        `shape`: the chosen form; None: the main form.
        """
        request = attempt.request
        key = request.key
        instance, chosen = self._instances.get(key), self.table.node(node)
        if not isinstance(instance, Instance) or instance.meta.uid != attempt.uid or chosen is None:
            return False
        terms, form = AllocationTerms(self._groups.rank(instance), instance.meta.created_at), shape or request.shape
        self.table.set_allocation(key, node, form, request.identity, terms)
        ports = self._chosen(key) if form.any_ports else None
        attempt.assign(instance, node, chosen.meta.version, relaxed, context, shape, ports)
        self._assigned[key] = attempt
        if self.queue.awaits(_ONE_PLACED):  # Later decisions see it in the table.
            self._add_event(ClusterEvent.PLACED, chosen, key)
        return True

    def unassigned(self, attempt: Attempt) -> Instance | None:
        """Return the instance of an attempt if it was not replaced and the table does not count it."""
        key = attempt.request.key
        instance = self._instances.get(key)
        if (
            not isinstance(instance, Instance)
            or instance.meta.uid != attempt.uid
            or self.table.allocation(key) is not None
        ):
            return None
        return instance

    def assign_all(self, attempts: Sequence[Attempt], instances: Sequence[Instance], slots: Sequence[int]) -> None:
        """Assign replicas that take nothing but resources and are `unassigned`; the same as `assign` for each."""
        if not slots:
            return
        request, rank = attempts[0].request, self._groups.rank(instances[0])
        terms = [AllocationTerms(rank, each.meta.created_at) for each in instances]
        self.table.set_allocations(
            slots, [each.request.key for each in attempts], request.shape, request.identity, terms
        )
        nodes, assigned = self.table.nodes, self._assigned
        for attempt, instance, slot in zip(attempts, instances, slots, strict=True):
            node, key = nodes[slot], attempt.request.key
            attempt.assign(instance, node.meta.name, node.meta.version)
            assigned[key] = attempt
            if self.queue.awaits(_ONE_PLACED):
                self._add_event(ClusterEvent.PLACED, node, key)

    def _chosen(self, key: Key) -> dict[str, int]:
        allocation = self.table.allocations[key]
        return {each.name: number for each, number in zip(allocation.shape.any_ports, allocation.ports, strict=False)}

    # Room that is held.

    def nominated(self, key: Key) -> str:
        """Return the node where room is held for a pending instance; empty: no node."""
        allocation = self.table.allocation(key)
        return allocation.node if allocation is not None and allocation.terms.held else ""

    def nominate(self, attempt: Attempt, node: str, request: PlacementRequest | None = None) -> None:
        """Hold room on this node and no other; an empty name holds none. `request`: the request in the chosen form."""
        if node:
            self._hold(request or attempt.request, node, attempt.queued_at)
        elif self.nominated(attempt.request.key):
            self._uncount(attempt.request.key)

    def _hold(self, request: PlacementRequest, node: str, born: float) -> None:
        rank = Rank(request.priority, request.preempts, profile=request.profile)
        self.table.set_allocation(
            request.key, node, request.shape, request.identity, AllocationTerms(rank, born, held=True)
        )

    def displaced(self, node: str, priority: int) -> list[Key]:
        """Return the pending instances of lower priority for which room is held on a node."""
        lowest = self.table.allocation_state.lowest_held()
        if lowest is None or lowest >= priority:
            return []
        return [
            each.key for where, each in self.table.allocation_state.held() if where == node and each.priority < priority
        ]

    def evict(self, instances: Iterable[Instance], now: float) -> None:
        """Count instances as stopping, before their agents report it."""
        for each in instances:
            allocation = self.table.allocation(each.key)
            if allocation is not None:
                terms = replace(allocation.terms, until=now + allocation.shape.grace)
                self.table.set_allocation(each.key, allocation.node, allocation.shape, allocation.identity, terms)
                self._budgets.see(each, None)

    def reset(self, keys: Iterable[Key]) -> None:
        """Count instances as the store shows them."""
        for key in keys:
            now = self._instances.get(key)
            self._budgets.see(None, now)
            self._apply_instance(key, now)

    def assigned(self, key: Key) -> Attempt | None:
        """Return the attempt that has a node and no bind yet."""
        return self._assigned.get(key)

    def withdraw(self, attempt: Attempt) -> bool:
        """Free the node of an attempt; return whether the instance still needs one. It is not in the queue then."""
        if self._assigned.get(attempt.key) is not attempt:
            return False  # The mirror has already shown the bind, or the end of the instance.
        del self._assigned[attempt.key]
        self._forget(attempt.key)
        now = self._instances.get(attempt.key)
        return (
            isinstance(now, Instance) and now.meta.uid == attempt.uid and placement_state(now) is PlacementState.WAITING
        )

    @property
    def binding(self) -> int:
        """The number of attempts with a node and no bind yet."""
        return len(self._assigned)

    # At the start.

    def missing(self) -> Iterable[Key]:
        """Return the keys of releases and workloads that instances refer to and that have not been seen."""
        return tuple(self._waiting_for)

    def without(self, missing: Key) -> None:
        """Handle a missing object: placed instances count with no resources, pending ones go on waiting for it."""
        for key in self._waiting_for.get(missing, ()):
            instance = self._instances.get(key)
            if isinstance(instance, Instance) and instance.spec.node and self.table.allocation(key) is None:
                log.warning("%s on %s has no %s: it is counted with no resources", key, instance.node, missing)
                self.table.set_allocation(key, instance.spec.node, NOTHING)


def _stays(before: Object | None, after: Object | None) -> bool:
    """Return whether an instance stays placed with the same spec, so that the table need not change."""
    if type(before) is not Instance or type(after) is not Instance or before.spec is not after.spec:
        return False
    same = before.meta.uid == after.meta.uid
    return same and placement_state(before) is _PLACED and placement_state(after) is _PLACED


def _as_assigned(attempt: Attempt, instance: Instance) -> bool:
    spec = instance.spec
    return attempt.node == spec.node and attempt.uid == instance.meta.uid and spec.stop is None


def _matters(node: Node) -> tuple[object, ...]:
    """Return the fields of a node that placement depends on."""
    status = node.status
    health = status.phase, status.pressure
    room = status.capacity, status.occupied
    return node.spec, node.meta.labels, health, room, status.engines, status.facts, status.ports


def _matters_to_queue(workload: Workload) -> tuple[object, ...]:
    spec = workload.spec
    spared = tuple(name for name, group in spec.groups.items() if group.disruption.preempt == "never")
    gangs = tuple((name, spec.gang_of(name), group.gang) for name, group in spec.groups.items() if group.gang)
    return spec.priority, spec.profile, spec.gates, spared, gangs, workload.meta.labels
