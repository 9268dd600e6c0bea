"""Inputs of `sync` besides the order and the memory of an instance."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from msgspec import Struct

from mandor.agent.discovery import NO_DISCOVERY, Discovery
from mandor.engines.base import Attachment, Observed, Unit
from mandor.model.instance import REFUSED, InstanceStatus


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Results of the probes of a running unit; a probe that is not configured counts as passed."""

    alive: bool = True
    ready: bool = True
    started: bool = True
    """Whether the startup probe has passed."""


PASSED = ProbeResult()


class MissingDependency(NamedTuple):
    """The first dependency of an instance that is missing; without it, no task starts. Message empty: none is."""

    message: str = ""
    reason: str = "VolumeMissing"

    def or_else(self, message: str, reason: str) -> "MissingDependency":
        """Return this one, or, if nothing was missing so far, the given one."""
        return self if self.message else MissingDependency(message, reason)


class SyncInputs(Struct, frozen=True, kw_only=True):
    """State of one instance at one moment, as its engine and the agent see it."""

    units: tuple[Observed, ...] | None
    """Units of the instance; None: the engine does not answer."""
    down: str = ""
    """Why the engine does not answer; empty: not known."""
    known: frozenset[Unit] = frozenset()
    """Units that this agent has seen; one that is missing from `units` has vanished."""
    probe_results: Mapping[Unit, ProbeResult] = {}
    status: InstanceStatus
    """The last reported or stored status."""
    gone: bool = False
    """Whether the order was withdrawn."""
    draining: bool = False
    """Whether a data path may still send new connections to the instance, which has a stop order."""
    refusal: str = ""
    """Why the instance cannot run on this node; only used before its first start."""
    refusal_reason: str = REFUSED
    """The status reason of `refusal`."""
    published: bool = True
    """Whether the engine forwards node ports to the instance; see `publishes`."""
    own_network: bool = False
    """Whether an instance with an address listens on the numbers of the node's ports, which lead there."""
    attachment: Attachment | None = None
    """The place of the instance in a network of the cluster; None: it has none."""
    host: str = ""
    """The address of this node."""
    zone: str = ""
    """The zone of this node; empty: none."""
    otlp: str = ""
    """Address of the OTLP receiver for the tasks; empty: none."""
    names: Discovery = NO_DISCOVERY
    """How the instance finds other instances of its namespace."""
    mounts_hosts: bool = False
    """Whether the engine mounts the hosts file into its tasks."""
    users: bool = True
    """Whether the engine can run tasks as any user; an agent that is not root cannot."""
    wait: str = ""
    """Why the instance may not start yet."""
    sources: Mapping[str, str] = {}
    """Path on this node of each volume by its name in the group, and of each subpath of it as `NAME/SUBPATH`."""
    new_volumes: frozenset[str] = frozenset()
    """Names of the volumes that no task has used yet."""
    missing: str = ""
    """Message about a missing volume, secret or permission; while it is set, no task starts or restarts."""
    missing_reason: str = "VolumeMissing"
    """The status reason of `missing`."""
    secrets: Mapping[str, str] = {}
    """Secret values that the tasks need, by reference."""
    identities: Mapping[str, str] = {}
    """Directory on this node with the identity token of each task, by task."""
    live_files: str = ""
    """Directory on this node for the live files of tasks; empty: files are given to the engine and never replaced."""
    extras: frozenset[str] = frozenset()
    """Optional features of the engine."""
    settled: bool = True
    """False: the agent has just started and has not received its orders yet."""
    error: tuple[str, str] = ("", "")
    """Reason and message of the error of the last step; empty: it succeeded."""
    silence: float = 0.0
    """Seconds since the control plane last answered."""
    recent_silence: float = 0.0
    """Length in seconds of a silence that ended a moment ago; infinite: no answer since the machine booted."""

    def __repr__(self) -> str:
        """Return a representation without secrets."""
        return f"SyncInputs({self.units}, {self.status})"
