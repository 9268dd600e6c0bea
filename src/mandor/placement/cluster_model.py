"""A copy of the cluster on which changes can be tried: its objects, and the table that counts them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from mandor.lib.steps import WRITTEN, Steps, at_once, chosen, emptied, ordered, pieces
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.node import Node
from mandor.model.priority import PriorityClass
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
from mandor.placement.framework.occupancy import AllocationTerms
from mandor.placement.framework.ports import recorded
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.volumes import KnownVolume
from mandor.placement.group_attributes import GroupAttributes
from mandor.placement.table import Table

STEP = 25
"""Objects added per step; about a millisecond for nodes."""


class PendingRequest(NamedTuple):
    """The request of a pending instance, with the time that orders it in the queue."""

    request: PlacementRequest
    queued_at: float


class ClusterModel:
    """Counts instances as the running scheduler does. Objects may be added in any order."""

    def __init__(self, objects: Iterable[Object] = (), *, seed: str = "") -> None:
        self.table = Table(seed)
        self.nodes: dict[str, Node] = {}
        self.workloads: dict[Key, Workload] = {}
        self.releases: dict[Key, Release] = {}
        self.instances: dict[Key, Instance] = {}
        self._of_workload: dict[Key, dict[Key, None]] = {}
        """Keys of instances by workload, in the order of their addition."""
        self._releases_of: dict[Key, dict[Key, None]] = {}
        self._shapes: dict[Key, Mapping[str, Shape]] = {}
        self._groups = GroupAttributes(self.workloads.get)
        self._budgets = Budgets(self.table.allocation_state)
        at_once(self.put_all(list(objects)))

    def put_all(self, objects: Sequence[Object]) -> Steps[None]:
        """Add objects, in steps."""
        first = yield from chosen(objects, lambda piece: [each for each in piece if not isinstance(each, Instance)])
        later = yield from chosen(objects, lambda piece: [each for each in piece if isinstance(each, Instance)])
        # Instances come last, when their sizes are known, and roughly in the order of their placement.
        by_age = yield from ordered(later, key=lambda each: each.meta.created_at)
        for piece in chain(pieces(first, STEP), pieces(by_age, STEP)):
            for each in piece:
                self.put(each)
            yield 4 * WRITTEN * len(piece)

    def dismantle(self) -> Steps[None]:
        """Free the memory of a model that is not used any more, in steps.

        Its parts refer to each other, so it would otherwise stay until the next full garbage collection.
        """
        yield from emptied(self.instances, *self._of_workload.values())
        for part in (self.table.allocation_state, self.table):
            held = vars(part)
            # Indexes are defined after what they index, and are emptied first.
            yield from emptied(*(each for each in reversed(held.values()) if isinstance(each, dict | set)))
            held.clear()

    def put(self, value: Object) -> None:
        if isinstance(value, Instance):
            before = self.instances.get(value.key)
            if before is not None and before.meta.uid != value.meta.uid:
                self.remove(value.key)  # another instance of the same name
            self.instances[value.key] = value
            self._budgets.see(before, value)
            self._of_workload.setdefault(workload_key(value), {})[value.key] = None
            self._count(value)
        elif isinstance(value, Node):
            self.nodes[value.meta.name] = value
            claims.set_node(self.table, value)
        elif isinstance(value, Release):
            self.releases[value.key] = value
            self._shapes[value.key] = shapes_of(value)
            self._releases_of.setdefault(_owner(value), {})[value.key] = None
        elif isinstance(value, Workload):
            before_it = self.workloads.get(value.key)
            self.workloads[value.key] = value
            if before_it is not None and before_it.spec is value.spec and before_it.meta.labels == value.meta.labels:
                return  # only the status has changed
            for old, new in self._groups.relabel(value.key, value):
                at_once(self.table.relabel(old, new))
            self._update_ranks({value.key})
            new_budgets = self._budgets.set_workload(value.key, value)
            at_once(self._budgets.count(new_budgets, lambda: list(self.of(value.key)), self.instances.get))
        elif isinstance(value, PriorityClass):
            self._groups.classes[value.meta.name] = value
            self._update_ranks(self.workloads.keys())
        elif isinstance(value, Reservation):
            held = held_of(value)
            if held is not None:
                self.table.reservations.set(held)
            else:
                self.table.reservations.drop(str(value.key))
        elif isinstance(value, Quota):
            self.table.set_quota(value.meta.namespace, limit_of(value))
        elif isinstance(value, Volume):
            self.table.set_volume(value.key, KnownVolume.of(value))

    def remove(self, key: Key) -> None:
        if key.kind == Instance.kind:
            gone = self.instances.pop(key, None)
            if gone is not None:
                self._of_workload[workload_key(gone)].pop(key, None)
                self._budgets.see(gone, None)
            self.table.drop_allocation(key)
        elif key.kind == Node.kind:
            self.nodes.pop(key.name, None)
            claims.remove_node(self.table, key.name)
        elif key.kind == Release.kind:
            old = self.releases.pop(key, None)
            self._shapes.pop(key, None)
            if old is not None:
                self._releases_of[_owner(old)].pop(key, None)
        elif key.kind == Workload.kind:
            self.workloads.pop(key, None)
            self._budgets.set_workload(key, None)
        elif key.kind == PriorityClass.kind:
            self._groups.classes.pop(key.name, None)
        elif key.kind == Reservation.kind:
            self.table.reservations.drop(str(key))
        elif key.kind == Quota.kind:
            self.table.drop_quota(key.namespace, key.name)
        elif key.kind == Volume.kind:
            self.table.set_volume(key, None)

    def of(self, workload: Key) -> list[Instance]:
        """Return the instances of a workload."""
        return [self.instances[key] for key in self._of_workload.get(workload, ())]

    def of_in_steps(self, workload: Key) -> Steps[list[Instance]]:
        """Return the instances of a workload, in steps."""
        keys = list(self._of_workload.get(workload, ()))
        return (yield from chosen(keys, lambda piece: [self.instances[key] for key in piece]))

    def releases_of(self, workload: Key) -> list[Release]:
        return [self.releases[key] for key in self._releases_of.get(workload, ())]

    def waiting(self) -> Iterator[PendingRequest]:
        """Yield the requests of pending instances whose release and workload exist."""
        for instance in self.instances.values():
            if placement_state(instance) is PlacementState.WAITING:
                request = self.request(instance)
                if request is not None:
                    yield PendingRequest(request, instance.meta.created_at)

    def request(self, instance: Instance) -> PlacementRequest | None:
        """Return the request of an instance, pending or placed; None: its release or workload is gone."""
        if instance.spec.claim is not None:
            return claims.claim_request(instance, instance.spec.claim)
        workload, shape = self.workloads.get(workload_key(instance)), self._shape(instance)
        if workload is None or shape is None:
            return None
        return request_of(instance, workload, shape, self._groups.identity(instance), self._groups.rank(instance))

    def _counted(self, instance: Instance) -> Shape:
        """Return the shape that counts; without a release, the one counted before."""
        shape = self._shape(instance)
        if shape is not None:
            return shape.form(instance.spec.variant)
        known = self.table.allocation(instance.key)
        return known.shape if known is not None and known.node == instance.spec.node else NOTHING

    def _count(self, instance: Instance) -> None:
        """Count an instance on its node, or hold room where it is nominated."""
        shape, stands = self._counted(instance), placement_state(instance)
        rank, identity = self._groups.rank(instance), self._groups.identity(instance)
        if stands is PlacementState.PLACED:
            ports = recorded(shape.any_ports, instance.spec.ports) if shape.any_ports else ()
            terms = terms_of(instance, shape, rank)
            self.table.set_allocation(instance.key, instance.spec.node, shape, identity, terms, ports)
        elif stands is PlacementState.WAITING and instance.status.nominated:
            self.hold(instance, instance.status.nominated)
        else:
            self.table.drop_allocation(instance.key)

    def hold(self, instance: Instance, node: str, shape: Shape | None = None) -> None:
        """Hold room for a pending instance. `shape`: the form; None: the main form."""
        shape, rank = shape or self._shape(instance), self._groups.rank(instance)
        if shape is not None:
            terms = AllocationTerms(rank, instance.meta.created_at, held=True)
            self.table.set_allocation(instance.key, node, shape, self._groups.identity(instance), terms)

    def held(self, key: Key) -> str:
        """Return the node where room is held for an instance; empty: no node."""
        allocation = self.table.allocation(key)
        return allocation.node if allocation is not None and allocation.terms.held else ""

    def _update_ranks(self, workloads: Iterable[Key]) -> None:
        for key in workloads:
            self._groups.forget_ranks(key)
            for each in self.of(key):
                self._count(each)

    def _shape(self, instance: Instance) -> Shape | None:
        """Return the shape of the main form."""
        if instance.spec.claim is not None:
            return claims.shape_of(instance.spec.claim)
        return self._shapes.get(release_key(instance), {}).get(instance.spec.group)


def _owner(release: Release) -> Key:
    return Key(Workload.kind, release.meta.namespace, release.spec.workload)
