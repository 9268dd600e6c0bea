"""KeptDecision: what the scheduler last decided about an instance, and by what scores; kept for a while."""

from typing import Annotated, ClassVar

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.model.meta import Object
from mandor.model.record import Empty

MESSAGE_MOST = 2048


class Part(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    """What one plugin gave one node."""

    plugin: str
    weight: int
    raw: int
    score: int
    """`raw`, brought into 0..100."""


class NodeScore(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The sum of what the plugins gave one node, each by its weight."""

    node: str
    total: int
    parts: tuple[Part, ...] = ()


class DecisionSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    at: float
    uid: str
    """Of the instance it is about; its name is the decision's."""
    workload: str
    profile: str
    node: str = ""
    """Empty: there was none."""
    message: Annotated[str, Bounds(max_length=MESSAGE_MOST)] = ""
    """Who said no and on how many nodes: now, or at the last try before this one."""
    relaxed: tuple[str, ...] = ()
    """The soft rules that were given up, in the order they were."""
    form: str = ""
    """The alternative that was chosen, if it is not the main form; `message` tells why those before had no place."""
    victims: tuple[str, ...] = ()
    """The instances that make room for it."""
    fault: str = ""
    """The plugin that went wrong."""
    attempts: int = 1
    """The how-manieth try of this scheduler it was."""
    best: tuple[NodeScore, ...] = ()
    """The chosen node and the best others, as they stood."""
    versions: tuple[str, ...] = ()
    """Of the plugins from outside that took part: `NAME@VERSION`."""


class KeptDecision(Object, frozen=True, tag="decision"):
    """The last decision about the instance of its name."""

    kind: ClassVar[str] = "decision"
    plural: ClassVar[str] = "decisions"
    spec: DecisionSpec
    status: Empty = field(default_factory=Empty)

    @property
    def node(self) -> str:
        return self.spec.node
