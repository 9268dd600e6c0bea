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

from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.occupancy import PlacedInstance
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import NodeView, Snapshot

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


ALL_EVENTS = frozenset(ClusterEvent)
CAPACITY_EVENTS = ALL_EVENTS - {ClusterEvent.PLACED, ClusterEvent.LOAD_CHANGED, ClusterEvent.QUOTA_CHANGED}
"""What can make room; that somebody else was placed, how busy a node is, and quotas matter to few."""
NODE_EVENTS = frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_CHANGED})


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


class Plugin(ABC):
    """Made once a profile, and then one object for all its points and cycles: it may keep what it learns.

    A constructor names what it wants: `args` (an `Args` made from the configuration), `handle`, both or neither.
    """

    name: ClassVar[str]
    Args: ClassVar[type[Struct] | None] = None
    """Its arguments, typed; None: it takes none."""
    retry_on: ClassVar[frozenset[ClusterEvent]] = ALL_EVENTS
    """After its refusal, another try is worthwhile when one of these happens."""

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
    """Decides which nodes can take an instance. A subclass defines `filter`, or `filter_node` for a single node."""

    def __init_subclass__(cls, *, partial: bool = False) -> None:
        """`partial`: the class is a base of others and defines neither form."""
        super().__init_subclass__()
        if not partial:
            _has_one_of(cls, FilterPlugin, "filter", "filter_node")

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        """Return True for the nodes that can take the instance."""
        return filter_each(self, state, request, nodes, np.ones(len(nodes), dtype=np.bool_))

    def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
        """Return whether one node can take the instance."""
        raise NotImplementedError

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        """Return what the refused nodes lack, for a message; called only when no node fits."""
        return ""


def filter_each(
    plugin: FilterPlugin, state: CycleState, request: PlacementRequest, nodes: Snapshot, among: Mask
) -> Mask:
    """Call `filter_node` for some nodes; the others are False."""
    fits = np.zeros(len(nodes), dtype=np.bool_)
    for view in nodes.views(among):
        answer = plugin.filter_node(state, request, view)
        if not isinstance(answer, bool | np.bool_):
            raise TypeError(f"filter_node returned {answer!r} for {view.name}, not True or False")
        fits[nodes.slots[view.name]] = answer
    return fits


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
    """Makes room when no node fits; the first plugin that nominates a node ends the point. A subclass defines
    `post_filter`, or `make_room` to try changes in a dry run."""

    def __init_subclass__(cls, *, partial: bool = False) -> None:
        """`partial`: the class is a base of others and defines neither form."""
        super().__init_subclass__()
        if not partial:
            _has_one_of(cls, PostFilterPlugin, "post_filter", "make_room")

    def post_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Nomination | str | None:
        """Return the node that will have room, or None; the instance is placed there as soon as it fits."""
        raise NotImplementedError

    def make_room(self, state: CycleState, dry_run: "DryRun") -> Nomination | str | None:
        """Return the same as `post_filter`; `dry_run` shows which nodes would fit without some of their instances."""
        return self.post_filter(state, dry_run.request, dry_run.nodes)


class PreScorePlugin(Plugin):
    @abstractmethod
    def pre_score(
        self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask
    ) -> Skip | None: ...


class ScorePlugin(Plugin):
    """Rates the nodes that fit. A subclass defines `score`, or `score_node` for one node at a time; scores of nodes
    that are not feasible do not count."""

    def __init_subclass__(cls, *, partial: bool = False) -> None:
        """`partial`: the class is a base of others and defines neither form."""
        super().__init_subclass__()
        if not partial:
            _has_one_of(cls, ScorePlugin, "score", "score_node")

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        """Return a whole number for each node: 0 to 100, unless `normalize` scales it."""
        scores = np.zeros(len(nodes), dtype=np.int64)
        for view in nodes.views(feasible):
            # `index` refuses floats: they would be truncated silently, and NaN is no number at all.
            scores[nodes.slots[view.name]] = index(self.score_node(state, request, view))
        return scores

    def score_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> int:
        """Return the score of one node."""
        raise NotImplementedError

    def normalize(self, state: CycleState, request: PlacementRequest, scores: Scores) -> Scores:
        """Scale the scores of the feasible nodes to 0..100; called once a cycle."""
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
class HttpCall:
    """Something to be asked elsewhere, over HTTP: JSON in, JSON out."""

    url: str
    body: Mapping[str, Any]
    seconds: float
    tls: Tls = Tls()


@dataclass(frozen=True, slots=True)
class HttpReply:
    body: Any = None
    problem: str = ""
    """There is no answer, and why."""


class ConsultPlugin(Plugin):
    """Not a point of Kubernetes' framework: what must be asked elsewhere is asked before the cycle, so that no
    cycle waits. The answer is found in the cycle's state under the plugin's name."""

    @abstractmethod
    def consult(
        self, request: PlacementRequest, nodes: Snapshot, feasible: Mask
    ) -> Generator[HttpCall, HttpReply, object]:
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
    ) -> Generator[HttpCall, HttpReply, tuple[Offer, ...]]:
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
