"""Machines on demand: which kinds a pool may get, and what became of those that were ordered."""

from typing import Annotated, Any, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Cpu, Percent, Seconds, Size
from mandor.model.meta import Misfit, check_labels, check_name
from mandor.model.node import Taint
from mandor.model.resources import Resources

KINDS_MOST = 16
MACHINES_MOST = 1000
"""Of one pool: they are kept in one object."""
NAME_MOST = 40
"""Of a pool that gets machines: their names begin with it."""


class MachineKind(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """What a machine of this kind will be as a node, so that it can be said beforehand whom it would help."""

    cpu: Cpu
    """What its node will have for work."""
    memory: Size
    """What its node will have for work."""
    disk: Size = Size(0)
    """What its node will have for work; absent: whatever it is."""
    devices: dict[str, Annotated[int, Bounds(ge=1, le=1024)]] = {}
    """By kind or by vendor: `{gpu: 4}`, `{nvidia/gpu: 4}`."""
    engines: tuple[str, ...] = ("process",)
    """The engines its agent will offer."""
    labels: dict[str, str] = {}
    """The labels of its node."""
    taints: tuple[str, ...] = ()
    """The taints of its node, as `KEY=VALUE:EFFECT`."""
    options: dict[str, Any] = {}
    """What the provisioner has to know about it: an image, a profile …"""

    def __post_init__(self) -> None:
        if not self.cpu or not self.memory:
            raise Misfit("a machine has some cpu and some memory", "cpu" if not self.cpu else "memory")
        for engine in self.engines:
            check_name(engine, "engine name")
        check_labels(self.labels)
        for taint in self.taints:
            try:
                Taint.parse(taint)
            except ValueError as error:
                raise Misfit(str(error), "taints") from None

    @property
    def capacity(self) -> Resources:
        return Resources(int(self.cpu), int(self.memory), int(self.disk), dict(self.devices))


class NodeAutoscale(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """The pool gets machines while work waits for room, and gives back those that stand idle."""

    provisioner: str
    """Who makes them: `incus`, `pipeline`, or one that was plugged in."""
    kinds: dict[str, MachineKind]
    """What can be had; of two that would help alike, the first."""
    max: Annotated[int, Bounds(ge=0, le=MACHINES_MOST)]
    """So many machines at most; nodes that joined by themselves are not counted. 0: all are given back."""
    min: Annotated[int, Bounds(ge=0, le=MACHINES_MOST)] = 0
    """So many are kept, whatever waits."""
    pending_for: Seconds = Seconds(10)
    """Work has to wait so long before a machine is ordered for it."""
    join_within: Seconds = Seconds(600)
    """A machine whose node has not joined by then has failed: it is given back, and another is tried later."""
    idle_after: Seconds = Seconds(600)
    """A machine that was not needed for so long is drained and given back."""
    busy_above: Percent = Percent(50)
    """One of whose cpu or memory more is asked for is needed, even if its work had a place elsewhere."""
    drain_within: Seconds = Seconds(600)
    """A drain that is not through by then is called off."""
    at_once: Annotated[int, Bounds(ge=1, le=100)] = 5
    """So many are on their way, or being given back, at the same time."""
    settings: dict[str, str] = {}
    """How the provisioner is reached: `{url: https://…}`; secrets stand in files of the server."""

    def __post_init__(self) -> None:
        check_name(self.provisioner, "name of a provisioner")
        if self.min > self.max:
            raise Misfit(f"`min` is {self.min} and `max` is {self.max}", "min", hint=f"at most {self.max}")
        if not self.kinds:
            raise Misfit("there is no kind of machine to be had", "kinds", hint="{small: {cpu: 2, memory: 4Gi}}")
        if len(self.kinds) > KINDS_MOST:
            raise Misfit(f"{len(self.kinds)} kinds of machines; at most {KINDS_MOST} are allowed", "kinds")
        for name in self.kinds:
            check_name(name, "kind of machine")
        for name in ("join_within", "drain_within"):
            if not 1 <= getattr(self, name) <= 86_400:
                raise Misfit(f"`{name}` is 1s to 24h", name)


MachinePhase = Literal["Ordered", "Joined", "Draining", "Leaving"]


class Machine(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One machine of a pool. It is written down before it is ordered: whoever controls next orders it again, by the
    same id, and gets the same one."""

    id: str
    """Also the name of its node."""
    kind: str
    phase: MachinePhase = "Ordered"
    """Ordered: its node has not joined; Draining: it is being emptied; Leaving: it is being given back."""
    at: float
    """When this phase began."""
    why: str = ""
    """What it was ordered, or is given back, for."""
    idle_since: float = 0.0
    """0: it is needed."""


class Trouble(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """A kind that could not be had: it is not tried before `until`."""

    failures: int
    until: float
    message: str


class PoolScaling(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Written by the node autoscaler."""

    machines: tuple[Machine, ...] = ()
    trouble: dict[str, Trouble] = {}
    """By kind of machine."""
    message: str = ""
    """What it does, and why not more."""
