"""Reservation: resources held for certain workloads for a period of time."""

from datetime import datetime
from typing import Annotated, ClassVar, Literal

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.model.meta import InvalidField, Object, check_name
from mandor.model.resources import Resources, TaskResources
from mandor.model.rule import parse_rule


class ReservationSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Holds resources for workloads of its namespace."""

    resources: TaskResources
    """Resources of each slot."""
    count: Annotated[int, Bounds(ge=1, le=10_000)] = 1
    """Number of slots. Defaults to 1."""
    end: str
    """Time at which the reservation ends, for example `2026-12-24T18:00:00+07:00`."""
    start: str | None = None
    """Time at which the reservation starts. Defaults to its creation."""
    workload: str | None = None
    """Workload whose instances may use the slots. Defaults to all workloads of the namespace."""
    match: dict[str, str] = {}
    """Labels that the workloads must all have."""
    priority_class: str | None = None
    """Priority class that the workloads must have."""
    pool: str | None = None
    """Pool whose nodes hold the slots. Defaults to any pool."""
    where: tuple[str, ...] = ()
    """Node rules that must all hold, for example `zone == a`."""

    def __post_init__(self) -> None:
        begins = moment_of(self.start, "start") if self.start is not None else None
        ends = moment_of(self.end, "end")
        if begins is not None and ends <= begins:
            raise InvalidField(f"`end` is {self.end}, not after `start`, which is {self.start}", "end")
        if self.resources.request == Resources():
            raise InvalidField(
                "the resources of a slot are empty", "resources", hint="set cpu, memory, disk or devices"
            )
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
        raise InvalidField(f"{text!r} is not a time", path, hint="write it as 2026-12-24T18:00:00+07:00") from None
    if found.tzinfo is None:
        raise InvalidField(f"{text} has no time zone", path, hint=f"{text}Z, or {text}+07:00")
    return found.timestamp()


class ReservationStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Status of a reservation, written by the reservation controller."""

    phase: Literal["Waiting", "Active", "Over"] = "Waiting"
    held: dict[str, int] = {}
    """Number of slots held, by node."""
    message: str = ""


class Reservation(Object, frozen=True, tag="reservation"):
    """Room on nodes that is held for certain workloads, for a time."""

    kind: ClassVar[str] = "reservation"
    plural: ClassVar[str] = "reservations"
    spec: ReservationSpec
    status: ReservationStatus = field(default_factory=ReservationStatus)
