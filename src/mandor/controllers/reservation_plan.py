"""Plan for a reservation: its status and events when it starts, gets its nodes, and ends."""

from collections.abc import Sequence

from mandor.controllers.draft import Draft
from mandor.lib.steps import Steps
from mandor.model.reservation import Reservation
from mandor.placement.reserved_room import ReservableNode, status_at

PLAN_SECONDS = 15.0  # between two plans while it is active


def plan_reservation(reservation: Reservation, rooms: Sequence[ReservableNode], now: float) -> Steps[Draft]:
    """`rooms`: the nodes that may hold the reservation; empty unless it is active."""
    draft, spec, before = Draft(), reservation.spec, reservation.status
    status = yield from status_at(reservation, rooms, now)
    if status.phase == "Waiting":
        draft.again(spec.begins_at - now)
    elif status.phase == "Active":
        draft.again(min(PLAN_SECONDS, spec.ends_at - now))
    if status != before:
        draft.put(reservation.changed(status=status))
        if status.phase != before.phase or status.message != before.message:
            short = sum(status.held.values()) < spec.count and status.phase == "Active"
            draft.note(reservation, f"Reservation{status.phase}", status.message, warning=short)
    return draft
