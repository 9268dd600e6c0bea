"""The points a plugin can serve: Kubernetes' names and meanings, on columns.

A plugin subclasses one class for each point it serves and is one object for all of them.
Filter and Score have two forms: the vector form answers for all nodes at once, the one-node
form for a single one; a plugin writes either, and the base class makes the first of the second.

Points in the order of a decision:

    PreEnqueue  may this instance enter the queue?
    QueueSort   which instance is next? (one for all profiles)
    PreFilter   once a cycle: prepare, narrow the nodes, or say that Filter has nothing to ask
    Filter      which nodes can take it?
    PostFilter  nothing fits: make room
    PreScore    once a cycle: prepare, or say that Score has nothing to say
    Score       how good is each node, 0..100? Normalize brings raw numbers into that range
    Reserve     the node is chosen; Unreserve undoes it when something later fails
    Permit      approve, deny, or wait
    PreBind     work before the bind (a volume)
    Bind        write it down; the first that takes it ends the chain
    PostBind    it is done
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import index
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from msgspec import Struct

from mandor.lib.steps import Steps
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.placement.framework.cached_columns import FEW, At
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.occupancy import PlacedInstance
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import NodeView, Snapshot, Wanted

if TYPE_CHECKING:
    from mandor.placement.framework.dry_run import DryRun

SCORE_MOST = 100


class ClusterEvent(Enum):
    """What happens in a cluster that can make a refused instance fit."""

    NODE_ADDED = "node added"
    NODE_CHANGED = "node changed"
    ROOM_FREED = "room freed"
    PLACED = "instance placed"
    VOLUME = "volume changed"
    LOAD_CHANGED = "load changed"
    """What a node really uses; requests do not ask for it."""
    QUOTA_CHANGED = "quota changed"
    """What a namespace may take; `ClusterChange.instance` is the quota."""


EVERYTHING = frozenset(ClusterEvent)
ANYTHING = EVERYTHING - {ClusterEvent.PLACED, ClusterEvent.LOAD_CHANGED, ClusterEvent.QUOTA_CHANGED}
"""What can make room; that somebody else was placed, how busy a node is, and quotas matter to few."""
NODES = frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_CHANGED})


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """One thing that happened, for a plugin that wants to know more than its kind."""

    event: ClusterEvent
    node: Node | None = None
    """The node that came or changed, or where room was freed or taken; None: it is gone, or not known any more."""
    instance: Key | None = None
    """Whose room was freed, or who was placed."""
    before: Node | None = None
    """How the node was that changed."""


class Hint(Enum):
    QUEUE = "queue"
    SKIP = "skip"


class Reach(Enum):
    """What a plugin's Filter and Score of a node go by. The less, the less has to be computed again.

    Beside that, an answer may depend on the class of the ask: its shape, identity and rules as they stand, pin and
    avoided nodes; with `ATTRIBUTES` and `ROOM` on nothing else, least of all on which other nodes are feasible.
    """

    ATTRIBUTES = "attributes"
    """What the nodes are: labels, taints, engines, images."""
    ROOM = "room"
    """That, and what is placed on that very node; `filter_slot` and `score_slot` answer for one node."""
    CLUSTER = "cluster"
    """Anything: asked about all nodes in each cycle."""


class Formula(Enum):
    """Scores of room that the framework computes itself, for many nodes and together; see `usual`."""

    LEAST_ALLOCATED = "least allocated"
    """Kubernetes' LeastAllocated, over CPU and memory in equal parts."""
    BALANCED = "balanced"
    """Kubernetes' BalancedAllocation, over CPU and memory."""


class Plugin(ABC):
    """Made once a profile, and then one object for all its points and cycles: it may keep what it learns.

    A constructor names what it wants: `args` (an `Args` made from the configuration), `handle`, both or neither.
    """

    name: ClassVar[str]
    Args: ClassVar[type[Struct] | None] = None
    """Its arguments, typed; None: it takes none."""
    retry_on: ClassVar[frozenset[ClusterEvent]] = EVERYTHING
    """After its refusal, another try is worthwhile when one of these happens."""
    by_class: ClassVar[bool] = False
    """It refuses all instances of equal shape, priority and profile alike, by what the table shows and nothing else:
    then the answer for one is the answer for its like until the table changes."""

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        """What can change its answer about a node; see `Reach`.

        Who overrides this is not asked again by PreFilter and PreScore once they said SKIP, until a node changes, or
        a rule or a claim to a whole node comes or goes with somebody who is placed.
        """
        return Reach.CLUSTER

    def goes_by(self, request: PlacementRequest) -> Hashable:
        """What of the ask its reach, its SKIPs and, with the reach `ATTRIBUTES`, its answers go by, beside what nodes
        are: asks with the same share them. Who does not override this is asked for each class."""
        return request.class_key

    @property
    def declares_reach(self) -> bool:
        return type(self).reach is not Plugin.reach

    def hint(self, request: PlacementRequest, change: ClusterChange) -> Hint:
        """Is this very thing worth another try of what this plugin refused?"""
        return Hint.QUEUE


