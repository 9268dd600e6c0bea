"""Settings of an agent."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from mandor.agent.pressure import DEFAULT_THRESHOLDS, Threshold
from mandor.errors import Invalid
from mandor.lib.egress import EVERYWHERE
from mandor.model.meta import check_labels, check_name
from mandor.model.node import INSTANCES_MAX, USUAL_PORTS, PortRange
from mandor.model.resources import Resources
from mandor.model.volume import may_be_allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of an agent, checked when they are created."""

    name: str
    """The node's name: its identity, whatever its address."""
    data: Path
    """Directory of the journal, the credential and the engines' files."""
    servers: Sequence[str] = ()
    join_token: str | None = None
    """Token for the first join; afterwards the node has its own credential."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the node when it is created; later they belong to users."""
    pool: str | None = None
    address: str = ""
    """Address at which others reach this node; empty: determined by the agent."""
    capacity: Resources | None = None
    """Capacity of a node that is part of its machine; absent: the capacity of the machine."""
    devices: Mapping[str, int] = field(default_factory=dict)
    """Number of devices by kind."""
    max_instances: int | None = None
    """Largest number of instances on this node, reported as the fact `instances.max`; None: no limit."""
    host_paths: Sequence[str] = ()
    """Directories of this machine that tasks may mount, including everything below them."""
    egress_allow: Sequence[str] = (EVERYWHERE,)
    """Hosts that log sinks and external addresses of services may lead to."""
    secret_files: str = ""
    """Directory of the secret files that log sinks may name; empty: none."""
    ports: PortRange = USUAL_PORTS
    """Range of node ports for instances that request `auto`."""
    thresholds: Mapping[str, Threshold] = field(default_factory=lambda: DEFAULT_THRESHOLDS)
    """Thresholds of node-pressure eviction; a resource without one is not checked."""
    names: bool = False
    """Whether instances find others of their namespace by name, through a hosts file that the agent updates."""
    otlp: str = ""
    """Address of the OTLP receiver that tasks get; empty: none."""
    heartbeat_seconds: float = 10.0
    look_seconds: float = 2.0
    """Interval in seconds between checks of the eviction thresholds."""
    fingerprint_seconds: float = 60.0
    """Interval in seconds between checks of facts, capacity and engines."""
    stall_seconds: float = 45.0
    """Seconds without data after which a watch is considered dead; servers send data about every ten seconds."""
    poll_seconds: float = 1.5
    """Interval in seconds between `list` calls to an engine without events, while it runs units."""
    news_seconds: float = 5.0
    """Seconds after a start that the agent waits for orders before it continues with those in the journal."""
    quick_seconds: float = 1.0
    """Longest wait in seconds for a newer restart policy before a restart is decided."""
    starts_most: int = 16
    """Largest number of units that start at the same time."""
    sessions_most: int = 64
    """Largest number of concurrent logs, exec and image sessions."""

    @property
    def shared(self) -> bool:
        """Whether the node is part of its machine."""
        return self.capacity is not None

    def has(self, machine: Resources) -> Resources:
        """Return the capacity of the node on a machine."""
        has = self.capacity or machine
        return msgspec.structs.replace(has, devices={**has.devices, **self.devices})

    @property
    def facts(self) -> dict[str, str]:
        """Facts of the node that are set, not detected."""
        return {} if self.max_instances is None else {INSTANCES_MAX: str(self.max_instances)}

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
            raise Invalid("heartbeat_seconds, poll_seconds and starts_most must be greater than 0")
