"""Which machines would help those who wait for room, and how many: tried out on a board, which is thrown away."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

from msgspec.structs import replace

from mandor.model.instance import Instance
from mandor.model.machine import MachineKind
from mandor.model.meta import Key, Meta
from mandor.model.node import Capabilities, Node, NodePhase, NodeSpec, NodeStatus, Taint
from mandor.placement.board import Board
from mandor.placement.cycle import Decision, decide
from mandor.placement.forecast import ask_nobody, kept_out
from mandor.placement.framework.ask import Ask
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.watch import Unwatched
from mandor.placement.together import decide_together

ASKS_MOST = 200
"""So many of those who wait are looked at in one go; the others come next."""
ORDERS_MOST = 20
"""So many machines are thought of in one go."""
_NOBODY = Key(Instance.kind, "", "")
IMAGES = frozenset({"docker", "podman", "cri", "incus"})
EXTRAS = frozenset({"logs", "exec", "stats", "events", "pull", "mounts", "links", "tmpfs", "ports", "user", "sandbox"})
"""What an engine is taken to be able to do that nobody has seen yet."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A kind of machine that can be had."""

    pool: str
    kind: str
    node: Node
    """What its node would be, but for its name."""
    room: int
    """So many of the pool may be ordered now."""


@dataclass(frozen=True, slots=True)
class Order:
    pool: str
    kind: str
    helps: tuple[Key, ...]
    """Who would have a place there."""


def expected_node(pool: str, kind: MachineKind, known: Sequence[Node], name: str = "") -> Node:
    """What a machine of this kind will be; one that is there says it better than any manifest."""
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
    """One go: `board` is changed, and of no use to anybody else after it."""

    board: Board
    profiles: Mapping[str, Profile]
    count: int = 0
    orders: list[Order] = field(default_factory=list)

    def plan(self, waiting: Sequence[Ask], offers: Sequence[Offer], underway: Iterable[Node]) -> list[Order]:
        """`underway`: nodes that were ordered and are not there yet."""
        for node in underway:
            self.board.put(node)
        calm = (replace(ask, preempts=False) for ask in waiting if not ask.pin and self._queued(ask))
        left = self._settle(list(islice(calm, ASKS_MOST)))
        rooms = {offer.pool: offer.room for offer in offers}
        while left and len(self.orders) < ORDERS_MOST:
            best = self._best(left, [offer for offer in offers if rooms[offer.pool] > 0], rooms)
            if best is None:
                break
            offer, many = best
            before = {ask.key for ask in left}
            for _ in range(many):
                self._add(offer)
            left = self._settle(left)
            helped = tuple(sorted(before - {ask.key for ask in left}))
            self.orders += [Order(offer.pool, offer.kind, helped)] * many
            rooms[offer.pool] -= many
        return self.orders

    def _queued(self, ask: Ask) -> bool:
        """Whom a gate or a quota keeps out of the queue no machine helps."""
        profile = self.profiles.get(ask.profile)
        try:
            return profile is not None and kept_out(profile, ask) is None and not self.board.held(ask.key)
        except PluginFault:
            return False

    def _best(self, left: Sequence[Ask], offers: Sequence[Offer], rooms: Mapping[str, int]) -> tuple[Offer, int] | None:
        """Whichever places most of them; of equals the one that they fill best, then the first. Several at once only
        for a gang that no single one can hold."""
        found = [(self._helped(left, offer, 1), -offer.node.allocatable.cpu_milli, offer) for offer in offers]
        helpful = [each for each in found if each[0]]
        if helpful:
            return max(helpful, key=lambda each: each[:2])[2], 1
        gang = [ask for ask in left if ask.member is not None]
        for offer in offers if gang else ():
            for many in range(2, min(rooms[offer.pool], ORDERS_MOST - len(self.orders)) + 1):
                if self._helped(gang, offer, many):
                    return offer, many
        return None

    def _helped(self, left: Sequence[Ask], offer: Offer, many: int) -> int:
        names = [self._add(offer) for _ in range(many)]
        with self.board.table.trial():
            helped = len(left) - len(self._settle(left))
        for name in names:
            self.board.remove(Key(Node.kind, "", name))
        return helped

    def _add(self, offer: Offer) -> str:
        self.count += 1
        name = f"{offer.pool}-new-{self.count}"
        self.board.put(offer.node.changed(meta=Meta(name=name, labels=offer.node.labels)))
        return name

    def _settle(self, asks: Sequence[Ask]) -> list[Ask]:
        """Whoever fits gets a place; the answer: who does not. Of those who ask for the same, one refusal is enough."""
        left: list[Ask] = []
        refused: set[Ask] = set()
        done: set[Key] = set()
        for ask in asks:
            if ask.key in done:
                continue
            like = replace(ask, key=_NOBODY)
            decisions = () if like in refused else place(self.board, self.profiles, ask)
            if not decisions:
                refused.add(like)
                left.append(ask)
            done.update(each.key for each in decisions)
        return [ask for ask in left if ask.key not in done]


def place(board: Board, profiles: Mapping[str, Profile], ask: Ask) -> tuple[Decision, ...]:
    """It, or all of its gang, on the table of the board; nothing if there is no place without somebody giving way."""
    profile = profiles.get(ask.profile)
    if profile is None:
        return ()
    try:
        if ask.member is not None:
            together = decide_together(board, profile, ask, ask_nobody, Unwatched())
            decisions = together.placed if together is not None else (_alone(board, profile, ask),)
        else:
            decisions = (_alone(board, profile, ask),)
    except PluginFault:
        return ()
    if not all(each.node and each.ask is not None for each in decisions):
        return ()
    for each in decisions:
        assert each.ask is not None
        board.table.set_charge(each.key, each.node, each.ask.shape, each.ask.who)
    return decisions


def _alone(board: Board, profile: Profile, ask: Ask) -> Decision:
    if profile.consults:
        raise PluginFault(profile.consults[0].name, "cannot be asked about machines that are not there")
    return decide(profile, ask, board.table.snapshot())


def fits_elsewhere(
    board: Board,
    profiles: Mapping[str, Profile],
    node: Node,
    residents: Sequence[Instance],
    closed: Callable[[Node], Node],
) -> bool:
    """Whether all that is on a node would find a place on the others, at once; the board stays as it was."""
    board.put(closed(node))
    try:
        with board.table.trial():
            asks = []
            for each in residents:
                ask = board.ask(each)
                if ask is None:
                    return False
                board.table.drop_charge(each.key)
                asks.append(replace(ask, pin="", member=None, preempts=False))
            return all(place(board, profiles, ask) for ask in asks)
    finally:
        board.put(node)
