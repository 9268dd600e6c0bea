"""KeptDecision: the scheduler's last decision about an instance and its scores, stored for a limited time."""

from typing import Annotated, ClassVar

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.model.meta import Object
from mandor.model.record import Empty

MESSAGE_MOST = 2048


class Part(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """Score of one node by one plugin."""

    plugin: str
    weight: int
    raw: int
    score: int
    """`raw`, normalized to 0..100."""


class NodeScore(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Weighted sum of the plugins' scores of one node."""

    node: str
    total: int
    parts: tuple[Part, ...] = ()


class DecisionSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    at: float
    uid: str
    """Uid of the instance; the instance's name is the decision's name."""
    workload: str
    profile: str
    node: str = ""
    """Chosen node; empty if no node was found."""
    message: Annotated[str, Bounds(max_length=MESSAGE_MOST)] = ""
    """Plugins that rejected nodes, with the number of nodes each; from this attempt or the last one before it."""
    relaxed: tuple[str, ...] = ()
    """`should` rules that were relaxed, in order."""
    form: str = ""
    """The alternative that was chosen; empty for the main form. `message` explains why the forms before it did not fit.
    """
    victims: tuple[str, ...] = ()
    """Instances preempted to make room."""
    fault: str = ""
    """Name of the plugin that failed."""
    attempts: int = 1
    """Number of attempts by this scheduler, including this one."""
    best: tuple[NodeScore, ...] = ()
    """Scores of the chosen node and the best other nodes."""
    versions: tuple[str, ...] = ()
    """External plugins that took part, as `NAME@VERSION`."""


class DecisionRecord(Object, frozen=True, tag="decision"):
    """The last decision about the instance with the same name."""

    kind: ClassVar[str] = "decision"
    plural: ClassVar[str] = "decisions"
    spec: DecisionSpec
    status: Empty = field(default_factory=Empty)

    @property
    def node(self) -> str:
        return self.spec.node
