"""What the scheduler knows: the table and the queue, kept by changes; and what it has promised and not yet written."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.workload import Release, Workload
from mandor.placement.framework.ask import Ask, Shape
from mandor.placement.framework.points import Happening
from mandor.placement.table import Table
from mandor.scheduler.queue import Entry, SchedulingQueue
from mandor.store.base import Change
from mandor.store.mirror import Mirror

log = logging.getLogger(__name__)

NOTHING = Shape(
    wanted=(),
    counted=(0, 0),
    host_ports=(),
    engines=(),
    images=frozenset(),
    pool=None,
    tolerate=(),
    must=(),
    should=(),
    prefer=(),
)


@dataclass(frozen=True, slots=True)
class Promise:
    """A decision that is counted in the table and on its way to the store."""

    entry: Entry
    instance: Instance
    node: str
    node_version: int
    relaxed: tuple[str, ...] = ()

    @property
    def key(self) -> Key:
        return self.entry.ask.key


class View:
    """Every change goes in by `apply`, in each kind's order; the kinds may come in any order."""

    def __init__(self, queue: SchedulingQueue, instances: Mirror, workloads: Mirror, *, seed: str = "") -> None:
        self.table = Table(seed)
        self.queue = queue
        self.happened: set[Happening] = set()
        """Since the queue was last told."""
        self._instances = instances
        self._workloads = workloads
        self._shapes: dict[Key, dict[str, Shape]] = {}
        self._promises: dict[Key, Promise] = {}
        self._unsized: dict[Key, set[Key]] = {}
        """Instances whose release is not here yet, by release."""

    def apply(self, change: Change) -> None:
        value = change.value
        if isinstance(value, Instance):
            self._apply_instance(change.key, change.after)
        elif isinstance(value, Node):
            self._apply_node(value, change.before, gone=change.after is None)
        elif isinstance(value, Release):
            self._apply_release(value, gone=change.after is None)

    # Nodes and releases.

    def _apply_node(self, node: Node, before: Object | None, *, gone: bool) -> None:
        if gone:
            self.table.remove_node(node.meta.name)
            return
        self.table.set_node(node)
        if not isinstance(before, Node):
            self.happened.add(Happening.NODE_ADDED)
        elif _matters(before) != _matters(node):
            self.happened.add(Happening.NODE_CHANGED)

    def _apply_release(self, release: Release, *, gone: bool) -> None:
        if gone:
            self._shapes.pop(release.key, None)
            return
        self._shapes[release.key] = {name: Shape.of(group) for name, group in release.spec.groups.items()}
        for key in self._unsized.pop(release.key, ()):
            self._apply_instance(key, self._instances.get(key))

    # Instances.

    def _apply_instance(self, key: Key, after: Object | None) -> None:
        if not isinstance(after, Instance) or after.phase.over:
            self._forget(key)
        elif after.spec.node:
            self._count(key, after)
        elif after.spec.stop is not None or after.phase is not Phase.PENDING:
            self._forget(key)
        elif not self._promised(key, after.meta.uid):
            self._uncount(key)
            self._enqueue(after)

    def _forget(self, key: Key) -> None:
        self.queue.remove(key)
        self._uncount(key)

    def _uncount(self, key: Key) -> None:
        self._promises.pop(key, None)
        if self.table.drop_charge(key):
            self.happened.add(Happening.ROOM_FREED)

    def _promised(self, key: Key, uid: str) -> bool:
        promise = self._promises.get(key)
        return promise is not None and promise.instance.meta.uid == uid

    def _count(self, key: Key, instance: Instance) -> None:
        self.queue.remove(key)
        self._promises.pop(key, None)
        shape = self._shape(instance)
        if shape is None:
            known = self.table.charge(key)
            shape = known.shape if known is not None and known.node == instance.spec.node else None
        if shape is not None:
            self.table.set_charge(key, instance.spec.node, shape)

    def _enqueue(self, instance: Instance) -> None:
        """A new one is active at once; one that is known keeps its place in the queue."""
        shape = self._shape(instance)
        if shape is not None:
            self.queue.add(self._ask(instance, shape), instance.meta.uid, instance.meta.created_at)

    def _shape(self, instance: Instance) -> Shape | None:
        """None: its release is not here yet; the instance is looked at again when it comes."""
        release = _release_key(instance)
        shape = self._shapes.get(release, {}).get(instance.spec.group)
        if shape is None:
            self._unsized.setdefault(release, set()).add(instance.key)
        return shape

    def _ask(self, instance: Instance, shape: Shape) -> Ask:
        workload = self._workloads.get(Key(Workload.kind, instance.meta.namespace, instance.spec.workload))
        spec = workload.spec if isinstance(workload, Workload) else None
        return Ask(
            key=instance.key,
            shape=shape,
            priority=spec.priority if spec else 0,
            profile=spec.profile if spec else "default",
            avoid=frozenset(instance.spec.avoid),
        )

    # Decisions.

    def promise(self, entry: Entry, node: str, relaxed: tuple[str, ...] = ()) -> Promise | None:
        """Count it at once, before it is written; None: the instance is not what it was any more."""
        instance, chosen = self._instances.get(entry.ask.key), self.table.node(node)
        if not isinstance(instance, Instance) or instance.meta.uid != entry.uid or chosen is None:
            return None
        made = Promise(entry, instance, node, chosen.meta.version, relaxed)
        self.table.set_charge(made.key, node, entry.ask.shape)
        self._promises[made.key] = made
        return made

    def take_back(self, promise: Promise) -> bool:
        """Its room is free again. True: the instance still waits for a node, and is not in the queue."""
        if self._promises.get(promise.key) is not promise:
            return False  # The mirror has shown its end, or that it is bound, before we heard of it.
        self._forget(promise.key)
        now = self._instances.get(promise.key)
        return (
            isinstance(now, Instance)
            and now.meta.uid == promise.instance.meta.uid
            and now.phase is Phase.PENDING
            and not now.spec.node
            and now.spec.stop is None
        )

    @property
    def promises(self) -> int:
        return len(self._promises)

    # At the start.

    def unsized(self) -> Iterable[Key]:
        """Releases that instances name and that have not been seen."""
        return tuple(self._unsized)

    def without_release(self, release: Key) -> None:
        """It does not exist: what is placed counts as nothing, and what is not placed waits for good."""
        for key in self._unsized.get(release, ()):
            instance = self._instances.get(key)
            if isinstance(instance, Instance) and instance.spec.node and self.table.charge(key) is None:
                log.warning("%s runs on %s, and its %s is gone: it counts as nothing", key, instance.node, release)
                self.table.set_charge(key, instance.spec.node, NOTHING)


def _matters(node: Node) -> tuple[object, ...]:
    """What placement looks at; the rest of a node may change without anybody being tried again."""
    status = node.status
    return node.spec, node.meta.labels, status.phase, status.capacity, status.engines, status.facts


def _release_key(instance: Instance) -> Key:
    return Key(Release.kind, instance.meta.namespace, instance.spec.release)
