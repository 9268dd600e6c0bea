"""Converts stored objects to the values that placement works with: requests, ranks, identities and limits."""

from collections.abc import Mapping
from enum import Enum
from math import inf

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.phase import OVER, Phase
from mandor.model.priority import PriorityClass, class_of
from mandor.model.quota import Quota
from mandor.model.reservation import Reservation
from mandor.model.workload import Release, ReleaseSpec, Workload
from mandor.placement.framework.identity import Identity, Selector
from mandor.placement.framework.occupancy import AllocationTerms, Rank
from mandor.placement.framework.quotas import Quota as Limit
from mandor.placement.framework.request import CPU, DISK, MEMORY, PlacementRequest, Shape
from mandor.placement.framework.reservations import ActiveReservation
from mandor.placement.gang import membership

_new_tuple = tuple.__new__  # half the time of Key(…), in a hot path

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
"""The shape of an instance whose release is gone."""


_SHAPES_MOST = 1024
_shapes: dict[int, tuple[ReleaseSpec, Mapping[str, Shape]]] = {}
"""Shapes by the id of the release's spec."""


class PlacementState(Enum):
    """Whether an instance has a node or needs one."""

    PLACED = "placed"
    """On a node and counted there, also while it stops."""
    WAITING = "waiting"
    """Pending, without a node."""
    NEITHER = "neither"
    """Finished, or stopped before it got a node."""


# Python 3.11 calls a function for each access to an enum member, and these are in a hot path.
_PENDING, _PLACED, _WAITING, _NEITHER = (
    Phase.PENDING,
    PlacementState.PLACED,
    PlacementState.WAITING,
    PlacementState.NEITHER,
)


def placement_state(instance: Instance) -> PlacementState:
    phase, spec = instance.status.phase, instance.spec
    if phase in OVER:
        return _NEITHER
    if spec.node:
        return _PLACED
    return _WAITING if spec.stop is None and phase is _PENDING else _NEITHER


def release_key(instance: Instance) -> Key:
    return _new_tuple(Key, (Release.kind, instance.meta.namespace, instance.spec.release))


def workload_key(instance: Instance) -> Key:
    return _new_tuple(Key, (Workload.kind, instance.meta.namespace, instance.spec.workload))


def shapes_of(release: Release) -> Mapping[str, Shape]:
    """Return the shapes of a release by group; cached, as several models use the same release."""
    spec = release.spec
    known = _shapes.get(id(spec))
    if known is not None:  # the cache holds the spec, so that its id stays unique
        return known[1]
    made = {name: Shape.of(group) for name, group in spec.groups.items()}
    if len(_shapes) >= _SHAPES_MOST:
        del _shapes[next(iter(_shapes))]
    _shapes[id(spec)] = spec, made
    return made


def identity_of(
    instance: Instance, workload: Workload | None, namespace_labels: Mapping[str, str] | None = None
) -> Identity:
    spec, labels = instance.spec, workload.meta.labels if workload is not None else {}
    named = class_name(workload)
    return Identity(instance.meta.namespace, spec.workload, spec.group, labels, named, spec.release, namespace_labels)


def class_name(workload: Workload | None) -> str:
    """Return the priority class that a workload names; empty: none."""
    named = workload.spec.priority if workload is not None else None
    return named if isinstance(named, str) else ""


def limit_of(quota: Quota) -> Limit:
    spec = quota.spec
    return Limit(quota.meta.name, spec.amounts, spec.priority_class or "")


def held_of(value: Reservation) -> ActiveReservation | None:
    """Return the active reservation; None: it holds nothing now."""
    spec = value.spec
    if value.status.phase != "Active" or not value.status.held:
        return None
    each = spec.resources.request
    amounts = {CPU: each.cpu_milli, MEMORY: each.memory_bytes, DISK: each.disk_bytes, **each.devices}
    labels = frozenset(spec.match.items())
    named = spec.workload or ",".join(f"{key}={text}" for key, text in sorted(labels)) or spec.priority_class or "*"
    return ActiveReservation(
        key=str(value.key),
        whom=f"{value.meta.namespace}/{named} ({value.meta.name})",
        until=spec.end,
        selector=Selector(frozenset({value.meta.namespace}), spec.workload or "", labels=labels),
        priority_class=spec.priority_class or "",
        each={name: amount for name, amount in amounts.items() if amount > 0},
        places=value.status.held,
    )


def rank_of(workload: Workload, group: str, classes: Mapping[str, PriorityClass]) -> Rank:
    spec, known = workload.spec, workload.spec.groups.get(group)
    given = class_of(spec.priority, classes)
    spared = known is not None and known.disruption.preempt == "never"
    return Rank(given.value, given.preempt == "lower", spared, spec.profile)


def terms_of(instance: Instance, shape: Shape, rank: Rank) -> AllocationTerms:
    stop = instance.spec.stop
    until = None
    if stop is not None:
        grace = shape.grace if stop.grace_seconds is None else stop.grace_seconds
        until = stop.at + grace if stop.at else inf
    return AllocationTerms(rank, instance.meta.created_at, until)


def request_of(
    instance: Instance, workload: Workload, shape: Shape, identity: Identity, rank: Rank
) -> PlacementRequest:
    return PlacementRequest(
        key=instance.key,
        shape=shape,
        priority=rank.priority,
        preempts=rank.preempts,
        profile=workload.spec.profile,
        avoid=frozenset(instance.spec.avoid),
        pin=instance.spec.pin,
        daemon=bool(instance.spec.home),
        identity=identity,
        gates=workload.spec.gates + instance.spec.waits,
        member=membership(instance, workload),
    )