@dataclass(frozen=True, slots=True)
class Only:
    """A PreFilter's answer: no other nodes than these."""

    nodes: frozenset[str]


class Skip(Enum):
    """A PreFilter's or PreScore's answer; see `SKIP`."""

    SKIP = "skip"


SKIP = Skip.SKIP
"""A PreFilter's or PreScore's answer: this plugin's Filter or Score need not run in this cycle."""


class PreEnqueuePlugin(Plugin):
    @abstractmethod
    def pre_enqueue(self, request: PlacementRequest) -> str | None:
        """None: it may be queued; else the reason why not yet."""


class QueueSortPlugin(Plugin):
    @abstractmethod
    def sort_key(self, request: PlacementRequest, queued_at: float) -> Hashable:
        """The smallest key is next; keys of one plugin compare with each other."""


class PreFilterPlugin(Plugin):
    @abstractmethod
    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Only | Skip | None: ...


class FilterPlugin(Plugin):
    """Write `filter` or `filter_node`."""

    fit_formula = False
    """It lets through what finds enough of everything that it wants, and nothing else; then it need not be asked."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _has_one_of(cls, FilterPlugin, "filter", "filter_node")
        if "rules_out" not in vars(cls) and ("filter" in vars(cls) or "filter_node" in vars(cls)):
            cls.rules_out = FilterPlugin.rules_out  # type: ignore[method-assign] # its own word, not its parent's

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        """True for the nodes that can take it."""
        return self.filter_left(state, request, nodes, np.ones(len(nodes), dtype=np.bool_))

    def filter_left(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, left: Mask) -> Mask:
        """The one-node form, for the nodes that nobody has refused yet; the answer for the others does not count."""
        fits = np.zeros(len(nodes), dtype=np.bool_)
        for view in nodes.views(left):
            answer = self.filter_node(state, request, view)
            if not isinstance(answer, bool | np.bool_):
                raise TypeError(f"filter_node answered {answer!r} for {view.name}, not True or False")
            fits[nodes.slots[view.name]] = answer
        return fits

    def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
        raise NotImplementedError

    def filter_slot(self, request: PlacementRequest, nodes: Snapshot, slot: int) -> bool:
        """The same for one node, fast; asked only if the reach is `ROOM`."""
        return bool(self.filter(CycleState(), request, nodes)[slot])

    def filter_at(self, request: PlacementRequest, nodes: Snapshot, at: At) -> Mask:
        """The same for some nodes; asked only if the reach is `ROOM`."""
        return self.filter(CycleState(), request, nodes)[at]

    def filter_cached(self, request: PlacementRequest, nodes: Snapshot) -> Mask:
        """For a Filter of the reach `ROOM` that goes by the shape alone: `filter_at`, kept where that is worth it."""
        if len(nodes) <= FEW:
            return np.array([self.filter_slot(request, nodes, slot) for slot in range(len(nodes))], dtype=np.bool_)
        return nodes._cached.mask((self, request.shape), lambda at: self.filter_at(request, nodes, at))

    def needs(self, request: PlacementRequest) -> Wanted | None:
        """It lets an ask go wherever these amounts are free, and nowhere else; None: it goes by other things, too."""
        return None

    def rules_out(self, request: PlacementRequest, node: Node) -> bool:
        """It refuses this node as long as that stays what it is, whoever comes or goes: what happens there gives the
        ask no place. Who cannot tell by the node alone says False."""
        return False

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        """What the refused nodes lack, for people; asked only when nothing fits."""
        return ""


@dataclass(frozen=True, slots=True)
class Nomination:
    """A PostFilter's answer: there will be room on this node."""

    node: str
    victims: tuple[Key, ...] = ()
    """Those who must go for it: they are told to stop. Their room is held for the instance meanwhile, against all
    but higher priorities."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A node, and who would have to leave it for an ask."""

    node: str
    victims: tuple[PlacedInstance, ...]
    violations: int
    """So many of them are more than their budgets allow."""
    others: tuple[PlacedInstance, ...] = ()
    """Who else there may have to go."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """Found in the state under the name of a PostFilter plugin, where somebody elsewhere has a say in who has to go:
    what he agrees to. Nobody else has to go for it."""

    offers: tuple[Offer, ...] = ()


class PostFilterPlugin(Plugin):
    """Asked in order when nothing fits; the first that nominates a node ends it. Write `post_filter`, `make_room`
    or `making_room`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _has_one_of(cls, PostFilterPlugin, "post_filter", "make_room", "making_room")
        if "making_room" not in vars(cls) and ("make_room" in vars(cls) or "post_filter" in vars(cls)):
            cls.making_room = PostFilterPlugin.making_room  # type: ignore[method-assign] # its own word, not its parent's

    def post_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Nomination | str | None:
        """The node where there will be room, or None; the instance goes there as soon as it fits."""
        raise NotImplementedError

    def make_room(self, state: CycleState, dry_run: "DryRun") -> Nomination | str | None:
        """The same, for those who want to know what would be if others were gone."""
        return self.post_filter(state, dry_run.request, dry_run.nodes)

    def making_room(self, state: CycleState, dry_run: "DryRun") -> Steps[Nomination | str | None]:
        """The same in steps, for those who may take long: each is a trial of its own, and between two of them others
        have their turn."""
        yield from ()
        return self.make_room(state, dry_run)

    def offers(self, dry_run: "DryRun") -> Iterable[Offer]:
        """What it could nominate, for those who have a say in it; they are asked before the cycle. See `Agreed`."""
        return ()


