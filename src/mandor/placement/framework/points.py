"""The extension points of the scheduling framework, with the names and semantics of Kubernetes' points.

A plugin subclasses the class of each point that it serves; one object serves all of them. Filter and Score have two
forms: `filter` and `score` answer for all nodes at once, `filter_node` and `score_node` for one node. A plugin defines
one form, and the base class derives the first from the second.

Points in the order of a decision:

    PreEnqueue  decides whether an instance may enter the queue
    QueueSort   orders the queue (one plugin for all profiles)
    PreFilter   once a cycle: prepares, restricts the nodes, or skips the Filter
    Filter      selects the nodes that can take the instance
    PostFilter  makes room when no node fits
    PreScore    once a cycle: prepares, or skips the Score
    Score       rates the nodes, 0..100; `normalize` scales raw numbers to that range
    Reserve     reserves resources on the chosen node; Unreserve releases them if a later point fails
    Permit      approves, denies, or waits
    PreBind     does work before the bind, such as placing a volume
    Bind        writes the placement; the first plugin that binds ends the point
    PostBind    runs after the bind
"""

from abc import ABC, abstractmethod
from collections.abc import Generator, Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from operator import index
from typing import Any, ClassVar

import numpy as np
from msgspec import Struct

from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.dry_run import DryRun
from mandor.placement.framework.occupancy import PlacedInstance
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import NodeView, Snapshot

SCORE_MOST = 100


class ClusterEvent(Enum):
    """A kind of change in the cluster that can make a refused instance fit."""

    NODE_ADDED = "node added"
    NODE_CHANGED = "node changed"
    ROOM_FREED = "room freed"
    PLACED = "instance placed"
    VOLUME = "volume changed"
    LOAD_CHANGED = "load changed"
    """The measured usage of a node changed; allocations did not."""
    QUOTA_CHANGED = "quota changed"
    """The quota of a namespace changed; `ClusterChange.instance` is the key of the quota."""


ALL_EVENTS = frozenset(ClusterEvent)
CAPACITY_EVENTS = ALL_EVENTS - {ClusterEvent.PLACED, ClusterEvent.LOAD_CHANGED, ClusterEvent.QUOTA_CHANGED}
"""Events that can free capacity; few plugins depend on the others."""
NODE_EVENTS = frozenset({ClusterEvent.NODE_ADDED, ClusterEvent.NODE_CHANGED})
"""Events that change the attributes of nodes."""


@dataclass(frozen=True, slots=True)
class ClusterChange:
    """One cluster event with the objects that it concerns."""

    event: ClusterEvent
    node: Node | None = None
    """The node that was added or changed, or where room was freed or taken; None: it is gone or unknown."""
    instance: Key | None = None
    """The instance whose room was freed, or that was placed."""
    before: Node | None = None
    """The changed node before the change."""


class Hint(Enum):
    """Whether a cluster change is worth a retry."""

    QUEUE = "queue"
    SKIP = "skip"


class Plugin(ABC):
    """Base of all plugins. Each profile creates one object, which serves all points and cycles.

    The constructor receives the parameters that it names: `args` (an `Args` read from the configuration) and `handle`.
    """

    name: ClassVar[str]
    Args: ClassVar[type[Struct] | None] = None
    """Type of the arguments; None: the plugin takes none."""
    retry_on: ClassVar[frozenset[ClusterEvent]] = ALL_EVENTS
    """Events after which an instance that this plugin refused is retried."""

    def hint(self, request: PlacementRequest, change: ClusterChange) -> Hint:
        """Return whether a change is worth a retry of an instance that this plugin refused."""
        return Hint.QUEUE


@dataclass(frozen=True, slots=True)
class Only:
    """Result of a PreFilter: only these nodes are considered."""

    nodes: frozenset[str]


class Skip(Enum):
    """Type of `SKIP`."""

    SKIP = "skip"


SKIP = Skip.SKIP
"""Result of a PreFilter or PreScore: the Filter or Score of this plugin is skipped in this cycle."""


class PreEnqueuePlugin(Plugin):
    @abstractmethod
    def pre_enqueue(self, request: PlacementRequest) -> str | None:
        """Return None if the instance may be queued, else the reason why not."""


class QueueSortPlugin(Plugin):
    @abstractmethod
    def sort_key(self, request: PlacementRequest, queued_at: float) -> Hashable:
        """Return the sort key of a queued instance; the smallest key is next."""


class PreFilterPlugin(Plugin):
    @abstractmethod
    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Only | Skip | None:
        """Prepare the cycle; return `Only` to restrict the nodes or `SKIP` to skip the Filter."""


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
    """Result of a PostFilter: this node will have room."""

    node: str
    victims: tuple[Key, ...] = ()
    """Instances to stop. Their room is held for the nominated instance against all but higher priorities."""


@dataclass(frozen=True, slots=True)
class Offer:
    """A node and the instances that would be preempted there for a request."""

    node: str
    victims: tuple[PlacedInstance, ...]
    violations: int
    """Number of victims beyond what their disruption budgets allow."""
    others: tuple[PlacedInstance, ...] = ()
    """Further instances of the node that could be preempted."""


