"""Machines on demand: the kinds that a pool may order, and the state of ordered machines."""

from typing import Annotated, Any, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Cpu, Percent, Seconds, Size
from mandor.model.features import needs
from mandor.model.meta import InvalidField, check_labels, check_name
from mandor.model.node import Taint
from mandor.model.resources import Resources

KINDS_MOST = 16
UNMADE = "unmade-machines"
"""Feature of servers that know `Machine.unmade`."""
MACHINES_MOST = 1000
"""Maximum number of machines of one pool; all are stored in one object."""
NAME_MOST = 40
"""Maximum length of the name of a pool with autoscaling: machine names start with it."""


class MachineKind(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Properties of the nodes of this kind, used to predict which instances they could run."""

    cpu: Cpu
    """Allocatable CPU of the node."""
    memory: Size
    """Allocatable memory of the node."""
    disk: Size = Size(0)
    """Allocatable disk space of the node; 0 (the default) if unknown."""
    devices: dict[str, Annotated[int, Bounds(ge=1, le=1024)]] = {}
    """Devices by kind or by vendor and kind: `{gpu: 4}`, `{nvidia/gpu: 4}`."""
    engines: tuple[str, ...] = ("process",)
    """Engines that the node's agent offers. Defaults to `process`."""
    labels: dict[str, str] = {}
    """The labels of its node."""
    taints: tuple[str, ...] = ()
    """The taints of its node, as `KEY=VALUE:EFFECT`."""
    options: dict[str, Any] = {}
    """Options passed to the provisioner, such as an image or a profile."""

    def __post_init__(self) -> None:
        if not self.cpu or not self.memory:
            raise InvalidField("`cpu` and `memory` must be above 0", "cpu" if not self.cpu else "memory")
        for engine in self.engines:
            check_name(engine, "engine name")
        check_labels(self.labels)
        for taint in self.taints:
            try:
                Taint.parse(taint)
            except ValueError as error:
                raise InvalidField(str(error), "taints") from None

    @property
    def capacity(self) -> Resources:
        return Resources(int(self.cpu), int(self.memory), int(self.disk), dict(self.devices))


class NodeAutoscale(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Orders machines for the pool while instances wait for room, and returns idle ones."""

    provisioner: str
    """Provisioner that creates the machines: `incus`, `pipeline`, or the name of a provisioner plugin."""
    kinds: dict[str, MachineKind]
    """Kinds of machines that can be ordered. Of kinds that help equally, the first is ordered."""
    max: Annotated[int, Bounds(ge=0, le=MACHINES_MOST)]
    """Maximum number of ordered machines; nodes that joined by themselves do not count. 0 returns all machines."""
    min: Annotated[int, Bounds(ge=0, le=MACHINES_MOST)] = 0
    """Minimum number of ordered machines. Defaults to 0."""
    pending_for: Seconds = Seconds(10)
    """Time that an instance must be pending before a machine is ordered for it. Defaults to 10s."""
    join_within: Seconds = Seconds(600)
    """Time within which the node of an ordered machine must join, 1s to 24h. After that the order has failed: the
    machine is returned and another one is ordered later. Defaults to 10m.
    """
    idle_after: Seconds = Seconds(600)
    """Time after which an unneeded machine is drained and returned. Defaults to 10m."""
    busy_above: Percent = Percent(50)
    """A machine with more than this share of its CPU or memory requested is needed, even if its instances would fit
    elsewhere. Defaults to 50%.
    """
    drain_within: Seconds = Seconds(600)
    """Time after which an unfinished drain of an idle machine is cancelled, 1s to 24h. Defaults to 10m."""
    at_once: Annotated[int, Bounds(ge=1, le=100)] = 5
    """Maximum number of machines being ordered or returned at the same time. Defaults to 5."""
    settings: dict[str, str] = {}
    """Connection settings of the provisioner, such as `{url: https://…}`. Credentials are files of the server."""

    def __post_init__(self) -> None:
        check_name(self.provisioner, "name of a provisioner")
        if self.min > self.max:
            raise InvalidField(
                f"`min` is {self.min}, more than `max`, which is {self.max}", "min", hint=f"at most {self.max}"
            )
        if not self.kinds:
            raise InvalidField("`kinds` is empty", "kinds", hint="{small: {cpu: 2, memory: 4Gi}}")
        if len(self.kinds) > KINDS_MOST:
            raise InvalidField(f"{len(self.kinds)} kinds of machines; at most {KINDS_MOST} are allowed", "kinds")
        for name in self.kinds:
            check_name(name, "kind of machine")
        for name in ("join_within", "drain_within"):
            if not 1 <= getattr(self, name) <= 86_400:
                raise InvalidField(f"{getattr(self, name)} is out of range", name, hint="1s to 24h")


MachinePhase = Literal["Ordered", "Joined", "Draining", "Leaving"]


class Machine(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One machine of a pool. It is recorded before it is ordered, so that after a crash the controller repeats the
    order with the same id and gets the same machine.
    """

    id: str
    """Id of the machine, and name of its node."""
    kind: str
    phase: MachinePhase = "Ordered"
    """`Ordered`: its node has not joined yet. `Draining`: its instances are being moved. `Leaving`: it is being
    returned.
    """
    at: float
    """Unix time at which the phase started."""
    why: str = ""
    """Reason for which the machine was ordered or is returned."""
    idle_since: float = 0.0
    """Unix time since which the machine is not needed; 0 while it is needed."""
    unmade: Annotated[bool, needs(UNMADE)] = False
    """Whether the provisioner was not asked for the machine yet, so that it cannot exist."""


class OrderFailures(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Failures to order a kind of machine; the kind is not ordered again before `until`."""

    failures: int
    until: float
    message: str


class PoolScaling(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Status of the pool's node autoscaler."""

    machines: tuple[Machine, ...] = ()
    trouble: dict[str, OrderFailures] = {}
    """Failed orders by kind of machine."""
    message: str = ""
    """The autoscaler's last action or the limit that prevents one."""