class PreScorePlugin(Plugin):
    @abstractmethod
    def pre_score(
        self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask
    ) -> Skip | None: ...


class ScorePlugin(Plugin):
    """Write `score` or `score_node`; scores of nodes that are not feasible do not count."""

    score_formula: Formula | None = None
    """Its scores are exactly these; then it need not be asked."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _has_one_of(cls, ScorePlugin, "score", "score_node")

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        scores = np.zeros(len(nodes), dtype=np.int64)
        for view in nodes.views(feasible):
            # A float would lose its fraction in silence, and NaN everything.
            scores[nodes.slots[view.name]] = index(self.score_node(state, request, view))
        return scores

    def score_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> int:
        raise NotImplementedError

    def score_slot(self, request: PlacementRequest, nodes: Snapshot, slot: int) -> int:
        """The same for one node, fast; asked only if the reach is `ROOM`."""
        return int(self.score_at(request, nodes, slice(slot, slot + 1))[0])

    def score_at(self, request: PlacementRequest, nodes: Snapshot, at: At) -> Scores:
        """The same for some nodes; asked only if the reach is `ROOM`."""
        return self.score(CycleState(), request, nodes, np.ones(len(nodes), dtype=np.bool_))[at]

    def score_cached(self, request: PlacementRequest, nodes: Snapshot) -> Scores:
        """For a Score of the reach `ROOM` that goes by the shape alone: `score_at`, kept where that is worth it."""
        if len(nodes) <= FEW:
            return np.array([self.score_slot(request, nodes, slot) for slot in range(len(nodes))], dtype=np.int64)
        return nodes._cached.scores((self, request.shape), lambda at: self.score_at(request, nodes, at))

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        """The scores of the feasible nodes, brought into 0..100; once a cycle."""
        return scores


class ReservePlugin(Plugin):
    @abstractmethod
    def reserve(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        """Raise to refuse: `unreserve` of every Reserve plugin follows, in reverse order."""

    @abstractmethod
    def unreserve(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        """Undo it; may be called without a `reserve`, and twice."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A Permit's answer: hold it until someone approves; denied after so long."""

    seconds: float


class PermitPlugin(Plugin):
    @abstractmethod
    def permit(self, state: CycleState, request: PlacementRequest, node: str) -> Wait | str | None:
        """None approves, a text denies and says why."""


