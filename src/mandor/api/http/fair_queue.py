"""FairQueue: bounded queues of requests, by lane and identity, with start-time fair queueing within a lane.

A *lane* is a class of requests of the same importance, a *flow* is the requests of one identity in a lane, and a *slot*
is the right to be processed. The number of slots is limited; requests without a slot wait. Two rules decide which
request gets a free slot:

* Between lanes: the most important lane with a waiting request and a slot left. Each lane has a maximum number of
  slots, and a few that are reserved for it (`reserved`), so that no lane starves another.
* Within a lane: start-time fair queueing between its flows. Each flow gets slots in proportion to its weight,
  regardless of the number of its requests; a request of a higher cost counts for more.

Every queue is bounded, per identity and in all; a request that finds its queue full is refused at once. One identity
never holds all slots of a lane, so its long requests delay other identities only by the slots that it holds.

To slow down one kind of request under load, give it a lane of its own (`Operation.lane`) and change the slots of that
lane, as in `RequestAdmission.set_slots(Lane.REPORT, 4)`.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from heapq import heappop, heappush

from mandor.errors import TooMany

MIB = 1024 * 1024


class Lane(IntEnum):
    """Lanes in order of importance, the most important first."""

    HEARTBEAT = 0
    """Heartbeats of nodes, and health checks of the server."""
    AGENT = 1
    """Requests of agents: join, fetch orders, start a watch."""
    PEOPLE = 2
    """Requests of people, pipelines and other components about one object."""
    REPORT = 3
    """Status reports of agents."""
    FORECAST = 4
    """Plans and explanations; each is computed in a thread of its own."""
    BULK = 5
    """Lists, snapshots and backups."""
    SIMULATION = 6
    """Simulations; each runs for minutes in a process of its own."""
    CONVERSION = 7
    """Conversions of other tools' files; each runs in a process of its own."""


@dataclass(frozen=True, slots=True)
class LaneLimits:
    slots: int
    """Requests that are processed at once."""
    reserved: int
    """Slots that the lane has even when other lanes hold all shared slots."""
    slots_each: int
    """Slots of one identity."""
    waiting: int
    """Requests that wait."""
    waiting_each: int
    """Waiting requests of one identity."""


NO_LIMIT = 1 << 40
LIMITS: Mapping[Lane, LaneLimits] = {
    # Processing a heartbeat costs less than queueing it.
    Lane.HEARTBEAT: LaneLimits(NO_LIMIT, NO_LIMIT, NO_LIMIT, 0, 0),
    Lane.AGENT: LaneLimits(slots=64, reserved=16, slots_each=16, waiting=20_000, waiting_each=100),
    Lane.PEOPLE: LaneLimits(slots=64, reserved=4, slots_each=48, waiting=4_000, waiting_each=1_000),
    Lane.REPORT: LaneLimits(slots=128, reserved=4, slots_each=16, waiting=20_000, waiting_each=100),
    Lane.FORECAST: LaneLimits(slots=2, reserved=1, slots_each=1, waiting=100, waiting_each=10),
    Lane.BULK: LaneLimits(slots=4, reserved=1, slots_each=3, waiting=1_000, waiting_each=200),
    Lane.SIMULATION: LaneLimits(slots=2, reserved=2, slots_each=1, waiting=20, waiting_each=1),
    Lane.CONVERSION: LaneLimits(slots=2, reserved=2, slots_each=1, waiting=100, waiting_each=10),
}
SLOTS = 192
"""Shared slots of all lanes, without the reserved ones."""
HELD_BYTES_MOST = 256 * MIB
"""Bodies of all waiting requests."""
HELD_BYTES_EACH = 64 * MIB
"""Bodies of the waiting requests of one identity."""


@dataclass(slots=True, eq=False)
class Ticket:
    """The place of one request: it waits, is admitted (holds a slot), or is released."""

    lane: Lane
    flow: "Flow"
    cost: int
    size_bytes: int
    admitted: bool = False
    released: bool = False


