"""Which machines would let pending instances run, and how many: simulated on a board, in small steps."""

from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from mandor.model.instance import Instance
from mandor.model.machine import MachineKind
from mandor.model.meta import Key, Meta
from mandor.model.node import Capabilities, Node, NodePhase, NodeSpec, NodeStatus, Taint
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.cycle import decide
from mandor.placement.decision import Decision
from mandor.placement.forecast import gate_reason, refuse_consultation
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.watch import Unwatched
from mandor.placement.gang_outcome import decide_gang

ASKS_MOST = 200
"""Pending instances that are evaluated together."""
PORTIONS_MOST = 10
"""Batches of pending instances per plan; instances that no machine helps are not counted."""
ORDERS_MOST = 20
"""Machines that one plan may order."""
Steps = Generator[None, None, None]
_NO_KEY = Key(Instance.kind, "", "")
IMAGES = frozenset({"docker", "podman", "cri", "incus"})
EXTRAS = frozenset(
    (
        *("logs", "exec", "signal", "stats", "events", "pull"),
        *("mounts", "links", "tmpfs", "ports", "user", "sandbox"),
    )
)
"""Assumed capabilities of an engine that no node has reported yet."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A kind of machine that a pool can order."""

    pool: str
    kind: str
    node: Node
    """The expected node; its name is a placeholder."""
    room: int
    """Machines of the pool that may be ordered now."""


@dataclass(frozen=True, slots=True)
class Order:
    pool: str
    kind: str
    helps: tuple[Key, ...]
    """Pending instances that this machine would run."""


def expected_node(pool: str, kind: MachineKind, known: Sequence[Node], name: str = "") -> Node:
    """Return the expected node of a machine kind, copied from an existing node of that kind where there is one."""
    for each in known:
        alike = each.spec.pool == pool and each.status.capacity.cpu_milli == kind.cpu
        if alike and all(each.labels.get(key) == value for key, value in kind.labels.items()):
            return _fresh(each, name)
    engines = {engine: _capabilities(engine, known) for engine in kind.engines}
    return Node(
        meta=Meta(name=name or "expected", labels=dict(kind.labels)),
        spec=NodeSpec(pool=pool, taints=tuple(map(Taint.parse, kind.taints))),
        status=NodeStatus(phase=NodePhase.READY, capacity=kind.capacity, engines=engines),
    )


def _fresh(node: Node, name: str) -> Node:
    status = replace(
        node.status, phase=NodePhase.READY, pressure=(), usage=None, drain=None, maintenance=None, images={}
    )
    spec = replace(node.spec, cordoned=False, drain=None)
    return node.changed(meta=Meta(name=name or "expected", labels=node.labels), spec=spec, status=status)


def _capabilities(engine: str, known: Iterable[Node]) -> Capabilities:
    for node in known:
        if engine in node.status.engines:
            return replace(node.status.engines[engine], up=True, message="")
    limits = frozenset({"cpu", "memory", "processes"})
    return Capabilities(images=engine in IMAGES, extras=EXTRAS, limits=limits)


