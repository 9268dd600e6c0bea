"""Volumes, the nodes that they are on, and the disk space that they take there."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from mandor.model.instance import volume_names
from mandor.model.meta import Key
from mandor.model.placement import Where
from mandor.model.volume import GroupVolume, Volume
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.read_only import ReadOnly, Writable


class WantedVolume(NamedTuple):
    """One local volume of one instance."""

    key: Key
    spec: GroupVolume


@dataclass(frozen=True, slots=True)
class KnownVolume:
    """The fields of a volume object that placement uses."""

    size: int
    node: str
    """Node of the volume, existing or planned; empty: none yet."""
    made: bool
    """Whether the volume exists and cannot move."""
    workload: str
    only_node: str | None = None
    pool: str | None = None
    where: tuple[Where, ...] = ()

    @classmethod
    def of(cls, volume: Volume) -> "KnownVolume":
        spec, status = volume.spec, volume.status
        return cls(
            size=int(spec.size),
            node=status.node,
            made=bool(status.path),
            workload=status.workload,
            only_node=spec.node,
            pool=spec.pool,
            where=spec.where,
        )


def wanted_volumes(volumes: Mapping[str, GroupVolume], instance: Key, identity: Identity) -> list[WantedVolume]:
    """Return the local volumes of an instance, computed from names; they need not exist."""
    names = volume_names(volumes, identity.workload, identity.group, instance.name)
    return [WantedVolume(Key(Volume.kind, instance.namespace, key), volumes[name]) for name, key in names.items()]


class Volumes(ReadOnly):
    """Locations of volumes. A volume that exists stays on its node. Another one is where an instance that uses it
    is counted, before that is written to the store; so two instances of one batch that share a volume get the same
    node."""

    _known: dict[Key, KnownVolume]
    _users: dict[Key, dict[str, int]]
    """Number of instances that use a volume, by node."""
    _counted: dict[Key, tuple[str, int]]
    """Node and size with which a volume is counted."""
    _on: dict[str, set[Key]]
    """Volumes that are counted, by node."""

    def get(self, key: Key) -> KnownVolume | None:
        return self._known.get(key)

    def node_of(self, key: Key) -> str:
        """Return the node of a volume; empty: it can be on any node."""
        known = self._known.get(key)
        if known is not None and known.made:
            return known.node
        users = self._users.get(key)
        if not users:
            return ""
        return known.node if known is not None and known.node in users else next(iter(users))

    def size_of(self, wanted: WantedVolume) -> int:
        known = self._known.get(wanted.key)
        return max(known.size if known is not None else 0, int(wanted.spec.size))

    def sizes_on(self, node: str) -> Iterator[int]:
        """Return the sizes of the volumes on a node."""
        return (self._counted[key][1] for key in self._on.get(node, ()))


class MutableVolumes(Writable, Volumes):
    """The volumes as the table counts them."""

    def __init__(self, count: Callable[[str, int], None]) -> None:
        """`count` is called with a node and the bytes that its disk holds more, or fewer, of."""
        self._count = count
        self._known = {}
        self._users = {}
        self._wanted: dict[Key, int] = {}
        """Largest size that the users of a volume want, where there is no object yet."""
        self._counted = {}
        self._on = {}

    def set(self, key: Key, known: KnownVolume | None) -> bool:
        """Set or remove the volume object; return whether it changed."""
        if self._known.get(key) == known:
            return False
        if known is None:
            del self._known[key]
        else:
            self._known[key] = known
        self._recount(key)
        return True

    def use(self, wanted: WantedVolume, node: str, sign: int) -> None:
        key = wanted.key
        users = self._users.setdefault(key, {})
        users[node] = users.get(node, 0) + sign
        if not users[node]:
            del users[node]
        if users:
            self._wanted[key] = int(wanted.spec.size)
        else:
            del self._users[key]
            self._wanted.pop(key, None)
        self._recount(key)

    def _recount(self, key: Key) -> None:
        known, node = self._known.get(key), self.node_of(key)
        now = (node, max(known.size if known is not None else 0, self._wanted.get(key, 0)))
        before = self._counted.pop(key, ("", 0))
        if node:
            self._counted[key] = now
        if before == now:
            return
        if before[0]:
            self._on[before[0]].discard(key)
            self._count(before[0], -before[1])
            if not self._on[before[0]]:
                del self._on[before[0]]
        if node:
            self._on.setdefault(node, set()).add(key)
            self._count(node, now[1])
