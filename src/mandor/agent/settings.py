"""What an agent is told when it starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mandor.agent.pressure import DEFAULT_THRESHOLDS, Threshold
from mandor.errors import Invalid
from mandor.lib.egress import EVERYWHERE
from mandor.model.meta import check_labels, check_name
from mandor.model.node import USUAL_PORTS, PortRange
from mandor.model.resources import Resources
from mandor.model.volume import may_be_allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    name: str
    """The node's name: its identity, whatever its address."""
    data: Path
    """Where orders, the credential and the engines' own files are kept."""
    servers: Sequence[str] = ()
    join_token: str | None = None
    """Needed once; afterwards the node has a credential of its own."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Given to the node when it is new; later they are the users'."""
    pool: str | None = None
    address: str = ""
    """Where others reach this node; empty: found anew at each look."""
    capacity: Resources | None = None
    """What the node has, if it is a part of its machine; absent: what the machine has."""
    devices: Mapping[str, int] = field(default_factory=dict)
    """How many of each kind there are."""
    host_paths: Sequence[str] = ()
    """Folders of this machine that tasks may mount, with all below them."""
    egress_allow: Sequence[str] = (EVERYWHERE,)
    """Which hosts log sinks may name."""
    secret_files: str = ""
    """The folder of the files that log sinks may name; empty: none."""
    ports: PortRange = USUAL_PORTS
    """From which ports are chosen for instances that ask for any."""
    thresholds: Mapping[str, Threshold] = field(default_factory=lambda: DEFAULT_THRESHOLDS)
    """When the host is short of memory, disk or inodes; what is absent is not looked at."""
    names: bool = False
    """Instances find others of their namespace by name: each has a hosts file that follows changes."""
    otlp: str = ""
    """The OTLP receiver that tasks are told of; empty: none."""
    heartbeat_seconds: float = 10.0
    look_seconds: float = 2.0
    """How often the host is looked at for what it is short of."""
    fingerprint_seconds: float = 60.0
    """How often facts, capacity and engines are looked at."""
    stall_seconds: float = 45.0
    """A watch says something about every ten seconds; one that is silent for so long is dead."""
    poll_seconds: float = 1.5
    """How often an engine that sends no events is asked, while something runs there."""
    news_seconds: float = 5.0
    """After a start, so long the control plane may send news before old orders are begun again."""
    quick_seconds: float = 1.0
    """So long a restart decision waits for a newer restart policy."""
    starts_most: int = 16
    """Units started at the same time."""
    sessions_most: int = 64
    """Logs and exec sessions at the same time."""

    @property
    def shared(self) -> bool:
        """The machine is not this node's alone."""
        return self.capacity is not None

    def has(self, machine: Resources) -> Resources:
        """What the node has, on such a machine."""
        has = self.capacity or machine
        return msgspec.structs.replace(has, devices={**has.devices, **self.devices})

    def __post_init__(self) -> None:
        try:
            check_name(self.name, "node name")
            check_labels(dict(self.labels))
            if self.pool is not None:
                check_name(self.pool, "pool")
        except ValueError as error:
            raise Invalid(str(error)) from error
        for path in self.host_paths:
            if not may_be_allowed(path):
                raise Invalid(f"{path!r} is not an absolute path", hint="--allow-host-path /srv/data")
        if self.heartbeat_seconds <= 0 or self.poll_seconds <= 0 or self.starts_most < 1:
            raise Invalid("heartbeat_seconds, poll_seconds and starts_most are greater than 0")