class PreBindPlugin(Plugin):
    @abstractmethod
    async def pre_bind(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        """Raise to reject the placement."""

    def concerns(self, request: PlacementRequest) -> bool:
        """False: it has nothing to do for this one, which is then bound together with many others."""
        return True


class BindPlugin(Plugin):
    @abstractmethod
    async def bind(self, state: CycleState, request: PlacementRequest, node: str) -> bool:
        """False declines, and the next one is asked."""


class PostBindPlugin(Plugin):
    @abstractmethod
    def post_bind(self, state: CycleState, request: PlacementRequest, node: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Tls:
    """How to trust an HTTPS server, and how to be trusted by it: files; empty: as the system does, or not at all."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    """The name on its certificate, if that is not the URL's."""


@dataclass(frozen=True, slots=True)
class Question:
    """Something to be asked elsewhere, over HTTP: JSON in, JSON out."""

    url: str
    body: Mapping[str, Any]
    seconds: float
    tls: Tls = Tls()


@dataclass(frozen=True, slots=True)
class Reply:
    body: Any = None
    problem: str = ""
    """There is no answer, and why."""


class ConsultPlugin(Plugin):
    """Not a point of Kubernetes' framework: what must be asked elsewhere is asked before the cycle, so that no
    cycle waits. The answer is found in the cycle's state under the plugin's name."""

    @abstractmethod
    def consult(self, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Generator[Question, Reply, object]:
        """Yield questions, one after another; what is returned is kept for the cycle. Raise to fail the try."""

    @property
    def agrees_to_victims(self) -> bool:
        """It has a say in who has to go: `consult_victims` is asked."""
        return False

    def leaves_none(self, answer: object) -> bool:
        """Its own answer refuses every node that it was asked about."""
        return False

    def agreeing(self, answer: object, offers: tuple[Offer, ...]) -> object:
        """Its own answer, now that all agree to this: it does not stand in the way of that."""
        return answer

    def consult_victims(
        self, request: PlacementRequest, offers: tuple[Offer, ...]
    ) -> Generator[Question, Reply, tuple[Offer, ...]]:
        """As `consult`, when nothing fits; the answer is what it agrees to of that, perhaps with others to go."""
        yield from ()
        return offers


@dataclass(slots=True)
class GangBinding:
    """Found in the state of a member, under the name of its GangPlugin, one for all of them: they are written together
    or not at all."""

    left: int
    """So many are not bound yet."""


class GangPlugin(Plugin):
    """Not a point of Kubernetes' framework: where one is enabled, the members of a gang go through one cycle together
    and are placed all or not at all; see `GangBinding`. Without one, each is placed by itself."""


POINTS: Mapping[str, type[Plugin]] = {
    "preEnqueue": PreEnqueuePlugin,
    "queueSort": QueueSortPlugin,
    "preFilter": PreFilterPlugin,
    "filter": FilterPlugin,
    "postFilter": PostFilterPlugin,
    "preScore": PreScorePlugin,
    "score": ScorePlugin,
    "reserve": ReservePlugin,
    "permit": PermitPlugin,
    "preBind": PreBindPlugin,
    "bind": BindPlugin,
    "postBind": PostBindPlugin,
}
"""By their names in the configuration."""


def scaled(scores: Scores, *, reverse: bool = False) -> Scores:
    """Kubernetes' default normalisation: the highest becomes 100, or 0 with `reverse`; whole numbers, rounded down."""
    most = int(scores.max()) if len(scores) else 0
    if most == 0:
        return np.full_like(scores, SCORE_MOST) if reverse else scores
    shares = whole_part(scores * SCORE_MOST, most)
    return SCORE_MOST - shares if reverse else shares


def whole_part(dividends: Scores, divisor: int) -> Scores:
    """`dividends // divisor`; neither is negative. Floating point is several times faster, and as exact while both
    together are less than 2**53: then no quotient is rounded up to the next whole number."""
    if not len(dividends) or int(dividends.max()) + divisor >= 2**53:
        return dividends // divisor
    return (dividends / divisor).astype(np.int64)


def tally(reasons: Iterable[str]) -> str:
    """`2 cordoned, 1 Down`: the most frequent first."""
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item)))


def _has_one_of(cls: type, base: type, *methods: str) -> None:
    if all(getattr(cls, method) is getattr(base, method) for method in methods):
        raise TypeError(f"{cls.__name__} serves {base.__name__} and so defines {' or '.join(methods)}")
