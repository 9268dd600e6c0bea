"""Who is next when more ask than can be answered at once: lanes by importance, and in each a fair share per identity.

A *turn* is the right to be worked on; so many turns are *seated* at once, and the others wait. Two rules decide:

* Between lanes importance decides: a free seat goes to the first lane that waits and may have one. Each lane may hold
  so many seats at most, and a few of them always (`kept`), so that no lane starves another however long it is busy.
* Within a lane the identities take turns (start-time fair queueing): each as often as its weight says, whatever the
  number of its requests, and what costs more counts for more.

Every queue is bounded, for each identity and in all; what finds it full is refused at once. An identity never holds all
seats of a lane, so one whose requests take long delays the others' only by what it holds.

To let one kind of request trail behind others, give it a lane of its own (`lane_of` in `mandor.api.lanes`), and change
how many seats that lane has as the load goes: `Turnstile.limit(Lane.REPORT, 4)` while much is being bound, and back.
What waits meanwhile is bounded, and its senders gather the next ones.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum
from heapq import heappop, heappush

from mandor.errors import TooMany

MIB = 1024 * 1024


class Lane(IntEnum):
    """The most important first."""

    HEARTBEAT = 0
    """Nodes say that they live; whoever asks whether the server does."""
    AGENT = 1
    """Agents join, fetch their orders and begin to watch."""
    PEOPLE = 2
    """People, pipelines and other components: one object, one change."""
    REPORT = 3
    """Agents report what became of their orders."""
    FORECAST = 4
    """Plans and explanations: each is computed in a thread of its own."""
    BULK = 5
    """Lists, snapshots, backups: much work in one request."""
    SIMULATION = 6
    """Simulations: each runs for minutes in a process of its own."""
    CONVERSION = 7
    """Files of other tools: each request's are converted in a process of its own."""


@dataclass(frozen=True, slots=True)
class LaneLimits:
    seats: int
    """So many are worked on at once."""
    kept: int
    """So many of them even when the other lanes hold all seats there are."""
    seats_each: int
    """So many of one identity."""
    waiting: int
    """So many wait at most."""
    waiting_each: int
    """So many of one identity."""


NO_LIMIT = 1 << 40
LIMITS: Mapping[Lane, LaneLimits] = {
    # A heartbeat costs less than to let it wait.
    Lane.HEARTBEAT: LaneLimits(NO_LIMIT, NO_LIMIT, NO_LIMIT, 0, 0),
    Lane.AGENT: LaneLimits(seats=64, kept=16, seats_each=16, waiting=20_000, waiting_each=100),
    Lane.PEOPLE: LaneLimits(seats=64, kept=4, seats_each=48, waiting=4_000, waiting_each=1_000),
    Lane.REPORT: LaneLimits(seats=128, kept=4, seats_each=16, waiting=20_000, waiting_each=100),
    Lane.FORECAST: LaneLimits(seats=2, kept=1, seats_each=1, waiting=100, waiting_each=10),
    Lane.BULK: LaneLimits(seats=4, kept=1, seats_each=3, waiting=1_000, waiting_each=200),
    Lane.SIMULATION: LaneLimits(seats=2, kept=2, seats_each=1, waiting=20, waiting_each=1),
    Lane.CONVERSION: LaneLimits(seats=2, kept=2, seats_each=1, waiting=100, waiting_each=10),
}
SEATS = 192
"""In all lanes together, but for what each of them keeps."""
HELD_BYTES_MOST = 256 * MIB
HELD_BYTES_EACH = 64 * MIB
"""Bodies of requests that wait: of all, and of one identity."""


@dataclass(slots=True, eq=False)
class Turn:
    """One request's place: it waits, or is seated, or is over."""

    lane: Lane
    flow: "Flow"
    cost: int
    size_bytes: int
    seated: bool = False
    over: bool = False


@dataclass(slots=True, eq=False)
class Flow:
    """What one identity asks for in one lane."""

    identity: str
    weight: int
    start: float = 0.0
    """When its next turn begins, in the lane's own time: it has had so much for its weight already."""
    waiting: deque[Turn] = field(default_factory=deque)
    seated: int = 0
    held_bytes: int = 0
    entry: "_Entry | None" = None
    """Its place among those who are next; None: it waits for nothing, or may not have another seat."""


_Entry = tuple[float, int, Flow]
"""Earliest start first, then who came first."""