@dataclass(slots=True, eq=False)
class Flow:
    """The requests of one identity in one lane."""

    identity: str
    weight: int
    start: float = 0.0
    """Virtual start time of its next request: the cost of its admitted requests divided by its weight."""
    waiting: deque[Ticket] = field(default_factory=deque)
    admitted: int = 0
    held_bytes: int = 0
    entry: "_Entry | None" = None
    """Entry in the lane's heap; None: no request waits, or the flow holds its maximum of slots."""


_Entry = tuple[float, int, Flow]
"""(start, sequence number, flow): the earliest start first, then the first that was queued."""


@dataclass(slots=True, eq=False)
class _LaneQueue:
    """The flows of one lane, and the order in which they get slots."""

    limits: LaneLimits
    flows: dict[str, Flow] = field(default_factory=dict)
    order: list[_Entry] = field(default_factory=list)
    """Heap of flows with waiting requests; stale entries are dropped when they reach the top."""
    now: float = 0.0
    """Virtual time: the start of the request that was admitted last."""
    sequence: int = 0
    admitted: int = 0
    waiting: int = 0

    def next_flow(self) -> Flow | None:
        order = self.order
        while order and order[0][2].entry is not order[0]:
            heappop(order)
        return order[0][2] if order else None

    def admit_next(self, flow: Flow) -> Ticket:
        """Admit the first waiting request of the flow that `next_flow` returned."""
        ticket = flow.waiting.popleft()
        flow.held_bytes -= ticket.size_bytes
        self.waiting -= 1
        flow.entry = None
        self.admit(ticket)
        self.insert(flow)
        return ticket

    def admit(self, ticket: Ticket) -> None:
        flow = ticket.flow
        self.now = max(self.now, flow.start)
        flow.start = max(self.now, flow.start) + ticket.cost / flow.weight
        ticket.admitted = True
        flow.admitted += 1
        self.admitted += 1

    def append(self, ticket: Ticket) -> None:
        flow = ticket.flow
        flow.waiting.append(ticket)
        flow.held_bytes += ticket.size_bytes
        self.waiting += 1
        self.insert(flow)

    def insert(self, flow: Flow) -> None:
        """Add a flow to the heap if it has a waiting request and may hold another slot."""
        if flow.waiting and flow.entry is None and flow.admitted < self.limits.slots_each:
            # Idle time earns no credit.
            flow.start = max(flow.start, self.now)
            self.sequence += 1
            flow.entry = (flow.start, self.sequence, flow)
            heappush(self.order, flow.entry)

    def rebuild(self) -> None:
        """Build the heap anew after the slots of one identity have changed."""
        self.order.clear()
        for flow in self.flows.values():
            flow.entry = None
            self.insert(flow)

    def remove(self, ticket: Ticket) -> None:
        flow = ticket.flow
        flow.waiting.remove(ticket)
        flow.held_bytes -= ticket.size_bytes
        self.waiting -= 1
        if not flow.waiting:
            flow.entry = None

    def delete_idle(self, flow: Flow) -> None:
        if not flow.admitted and not flow.waiting:
            self.flows.pop(flow.identity, None)


