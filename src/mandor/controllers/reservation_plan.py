"""Plan for a reservation: whether it holds now, and on which nodes its places are."""

from collections.abc import Sequence
from dataclasses import dataclass

from mandor.controllers.draft import Draft
from mandor.model.reservation import Reservation, ReservationStatus
from mandor.model.resources import Resources

LOOK_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A node that may hold places."""

    name: str
    free: Resources
    """Beside who is there, and beside what other reservations hold."""
    most: Resources
    """If nobody else were there."""


def phase_at(reservation: Reservation, now: float) -> str:
    spec = reservation.spec
    if now >= spec.ends_at:
        return "Over"
    return "Active" if now >= spec.begins_at else "Waiting"


def plan_reservation(reservation: Reservation, rooms: Sequence[NodeRoom], now: float) -> Draft:
    """`rooms`: of the nodes that it may be on; asked for only while it holds."""
    draft, spec, before = Draft(), reservation.spec, reservation.status
    phase = phase_at(reservation, now)
    if phase == "Waiting":
        draft.again(spec.begins_at - now)
        status = ReservationStatus(phase="Waiting", message=f"holds room from {spec.start} on")
    elif phase == "Over":
        status = ReservationStatus(phase="Over", message=f"it ended at {spec.end}")
    else:
        draft.again(min(LOOK_SECONDS, spec.ends_at - now))
        status = _active(reservation, rooms)
    if status != before:
        draft.put(reservation.changed(status=status))
        if status.phase != before.phase or status.message != before.message:
            short = sum(status.held.values()) < spec.count and phase == "Active"
            draft.note(reservation, f"Reservation{phase}", status.message, warning=short)
    return draft


def _active(reservation: Reservation, rooms: Sequence[NodeRoom]) -> ReservationStatus:
    """What is held stays where it is; what is missing goes where it is free, and else where it could become free."""
    spec, each = reservation.spec, reservation.spec.resources.request
    known = {room.name: room for room in rooms}
    held = {node: places for node, places in reservation.status.held.items() if node in known}
    missing = spec.count - sum(held.values())
    if not missing and reservation.status.phase == "Active" and held == reservation.status.held:
        return reservation.status
    while missing < 0:  # it wants fewer by now
        node = min(held, key=lambda name: (held[name], name))
        held[node] -= 1
        missing += 1
    taken = 0
    for free in (True, False):
        order = sorted(rooms, key=lambda room: (-_times(each, room.free), room.name))
        for room in order:
            here = held.get(room.name, 0)
            can = _times(each, room.free if free else room.most) - (0 if free else here)
            new = min(missing, max(0, can - (here if free else 0)))
            if new > 0:
                held[room.name] = here + new
                missing -= new
                taken += 0 if free else new
    message = f"{spec.count - missing} of {spec.count} places are held until {spec.end}"
    if taken:
        message += f"; others are still on {taken} of them, and nobody new comes there"
    if missing:
        message += f"; {missing} more do not fit: " + (
            "there is no such node" if not rooms else f"no node that may hold it has {each} left"
        )
    return ReservationStatus(phase="Active", held={node: many for node, many in held.items() if many}, message=message)


def _times(each: Resources, room: Resources) -> int:
    """How often it fits."""
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