@dataclass(slots=True, eq=False)
class _Line:
    """One lane: who holds its seats, and who waits for one."""

    limits: LaneLimits
    flows: dict[str, Flow] = field(default_factory=dict)
    order: list[_Entry] = field(default_factory=list)
    """A heap; entries that are nobody's any more stand there until they come up."""
    now: float = 0.0
    """The lane's own time: the start of the turn that was given last."""
    entered: int = 0
    seated: int = 0
    waiting: int = 0

    def next(self) -> Flow | None:
        order = self.order
        while order and order[0][2].entry is not order[0]:
            heappop(order)
        return order[0][2] if order else None

    def take(self, flow: Flow) -> Turn:
        """A turn of the one who is next."""
        turn = flow.waiting.popleft()
        flow.held_bytes -= turn.size_bytes
        self.waiting -= 1
        flow.entry = None
        self.seat(turn)
        self.line_up(flow)
        return turn

    def seat(self, turn: Turn) -> None:
        flow = turn.flow
        self.now = max(self.now, flow.start)
        flow.start = max(self.now, flow.start) + turn.cost / flow.weight
        turn.seated = True
        flow.seated += 1
        self.seated += 1

    def queue_up(self, turn: Turn) -> None:
        flow = turn.flow
        flow.waiting.append(turn)
        flow.held_bytes += turn.size_bytes
        self.waiting += 1
        self.line_up(flow)

    def line_up(self, flow: Flow) -> None:
        if flow.waiting and flow.entry is None and flow.seated < self.limits.seats_each:
            # Who did not wait for a while saved nothing up.
            flow.start = max(flow.start, self.now)
            self.entered += 1
            flow.entry = (flow.start, self.entered, flow)
            heappush(self.order, flow.entry)

    def line_up_anew(self) -> None:
        """What one identity may hold has changed."""
        self.order.clear()
        for flow in self.flows.values():
            flow.entry = None
            self.line_up(flow)

    def withdraw(self, turn: Turn) -> None:
        flow = turn.flow
        flow.waiting.remove(turn)
        flow.held_bytes -= turn.size_bytes
        self.waiting -= 1
        if not flow.waiting:
            flow.entry = None

    def forget(self, flow: Flow) -> None:
        if not flow.seated and not flow.waiting:
            self.flows.pop(flow.identity, None)


class Turns:
    """All lanes. `ask` for a turn; `leave` when it is over: then others may be seated."""

    def __init__(self, limits: Mapping[Lane, LaneLimits] = LIMITS, seats: int = SEATS) -> None:
        self._limits = limits
        self._lines = [_Line(limits[lane]) for lane in Lane]
        self._seats = seats
        self._seated = 0
        self._held_bytes = 0

    def ask(self, lane: Lane, identity: str, *, weight: int = 1, cost: int = 1, size_bytes: int = 0) -> Turn:
        """A turn, which is seated already if there is room; `TooMany` if it could not even wait."""
        line = self._lines[lane]
        flow = line.flows.get(identity)
        if flow is None:
            flow = line.flows[identity] = Flow(identity, weight)
        turn = Turn(lane, flow, cost, size_bytes)
        if not line.waiting and flow.seated < line.limits.seats_each and self._may_seat(line):
            line.seat(turn)
            self._seated += 1
            return turn
        try:
            self._check_room(line, turn)
        except TooMany:
            line.forget(flow)
            raise
        line.queue_up(turn)
        self._held_bytes += size_bytes
        if self._may_seat(line) and (following := line.next()) is not None:
            # Those who came before it hold as many seats as one may.
            self._take(line, following)
        return turn

    def leave(self, turn: Turn) -> list[Turn]:
        """It is done, or does not want to wait any longer; those that are seated because of that."""
        if turn.over:
            return []
        turn.over = True
        line = self._lines[turn.lane]
        if not turn.seated:
            line.withdraw(turn)
            self._held_bytes -= turn.size_bytes
            line.forget(turn.flow)
            return []
        turn.flow.seated -= 1
        line.seated -= 1
        self._seated -= 1
        line.line_up(turn.flow)
        line.forget(turn.flow)
        return self._seat_more()

    def limit(self, lane: Lane, seats: int | None = None) -> list[Turn]:
        """From now on the lane has so many seats, at least one (None: as at first); those that are seated because of
        that. Who holds one keeps it."""
        line, limits = self._lines[lane], self._limits[lane]
        if seats is not None:
            seats = max(1, seats)
            limits = replace(
                limits, seats=seats, kept=min(limits.kept, seats), seats_each=min(limits.seats_each, seats)
            )
        line.limits = limits
        line.line_up_anew()
        return self._seat_more()

    def waiting(self, lane: Lane) -> int:
        return self._lines[lane].waiting

    def seated(self, lane: Lane) -> int:
        return self._lines[lane].seated

    @property
    def held_bytes(self) -> int:
        return self._held_bytes

    def _may_seat(self, line: _Line) -> bool:
        limits = line.limits
        return line.seated < limits.seats and (self._seated < self._seats or line.seated < limits.kept)

    def _seat_more(self) -> list[Turn]:
        found = []
        for line in self._lines:
            while line.waiting and self._may_seat(line) and (flow := line.next()) is not None:
                found.append(self._take(line, flow))
        return found

    def _take(self, line: _Line, flow: Flow) -> Turn:
        turn = line.take(flow)
        self._seated += 1
        self._held_bytes -= turn.size_bytes
        return turn

    def _check_room(self, line: _Line, turn: Turn) -> None:
        limits, flow = line.limits, turn.flow
        if len(flow.waiting) >= limits.waiting_each:
            raise TooMany(
                f"{flow.identity} has {len(flow.waiting)} requests that wait already",
                hint="send fewer at a time; each is answered sooner then",
                seconds=1.0,
                lane=turn.lane.name.lower(),
            )
        over = flow.held_bytes + turn.size_bytes > HELD_BYTES_EACH
        if line.waiting >= limits.waiting or over or self._held_bytes + turn.size_bytes > HELD_BYTES_MOST:
            raise TooMany(
                "the server has more to do than it can remember",
                hint="try again in a moment, or ask another server",
                seconds=2.0,
                lane=turn.lane.name.lower(),
            )
