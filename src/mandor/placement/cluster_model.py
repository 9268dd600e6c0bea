"""A copy of the cluster on which changes can be tried: its objects, and the table that counts them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from msgspec.structs import replace

from mandor.lib.steps import WRITTEN, Steps, at_once, chosen, emptied, ordered, pieces
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.node import Node
from mandor.model.workload import Release, Workload
from mandor.placement.cluster_state import ClusterState
from mandor.placement.conversion import PlacementState, placement_state
from mandor.placement.framework.request import PlacementRequest, Shape

STEP = 25
"""Objects added per step; about a millisecond for nodes."""


class PendingRequest(NamedTuple):
    """The request of a pending instance, with the time that orders it in the queue."""

    request: PlacementRequest
    queued_at: float


class ClusterModel:
    """Counts instances as the running scheduler does. Objects may be added in any order."""

    def __init__(self, objects: Iterable[Object] = (), *, seed: str = "") -> None:
        self.nodes: dict[str, Node] = {}
        self.workloads: dict[Key, Workload] = {}
        self.releases: dict[Key, Release] = {}
        self.instances: dict[Key, Instance] = {}
        self._by_kind: Mapping[str, dict[Any, Any]] = {
            Node.kind: self.nodes,
            Workload.kind: self.workloads,
            Release.kind: self.releases,
            Instance.kind: self.instances,
        }
        self._others: dict[Key, Object] = {}
        """Objects of other kinds."""
        self._releases_of: dict[Key, dict[Key, None]] = {}
        self._state = ClusterState(self.instances.get, self.workloads.get, self._hold_nominated, seed=seed)
        self.table = self._state.table
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
        yield from emptied(self.instances)
        for part in (self._state, self.table.allocation_state, self.table):
            held = vars(part)
            # Indexes are defined after what they index, and are emptied first.
            yield from emptied(*(each for each in reversed(held.values()) if isinstance(each, dict | set)))
            held.clear()

    def put(self, value: Object) -> None:
        self._change(value.key, value)

    def remove(self, key: Key) -> None:
        self._change(key, None)

    def _change(self, key: Key, after: Object | None) -> None:
        objects = self._by_kind.get(key.kind, self._others)
        place = key.name if key.kind == Node.kind else key
        before = objects.pop(place, None) if after is None else objects.get(place)
        if after is not None:
            objects[place] = after
        if before is not None or after is not None:
            self._index_release(key, before, after)
            self._state.apply(before, after)
            at_once(self._state.catch_up())

    def _index_release(self, key: Key, before: Object | None, after: Object | None) -> None:
        if isinstance(after, Release):
            self._releases_of.setdefault(_owner(after), {})[key] = None
        elif isinstance(before, Release):
            self._releases_of[_owner(before)].pop(key, None)

    def of(self, workload: Key) -> list[Instance]:
        """Return the instances of a workload."""
        return [self.instances[key] for key in self._state.keys_of(workload)]

    def of_in_steps(self, workload: Key) -> Steps[list[Instance]]:
        """Return the instances of a workload, in steps."""
        return (yield from chosen(self._state.keys_of(workload), lambda piece: [self.instances[key] for key in piece]))

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
        return self._state.request(instance)

    def hold(self, instance: Instance, node: str, shape: Shape | None = None) -> None:
        """Hold room for a pending instance. `shape`: the form; None: the main form."""
        request = self.request(instance)
        if request is not None:
            chosen_form = request if shape is None else replace(request, shape=shape)
            self._state.hold(chosen_form, node, instance.meta.created_at)

    def held(self, key: Key) -> str:
        """Return the node where room is held for an instance; empty: no node."""
        return self._state.held(key)

    def _hold_nominated(self, key: Key, instance: Instance, *, requeue: bool) -> None:
        """Hold the room that the status of a pending instance names; free other room."""
        if requeue and self.held(key):
            return  # as a trial has decided
        request, node = self.request(instance), instance.status.nominated
        if request is None:
            self._state.wait_for_missing(key, instance)
        if request is not None and node:
            self._state.hold(request, node, instance.meta.created_at)
        else:
            self._state.free(key)


def _owner(release: Release) -> Key:
    return Key(Workload.kind, release.meta.namespace, release.spec.workload)