@dataclass(frozen=True, slots=True)
class Agreed:
    """The offers that extenders agreed to, in the cycle state under the name of a PostFilter plugin. No other instances
    are preempted."""

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

    def make_room(self, state: CycleState, dry_run: DryRun) -> Nomination | str | None:
        """Return the same as `post_filter`; `dry_run` shows which nodes would fit without some of their instances."""
        return self.post_filter(state, dry_run.request, dry_run.nodes)


class PreScorePlugin(Plugin):
    @abstractmethod
    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        """Prepare the scores; return `SKIP` to skip the Score."""


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
        """Reserve what the instance needs. If it raises, `unreserve` of all Reserve plugins is called in reverse
        order."""

    @abstractmethod
    def unreserve(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        """Undo `reserve`; may be called without it, and more than once."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Result of a Permit: wait for an approval; a timeout is a denial."""

    seconds: float


class PermitPlugin(Plugin):
    @abstractmethod
    def permit(self, state: CycleState, request: PlacementRequest, node: str) -> Wait | str | None:
        """Return None to approve, a reason to deny, or `Wait`."""


class PreBindPlugin(Plugin):
    @abstractmethod
    async def pre_bind(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        """Raise to reject the placement."""

    def concerns(self, request: PlacementRequest) -> bool:
        """Return False if the plugin does nothing for this instance, which is then bound in one batch with others."""
        return True


class BindPlugin(Plugin):
    @abstractmethod
    async def bind(self, state: CycleState, request: PlacementRequest, node: str) -> bool:
        """Bind the instance; return False to leave it to the next plugin."""


class PostBindPlugin(Plugin):
    @abstractmethod
    def post_bind(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        """Called after the instance was bound."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files for an HTTPS connection: authority, client certificate and key; empty: the system's authorities, no client
    certificate."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    """Name in the server's certificate, if it differs from the host in the URL."""


@dataclass(frozen=True, slots=True)
class HttpCall:
    """A POST request with a JSON body; `seconds` is its timeout."""

    url: str
    body: Mapping[str, Any]
    seconds: float
    tls: Tls = Tls()


@dataclass(frozen=True, slots=True)
class HttpReply:
    """Reply of an HTTP call."""

    body: Any = None
    problem: str = ""
    """Reason why there is no reply; empty: there is one."""


class ConsultPlugin(Plugin):
    """Calls other services before the cycle, so that the cycle does not wait. The result is in the cycle state under
    the name of the plugin. Kubernetes' framework has no such point."""

    @abstractmethod
    def consult(
        self, request: PlacementRequest, nodes: Snapshot, feasible: Mask
    ) -> Generator[HttpCall, HttpReply, object]:
        """Yield HTTP calls, one after another, and return the result for the cycle state. Raise to fail the attempt."""

    @property
    def agrees_to_victims(self) -> bool:
        """Whether `consult_victims` must agree to preemptions."""
        return False

    def leaves_none(self, answer: object) -> bool:
        """Return whether the result of this plugin refuses all nodes."""
        return False

    def agreeing(self, answer: object, offers: tuple[Offer, ...]) -> object:
        """Return the result of this plugin, changed so that it does not refuse the nodes of the agreed offers."""
        return answer

    def consult_victims(
        self, request: PlacementRequest, offers: tuple[Offer, ...]
    ) -> Generator[HttpCall, HttpReply, tuple[Offer, ...]]:
        """Yield HTTP calls about preemptions; return the offers that this plugin agrees to, possibly with other
        victims."""
        yield from ()
        return offers


@dataclass(slots=True)
class GangBinding:
    """Shared by the members of a gang that are bound together or not at all; in the cycle state of each under the name
    of the GangPlugin."""

    left: int
    """Number of members that are not bound yet."""


class GangPlugin(Plugin):
    """Enables gangs: members go through one cycle together and are all placed or none; see `GangBinding`. Without such
    a plugin, each member is placed by itself. Kubernetes' framework has no such point."""


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
"""Classes of the points by their names in the configuration."""


def scaled(scores: Scores, *, reverse: bool = False) -> Scores:
    """Scale scores as Kubernetes does by default: the highest becomes 100, or 0 with `reverse`; rounded down."""
    most = int(scores.max()) if len(scores) else 0
    if most == 0:
        return np.full_like(scores, SCORE_MOST) if reverse else scores
    shares = whole_part(scores * SCORE_MOST, most)
    return SCORE_MOST - shares if reverse else shares


def whole_part(dividends: Scores, divisor: int) -> Scores:
    """Return `dividends // divisor` for non-negative numbers. Floating point is several times faster, and exact while
    both add up to less than 2**53: then no quotient is rounded up to the next integer."""
    if not len(dividends) or int(dividends.max()) + divisor >= 2**53:
        return dividends // divisor
    return (dividends / divisor).astype(np.int64)


def tally(reasons: Iterable[str]) -> str:
    """Return the reasons with their counts, the most frequent first: `2 cordoned, 1 Down`."""
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return ", ".join(f"{count} {reason}" for reason, count in sorted(counts.items(), key=lambda item: (-item[1], item)))


def _has_one_of(cls: type, base: type, *methods: str) -> None:
    if all(getattr(cls, method) is getattr(base, method) for method in methods):
        raise TypeError(f"{cls.__name__} serves {base.__name__} and must define {' or '.join(methods)}")