class FairQueue:
    """The queues of all lanes; `enqueue` a request, and `release` its ticket, which may admit others."""

    def __init__(self, limits: Mapping[Lane, LaneLimits] = LIMITS, slots: int = SLOTS) -> None:
        self._limits = limits
        self._queues = [_LaneQueue(limits[lane]) for lane in Lane]
        self._slots = slots
        self._admitted = 0
        self._held_bytes = 0

    def enqueue(self, lane: Lane, identity: str, *, weight: int = 1, cost: int = 1, size_bytes: int = 0) -> Ticket:
        """Return a ticket, which is admitted at once if a slot is free; raise `TooMany` if the queue is full."""
        queue = self._queues[lane]
        flow = queue.flows.get(identity)
        if flow is None:
            flow = queue.flows[identity] = Flow(identity, weight)
        ticket = Ticket(lane, flow, cost, size_bytes)
        if not queue.waiting and flow.admitted < queue.limits.slots_each and self._has_slot(queue):
            queue.admit(ticket)
            self._admitted += 1
            return ticket
        try:
            self._check_room(queue, ticket)
        except TooMany:
            queue.delete_idle(flow)
            raise
        queue.append(ticket)
        self._held_bytes += size_bytes
        if self._has_slot(queue) and (following := queue.next_flow()) is not None:
            # The requests before it belong to identities that hold their maximum of slots.
            self._admit_next(queue, following)
        return ticket

    def release(self, ticket: Ticket) -> list[Ticket]:
        """End a request that was processed or does not wait any longer; return the tickets admitted in its place."""
        if ticket.released:
            return []
        ticket.released = True
        queue = self._queues[ticket.lane]
        if not ticket.admitted:
            queue.remove(ticket)
            self._held_bytes -= ticket.size_bytes
            queue.delete_idle(ticket.flow)
            return []
        ticket.flow.admitted -= 1
        queue.admitted -= 1
        self._admitted -= 1
        queue.insert(ticket.flow)
        queue.delete_idle(ticket.flow)
        return self._admit_waiting()

    def set_slots(self, lane: Lane, slots: int | None = None) -> list[Ticket]:
        """Change the slots of a lane (at least one; None: the configured number); return the tickets admitted by that.

        Requests that hold a slot keep it.
        """
        queue, limits = self._queues[lane], self._limits[lane]
        if slots is not None:
            slots = max(1, slots)
            limits = replace(
                limits, slots=slots, reserved=min(limits.reserved, slots), slots_each=min(limits.slots_each, slots)
            )
        queue.limits = limits
        queue.rebuild()
        return self._admit_waiting()

    def waiting(self, lane: Lane) -> int:
        return self._queues[lane].waiting

    def waiting_others(self, lane: Lane, identity: str) -> int:
        """Return the number of waiting requests of other identities."""
        queue = self._queues[lane]
        flow = queue.flows.get(identity)
        return queue.waiting - (len(flow.waiting) if flow is not None else 0)

    def admitted(self, lane: Lane) -> int:
        return self._queues[lane].admitted

    @property
    def held_bytes(self) -> int:
        """Bytes of the bodies of all waiting requests."""
        return self._held_bytes

    def _has_slot(self, queue: _LaneQueue) -> bool:
        limits = queue.limits
        return queue.admitted < limits.slots and (self._admitted < self._slots or queue.admitted < limits.reserved)

    def _admit_waiting(self) -> list[Ticket]:
        found = []
        for queue in self._queues:
            while queue.waiting and self._has_slot(queue) and (flow := queue.next_flow()) is not None:
                found.append(self._admit_next(queue, flow))
        return found

    def _admit_next(self, queue: _LaneQueue, flow: Flow) -> Ticket:
        ticket = queue.admit_next(flow)
        self._admitted += 1
        self._held_bytes -= ticket.size_bytes
        return ticket

    def _check_room(self, queue: _LaneQueue, ticket: Ticket) -> None:
        limits, flow = queue.limits, ticket.flow
        if len(flow.waiting) >= limits.waiting_each:
            raise TooMany(
                f"{flow.identity} already has {len(flow.waiting)} waiting requests",
                hint="send fewer requests at a time",
                seconds=1.0,
                lane=ticket.lane.name.lower(),
            )
        over = flow.held_bytes + ticket.size_bytes > HELD_BYTES_EACH
        if queue.waiting >= limits.waiting or over or self._held_bytes + ticket.size_bytes > HELD_BYTES_MOST:
            raise TooMany(
                "the server is overloaded: its queue of waiting requests is full",
                hint="try again in a few seconds, or use another server",
                seconds=2.0,
                lane=ticket.lane.name.lower(),
            )
