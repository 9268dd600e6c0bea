"""Plan for a reservation: what is written and told when it begins, finds its places and ends."""

from collections.abc import Sequence

from mandor.controllers.draft import Draft
from mandor.lib.steps import Steps
from mandor.model.reservation import Reservation
from mandor.placement.reserved_room import ReservableNode, status_at

LOOK_SECONDS = 15.0


def plan_reservation(reservation: Reservation, rooms: Sequence[ReservableNode], now: float) -> Steps[Draft]:
    """`rooms`: of the nodes that it may be on; asked for only while it holds."""
    draft, spec, before = Draft(), reservation.spec, reservation.status
    status = yield from status_at(reservation, rooms, now)
    if status.phase == "Waiting":
        draft.again(spec.begins_at - now)
    elif status.phase == "Active":
        draft.again(min(LOOK_SECONDS, spec.ends_at - now))
    if status != before:
        draft.put(reservation.changed(status=status))
        if status.phase != before.phase or status.message != before.message:
            short = sum(status.held.values()) < spec.count and status.phase == "Active"
            draft.note(reservation, f"Reservation{status.phase}", status.message, warning=short)
    return draft