@dataclass(slots=True)
class Growth:
    """One simulation of growth; it restores the board at the end. Other code must not change the board meanwhile."""

    board: ClusterModel
    profiles: Mapping[str, Profile]
    count: int = 0
    orders: list[Order] = field(default_factory=list)
    unsatisfiable: set[PlacementRequest] = field(default_factory=set)
    """Requests that no machine kind satisfies, without the key of the instance."""
    placed: list[Key] = field(default_factory=list)
    added: dict[str, Node | None] = field(default_factory=dict)
    """Simulated nodes by name, each with the real node that it hides."""

    def plan(
        self, waiting: Sequence[PlacementRequest], offers: Sequence[Offer], underway: Iterable[Node]
    ) -> list[Order]:
        for _ in self.steps(waiting, offers, underway):
            pass
        return self.orders

    def steps(self, waiting: Sequence[PlacementRequest], offers: Sequence[Offer], underway: Iterable[Node]) -> Steps:
        """Fill `orders`. `underway`: nodes that were ordered and have not joined yet."""
        try:
            for node in underway:
                self._put(node)
            rooms = {offer.pool: offer.room for offer in offers}
            queued = (
                replace(request, preempts=False) for request in waiting if not request.pin and self._queued(request)
            )
            candidates = (request for request in queued if _without_key(request) not in self.unsatisfiable)
            for _ in range(PORTIONS_MOST):
                portion = list(islice(candidates, ASKS_MOST))
                if not portion or not any(rooms.values()) or len(self.orders) >= ORDERS_MOST:
                    break
                left = yield from self._settle(portion)
                yield from self._order(left, offers, rooms)
        finally:
            self._clean_up()

    def _order(self, left: list[PlacementRequest], offers: Sequence[Offer], rooms: dict[str, int]) -> Steps:
        while left and len(self.orders) < ORDERS_MOST:
            open_ = [offer for offer in offers if rooms[offer.pool] > 0]
            best = yield from self._best(left, open_, rooms)
            if best is None:
                self.unsatisfiable.update(map(_without_key, left))
                return
            offer, many = best
            before = {request.key for request in left}
            for _ in range(many):
                self._add(offer)
            left = yield from self._settle(left)
            helped = tuple(sorted(before - {request.key for request in left}))
            self.orders += [Order(offer.pool, offer.kind, helped)] * many
            rooms[offer.pool] -= many

    def _clean_up(self) -> None:
        for key in self.placed:
            self.board.put(self.board.instances[key])
        for name, before in self.added.items():
            if before is not None:
                self.board.put(before)
            else:
                self.board.remove(Key(Node.kind, "", name))

    def _queued(self, request: PlacementRequest) -> bool:
        """Return whether the instance is in the queue; a machine does not help one that a gate or quota holds back."""
        profile = self.profiles.get(request.profile)
        try:
            return profile is not None and gate_reason(profile, request) is None and not self.board.held(request.key)
        except PluginFault:
            return False

    def _best(
        self, left: Sequence[PlacementRequest], offers: Sequence[Offer], rooms: Mapping[str, int]
    ) -> Generator[None, None, tuple[Offer, int] | None]:
        """Return the offer that places most instances; ties go to the smallest machine, then to the first
        offer. Several machines at once only for a gang that no single machine holds."""
        best, most = None, (0, 0)
        for offer in offers:
            helped = yield from self._helped(left, offer, 1)
            if helped and (best is None or (helped, -offer.node.allocatable.cpu_milli) > most):
                best, most = offer, (helped, -offer.node.allocatable.cpu_milli)
        if best is not None:
            return best, 1
        gang = [request for request in left if request.member is not None]
        for offer in offers if gang else ():
            for many in range(2, min(rooms[offer.pool], ORDERS_MOST - len(self.orders)) + 1):
                if (yield from self._helped(gang, offer, many)):
                    return offer, many
        return None

    def _helped(self, left: Sequence[PlacementRequest], offer: Offer, many: int) -> Generator[None, None, int]:
        names = [self._add(offer) for _ in range(many)]
        with self.board.table.trial():
            still = yield from self._settle(left)
        for name in names:
            self.board.remove(Key(Node.kind, "", name))
            del self.added[name]
        return len(left) - len(still)

    def _add(self, offer: Offer) -> str:
        self.count += 1
        name = f"{offer.pool}-new-{self.count}"
        self._put(offer.node.changed(meta=Meta(name=name, labels=offer.node.labels)))
        return name

    def _put(self, node: Node) -> None:
        self.added[node.meta.name] = self.board.nodes.get(node.meta.name)
        self.board.put(node)

    def _settle(self, requests: Sequence[PlacementRequest]) -> Generator[None, None, list[PlacementRequest]]:
        """Place every instance that fits; return the others. Equal requests are refused after the first refusal."""
        left: list[PlacementRequest] = []
        refused: set[PlacementRequest] = set()
        done: set[Key] = set()
        for request in requests:
            if request.key in done:
                continue
            like = _without_key(request)
            decisions: tuple[Decision, ...] = ()
            if like not in refused:
                decisions = place(self.board, self.profiles, request)
                yield
            if not decisions:
                refused.add(like)
                left.append(request)
            done.update(each.key for each in decisions)
        self.placed += done
        return [request for request in left if request.key not in done]


def _without_key(request: PlacementRequest) -> PlacementRequest:
    return replace(request, key=_NO_KEY)


def place(board: ClusterModel, profiles: Mapping[str, Profile], request: PlacementRequest) -> tuple[Decision, ...]:
    """Place the instance, or its whole gang, on the board; empty if that is impossible without preemption."""
    profile = profiles.get(request.profile)
    if profile is None:
        return ()
    try:
        if request.member is not None:
            together = decide_gang(board, profile, request, refuse_consultation, Unwatched())
            decisions = together.placed if together is not None else (_alone(board, profile, request),)
        else:
            decisions = (_alone(board, profile, request),)
    except PluginFault:
        return ()
    if not all(each.node and each.request is not None for each in decisions):
        return ()
    for each in decisions:
        assert each.request is not None
        board.table.set_allocation(each.key, each.node, each.request.shape, each.request.identity)
    return decisions


def _alone(board: ClusterModel, profile: Profile, request: PlacementRequest) -> Decision:
    if profile.consults:
        raise PluginFault(profile.consults[0].name, "cannot evaluate machines that do not exist yet")
    return decide(profile, request, board.table.snapshot())
