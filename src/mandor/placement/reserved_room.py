"""Computes on which nodes the places of a reservation are held, and its status."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from mandor.lib.steps import FEW, WRITTEN, Steps, ordered, pieces
from mandor.model.node import Node, NodePhase
from mandor.model.reservation import Reservation, ReservationStatus
from mandor.model.resources import Resources
from mandor.model.rule import Rule, parse_rule
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.framework.node_rule import engine_rule
from mandor.placement.framework.request import CPU, DISK, MEMORY
from mandor.placement.framework.snapshot import Engines, node_facts


@dataclass(frozen=True, slots=True)
class ReservableNode:
    """A node that may hold places of a reservation."""

    name: str
    free: Resources
    """Free resources, without those held by other reservations."""
    most: Resources
    """All resources, without those held by other reservations."""


def phase_at(reservation: Reservation, now: float) -> str:
    spec = reservation.spec
    if now >= spec.ends_at:
        return "Over"
    return "Active" if now >= spec.begins_at else "Waiting"


def status_at(reservation: Reservation, rooms: Sequence[ReservableNode], now: float) -> Steps[ReservationStatus]:
    """Return the status at a time. `rooms`: the nodes that may hold places."""
    spec, phase = reservation.spec, phase_at(reservation, now)
    if phase == "Waiting":
        return ReservationStatus(phase="Waiting", message=f"starts at {spec.start}")
    if phase == "Over":
        return ReservationStatus(phase="Over", message=f"ended at {spec.end}")
    return (yield from _active(reservation, rooms))


def reservable_nodes(reservation: Reservation, model: ClusterModel) -> Steps[list[ReservableNode]]:
    """Return the nodes of a model that may hold places."""
    found: list[ReservableNode] = []
    for piece in pieces(list(model.nodes.items()), FEW):
        for name, node in piece:
            if may_hold(reservation, node):
                others = _held_by_others(reservation, model, name)
                free = _resources(model.table.free(name))
                found.append(ReservableNode(name, free - others, node.allocatable - others))
        yield WRITTEN * len(piece)
    return found


def _held_by_others(reservation: Reservation, model: ClusterModel, node: str) -> Resources:
    total: dict[str, int] = {}
    for other in model.table.reservations:
        if other.key != str(reservation.key):
            for resource, amount in other.each.items():
                total[resource] = total.get(resource, 0) + amount * other.places.get(node, 0)
    return _resources(total)


def may_hold(reservation: Reservation, node: Node) -> bool:
    spec = reservation.spec
    if (
        node.closed
        or node.status.phase is not NodePhase.READY
        or (spec.pool is not None and node.spec.pool != spec.pool)
    ):
        return False
    return all(_keeps(node, rule) for rule in map(parse_rule, spec.where))


def _keeps(node: Node, rule: Rule) -> bool:
    if rule.fact == "engine":
        return engine_rule(rule, Engines.of(node.status.engines))
    return rule.test(node_facts(node).get(rule.fact))


def _resources(amounts: Mapping[str, int]) -> Resources:
    devices = {name: amount for name, amount in amounts.items() if name not in {CPU, MEMORY, DISK}}
    return Resources(amounts.get(CPU, 0), amounts.get(MEMORY, 0), amounts.get(DISK, 0), devices)


def _active(reservation: Reservation, rooms: Sequence[ReservableNode]) -> Steps[ReservationStatus]:
    """Keep held places; put missing ones on free nodes first, then on nodes whose instances will leave."""
    spec, each = reservation.spec, reservation.spec.resources.request
    known = {room.name: room for room in rooms}
    held = {node: places for node, places in reservation.status.held.items() if node in known}
    missing = spec.count - sum(held.values())
    if not missing and reservation.status.phase == "Active" and held == reservation.status.held:
        return reservation.status
    while missing < 0:  # the count was reduced
        node = min(held, key=lambda name: (held[name], name))
        held[node] -= 1
        missing += 1
    order, taken = (yield from _roomiest(each, rooms)) if missing else [], 0
    for free, piece in product((True, False), list(pieces(order, FEW))):
        if not missing:
            break
        for room in piece:
            here = held.get(room.name, 0)
            can = _times(each, room.free if free else room.most) - (0 if free else here)
            new = min(missing, max(0, can - (here if free else 0)))
            if new > 0:
                held[room.name] = here + new
                missing -= new
                taken += 0 if free else new
        yield WRITTEN * len(piece)
    message = f"{spec.count - missing} of {spec.count} places are held until {spec.end}"
    if taken:
        message += f"; {taken} of them are still in use by other instances, and accept no new ones"
    if missing:
        message += f"; {missing} more do not fit: " + (
            "no node may hold it" if not rooms else f"no node that may hold it has {each} left"
        )
    return ReservationStatus(phase="Active", held={node: many for node, many in held.items() if many}, message=message)


def _roomiest(each: Resources, rooms: Sequence[ReservableNode]) -> Steps[list[ReservableNode]]:
    """Order nodes by the number of places that fit, the most first."""
    times: dict[str, int] = {}
    for piece in pieces(rooms, FEW):
        times.update([(room.name, _times(each, room.free)) for room in piece])
        yield WRITTEN * len(piece)
    return (yield from ordered(rooms, key=lambda room: (-times[room.name], room.name)))


def _times(each: Resources, room: Resources) -> int:
    """Return how many places fit."""
    counts = [
        have // want
        for want, have in (
            (each.cpu_milli, room.cpu_milli),
            (each.memory_bytes, room.memory_bytes),
            (each.disk_bytes, room.disk_bytes),
            *((many, room.devices.get(kind, 0)) for kind, many in each.devices.items()),
        )
        if want > 0
    ]
    return max(0, min(counts, default=0))
