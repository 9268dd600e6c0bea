"""What the agent knows about one instance at one moment, besides its order."""

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import Struct

from mandor.agent.discovery import NO_DISCOVERY, Discovery
from mandor.engines.base import Observed, Unit
from mandor.model.instance import REFUSED, InstanceStatus


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """What the probes of a running unit say; without a probe, the best."""

    alive: bool = True
    ready: bool = True


FINE = ProbeResult()


class SyncInputs(Struct, frozen=True, kw_only=True):
    """What the agent knows besides the order and its memory."""

    units: tuple[Observed, ...] | None
    """Of this instance; None: the engine does not answer, so nothing is known."""
    down: str = ""
    """Why the engine does not answer, where that is known."""
    known: frozenset[Unit] = frozenset()
    """Units this agent saw before: one that is missing now has vanished."""
    probe_results: Mapping[Unit, ProbeResult] = {}
    status: InstanceStatus
    """As last reported, or as stored."""
    gone: bool = False
    """A list that may be trusted no longer has it."""
    refusal: str = ""
    """Why it cannot run here, if it has not begun yet."""
    refusal_reason: str = REFUSED
    """The reason of that, in one word."""
    published: bool = True
    """Its engine leads ports of the node to it; see `publishes`."""
    host: str = ""
    """The address of this node."""
    otlp: str = ""
    """Where its tasks send traces and metrics of their own; empty: nobody says."""
    names: Discovery = NO_DISCOVERY
    """How it finds others of its namespace."""
    mounts_hosts: bool = False
    """Its engine gives its tasks the hosts file as theirs."""
    users: bool = True
    """Its engine runs tasks as any user; an agent that is not root has only its own."""
    wait: str = ""
    """Why it may not begin yet."""
    sources: Mapping[str, str] = {}
    """Where its volumes are on this node, by their names in the group."""
    missing: str = ""
    """Which of its volumes or secrets is missing: none of its tasks begins, or begins again, without it."""
    missing_reason: str = "VolumeMissing"
    """The reason of that, in one word."""
    secrets: Mapping[str, str] = {}
    """The values its tasks need, by what they call them."""
    identities: Mapping[str, str] = {}
    """The folders of this node with the tokens of its tasks, by task."""
    live_files: str = ""
    """The folder of this node for the live files of tasks; empty: files are given to the engine and never replaced."""
    extras: frozenset[str] = frozenset()
    """What its engine can do."""
    settled: bool = True
    """False: the agent has just started and the control plane may still have news."""
    trouble: tuple[str, str] = ("", "")
    """Reason and message of what went wrong when the agent last acted."""
    silence: float = 0.0
    """Seconds since the control plane last answered, as far as is known."""
    away: float = 0.0
    """The silence before that, if it answers again only since a moment; without end: it has not since the boot."""

    def __repr__(self) -> str:
        """Without secrets."""
        return f"SyncInputs({self.units}, {self.status})"
