"""The scheduler's view of the cluster: its state, the queue of pending instances, and the assigned attempts."""

import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.workload import Release
from mandor.placement.cluster_state import ClusterState
from mandor.placement.conversion import PlacementState, placement_state
from mandor.placement.framework.context import Context
from mandor.placement.framework.occupancy import AllocationTerms
from mandor.placement.framework.points import ClusterChange, ClusterEvent
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.queue import SchedulingQueue
from mandor.store.base import Change
from mandor.store.mirror import Mirror

log = logging.getLogger(__name__)

DETAILS_MOST = 1024
"""Changes kept between two turns; above that, every instance that waits for such an event is retried without hints."""

NOWHERE: frozenset[str] = frozenset()
_ONE_PLACED = frozenset({ClusterEvent.PLACED})
_RESERVED = Phase.RESERVED


class View:
    """Changes go in by `apply_all`, in order within a kind; the kinds may come in any order."""

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
        self.state = ClusterState(
            instances.get,
            workloads.get,
            self._pending,
            placed=self._placed,
            ended=self._ended,
            notify=self._add_event,
            seed=seed,
            pools=pools,
        )
        self.table = self.state.table
        self.queue = queue
        self.events: set[ClusterEvent] = set()
        """Events since the queue was last updated."""
        self._details: list[ClusterChange] = []
        self._gone = gone
        self._pools = pools
        self._instances = instances
        self._class_requests: dict[tuple[str, str, str, str], PlacementRequest] = {}
        """Requests shared by the instances of a group, by namespace, workload, release and group; cleared by every
        change of another kind than Instance."""
        self._assigned: dict[Key, Attempt] = {}
        self.elsewhere: dict[Key, tuple[str, str]] = {}
        """Pending instances for pools of other schedulers, with uid and pool."""

    def apply_all(self, changes: Sequence[Change]) -> None:
        """Apply changes of one kind, in order."""
        if not isinstance(changes[0].value, Instance):
            self._class_requests.clear()
        for change in changes:
            if not self._is_bound(change):
                self.state.apply(change.before, change.after)

    # Events.

    def _add_event(
        self,
        event: ClusterEvent,
        node: Node | None = None,
        instance: Key | None = None,
        before: Node | None = None,
    ) -> None:
        self.events.add(event)
        if len(self._details) <= DETAILS_MOST:
            self._details.append(ClusterChange(event, node, instance, before))

    def take_events(self) -> tuple[set[ClusterEvent], list[ClusterChange]]:
        """Return and reset events and changes; the changes are empty when there were more than `DETAILS_MOST`."""
        events, details = self.events, self._details
        self.events, self._details = set(), []
        return events, details if len(details) <= DETAILS_MOST else []

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

    def _placed(self, key: Key, instance: Instance) -> bool:
        attempt = self._assigned.pop(key, None)
        if attempt is not None and _as_assigned(attempt, instance):
            return True  # Counted since the decision.
        self.queue.remove(key)
        return False

    def _ended(self, key: Key) -> None:
        self.queue.remove(key)
        self._uncount(key)

    def _uncount(self, key: Key) -> None:
        attempt = self._assigned.pop(key, None)
        self.state.free(key)
        if attempt is not None:
            self._gone(attempt)

    def _pending(self, key: Key, instance: Instance, *, requeue: bool) -> None:
        """Queue an instance; if it is in the queue already, update its request."""
        attempt = self._assigned.get(key)
        if attempt is not None and attempt.uid == instance.meta.uid:
            return
        if requeue:
            if not self.queue.state(key):
                return
            self.queue.remove(key)
        allocation = self.table.allocation(key)
        if attempt is not None or (allocation is not None and not allocation.terms.held):
            self._uncount(key)
        self._enqueue(key, instance)

    def _enqueue(self, key: Key, instance: Instance) -> None:
        meta, spec = instance.meta, instance.spec
        daemon = bool(spec.pin) and bool(spec.home)
        if daemon and self._pools is not None and self.table.node(spec.pin) is None:
            self.state.wait_for(Key(Node.kind, "", spec.pin), key)  # or the node belongs to another scheduler
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
        if held and self.queue.state(key) is None and not self.state.held(key):
            self.state.hold(request, held, meta.created_at)  # decided by an earlier leader
        self.queue.add(request, meta.uid, meta.created_at)

    def _make_class_request(self, instance: Instance) -> PlacementRequest | None:
        """Return the shared request of a group; None: an object is missing, or the pool is not ours."""
        made = self.state.request(instance)
        if made is None:
            self.state.wait_for_missing(instance.key, instance)
            return None
        if not instance.spec.home and not self.state.owns(made.shape.home):
            self.elsewhere[instance.key] = instance.meta.uid, made.shape.home
            return None
        # The request ends with the gates of this instance alone, which are no part of the class.
        return replace(made, gates=made.gates[: len(made.gates) - len(instance.spec.waits)])

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
        terms, form = AllocationTerms(self.state.rank(instance), instance.meta.created_at), shape or request.shape
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
        request, rank = attempts[0].request, self.state.rank(instances[0])
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

    def nominate(self, attempt: Attempt, node: str, request: PlacementRequest | None = None) -> None:
        """Hold room on this node and no other; an empty name holds none. `request`: the request in the chosen form."""
        if node:
            self.state.hold(request or attempt.request, node, attempt.queued_at)
        elif self.state.held(attempt.request.key):
            self._uncount(attempt.request.key)

    def displaced(self, node: str, priority: int) -> list[Key]:
        """Return the pending instances of lower priority for which room is held on a node."""
        lowest = self.table.allocation_state.lowest_held()
        if lowest is None or lowest >= priority:
            return []
        return [
            each.key for where, each in self.table.allocation_state.held() if where == node and each.priority < priority
        ]

    def assigned(self, key: Key) -> Attempt | None:
        """Return the attempt that has a node and no bind yet."""
        return self._assigned.get(key)

    def withdraw(self, attempt: Attempt) -> bool:
        """Free the node of an attempt; return whether the instance still needs one. It is not in the queue then."""
        if self._assigned.get(attempt.key) is not attempt:
            return False  # The mirror has already shown the bind, or the end of the instance.
        del self._assigned[attempt.key]
        self.queue.remove(attempt.key)
        self.state.free(attempt.key)
        now = self._instances.get(attempt.key)
        return (
            isinstance(now, Instance) and now.meta.uid == attempt.uid and placement_state(now) is PlacementState.WAITING
        )

    @property
    def binding(self) -> int:
        """The number of attempts with a node and no bind yet."""
        return len(self._assigned)

    # At the start.

    def without(self, missing: Key) -> None:
        """Log the placed instances for which an object is missing; pending instances go on waiting for it."""
        for key in self.state.waiting_for(missing):
            instance = self._instances.get(key)
            if isinstance(instance, Instance) and instance.spec.node:
                counted = "no resources" if missing.kind == Release.kind else "the default priority"
                log.warning("%s on %s has no %s: it is counted with %s", key, instance.node, missing, counted)


def _as_assigned(attempt: Attempt, instance: Instance) -> bool:
    spec = instance.spec
    return attempt.node == spec.node and attempt.uid == instance.meta.uid and spec.stop is None
