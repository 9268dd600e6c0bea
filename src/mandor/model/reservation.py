"""Reservation: room that is held for certain work, for a while."""

from datetime import datetime
from typing import Annotated, ClassVar, Literal

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.model.meta import Misfit, Object, check_name
from mandor.model.resources import Resources, TaskResources
from mandor.model.rule import parse_rule


class ReservationSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """So much room, so many times, for those who live in its namespace and are named here."""

    resources: TaskResources
    """What each place holds."""
    count: Annotated[int, Bounds(ge=1, le=10_000)] = 1
    """So many places."""
    end: str
    """When it is over: `2026-12-24T18:00:00+07:00`."""
    start: str | None = None
    """From when on room is held; absent: at once."""
    workload: str | None = None
    """For the instances of this workload; absent: of all in the namespace."""
    match: dict[str, str] = {}
    """Only for workloads that have all these labels."""
    priority_class: str | None = None
    """Only for workloads that name this class."""
    pool: str | None = None
    """On nodes of this pool; absent: of any."""
    where: tuple[str, ...] = ()
    """On nodes that keep all these rules: `zone == a`."""

    def __post_init__(self) -> None:
        begins = moment_of(self.start, "start") if self.start is not None else None
        ends = moment_of(self.end, "end")
        if begins is not None and ends <= begins:
            raise Misfit(f"it ends at {self.end}, before it begins at {self.start}", "end")
        if self.resources.request == Resources():
            raise Misfit("a place of nothing holds nothing", "resources", hint="give cpu, memory, disk or devices")
        for name, what in ((self.workload, "workload"), (self.pool, "pool"), (self.priority_class, "priority class")):
            if name is not None:
                check_name(name, what)
        for text in self.where:
            parse_rule(text)

    @property
    def begins_at(self) -> float:
        return moment_of(self.start, "start") if self.start is not None else 0.0

    @property
    def ends_at(self) -> float:
        return moment_of(self.end, "end")


def moment_of(text: str | None, path: str) -> float:
    try:
        found = datetime.fromisoformat(text or "")
    except ValueError:
        raise Misfit(f"{text!r} is no time", path, hint="write it as 2026-12-24T18:00:00+07:00") from None
    if found.tzinfo is None:
        raise Misfit(f"{text} is in no time zone", path, hint=f"{text}Z, or {text}+07:00")
    return found.timestamp()


class ReservationStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Written by the reservation controller."""

    phase: Literal["Waiting", "Active", "Over"] = "Waiting"
    held: dict[str, int] = {}
    """How many places are held on each node."""
    message: str = ""


class Reservation(Object, frozen=True, tag="reservation"):
    """Room on nodes that is held for certain workloads, for a time."""

    kind: ClassVar[str] = "reservation"
    plural: ClassVar[str] = "reservations"
    spec: ReservationSpec
    status: ReservationStatus = field(default_factory=ReservationStatus)
