"""ClusterGauges: metrics of nodes, workloads and instances, computed by every server from mirrors of the store."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from typing import TypeVar

from mandor.api.expiring_tokens import ExpiringTokens
from mandor.api.heartbeat import Heartbeats
from mandor.lib.clock import Clock
from mandor.lib.metrics import Family, Values, gauge
from mandor.model.instance import Instance
from mandor.model.meta import Object
from mandor.model.node import Node, NodePhase
from mandor.model.phase import Phase
from mandor.model.record import Token
from mandor.model.resources import Resources
from mandor.model.workload import Workload
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror

T = TypeVar("T")


class ClusterGauges:
    """Use as `async with`. The mirrors start with the first request for metrics, and count changes from then on."""

    def __init__(self, store: Store, heartbeats: Heartbeats, clock: Clock) -> None:
        self._heartbeats, self._clock = heartbeats, clock
        self._nodes = Mirror(store, Node.kind)
        self._workloads = Mirror(store, Workload.kind)
        self._tokens = Mirror(store, Token.kind)
        self._instances = Mirror(store, Instance.kind)
        self._expiring = ExpiringTokens()
        self._phases: Counter[Values] = Counter()
        self._waiting: Counter[Values] = Counter()
        self._restarts: Counter[Values] = Counter()
        self._stack = AsyncExitStack()
        self._begun = False

    async def __aenter__(self) -> "ClusterGauges":
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._stack.aclose()

    async def prepare(self) -> None:
        mirrors = (self._nodes, self._workloads, self._instances, self._tokens)
        if not self._begun:
            self._begun = True
            self._instances.listen(self._count)
            self._tokens.listen(self._expiring.follow)
            for mirror in mirrors:
                await self._stack.enter_async_context(mirror)
        for mirror in mirrors:
            await mirror.synced()

    def _count(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self._add(change.before, -1)
            self._add(change.after, 1)

    def _add(self, value: Object | None, sign: int) -> None:
        if not isinstance(value, Instance):
            return
        status, namespace = value.status, value.meta.namespace
        self._phases[namespace, status.phase.value] += sign
        if status.phase is Phase.PENDING:
            self._waiting[namespace, status.reason or "New"] += sign
        if status.restarts:
            self._restarts[namespace, value.spec.workload] += sign * status.restarts

    def families(self) -> Iterator[Family]:
        yield from self._node_families()
        yield self._token_family()
        yield from self._workload_families()
        yield from self._usage_families()

    def _node_families(self) -> Iterator[Family]:
        nodes = [each for each in list(self._nodes.items()) if isinstance(each, Node)]
        phases = dict.fromkeys(((each.value,) for each in NodePhase), 0.0)
        phases |= Counter((each.status.phase.value,) for each in nodes)
        yield gauge("mandor_nodes", "Nodes, by phase.", phases, "phase")
        closed = {(each.meta.name,): 1.0 for each in nodes if each.closed}
        yield gauge("mandor_node_closed", "1 if the node is cordoned, drained, or in maintenance.", closed, "node")
        under_pressure = {(each.meta.name, what): 1.0 for each in nodes for what in each.status.pressure}
        yield gauge(
            "mandor_node_pressure",
            "1 if the node is under pressure for the resource.",
            under_pressure,
            "node",
            "resource",
        )
        amounts = [(each.meta.name, each.allocatable) for each in nodes]
        yield gauge("mandor_node_allocatable_cpu_cores", "CPU cores for instances.", _cores(amounts), "node")
        yield gauge("mandor_node_allocatable_memory_bytes", "Memory for instances.", _memory(amounts), "node")
        yield gauge("mandor_node_allocatable_disk_bytes", "Disk space for instances.", _disk(amounts), "node")

    def _token_family(self) -> Family:
        found = self._expiring.counts(self._clock.now())
        meaning = "Tokens that expire within two weeks, and credentials of nodes that were not renewed in time."
        return gauge("mandor_tokens_ending", meaning, found, "role")

    def _workload_families(self) -> Iterator[Family]:
        found = _counted(self._phases)
        yield gauge("mandor_instances", "Instances, by phase.", found, "namespace", "phase")
        found = _counted(self._waiting)
        yield gauge("mandor_instances_waiting", "Instances without a node, by reason.", found, "namespace", "reason")
        found = _counted(self._restarts)
        yield gauge(
            "mandor_workload_restarts",
            "Restarts of the existing instances, by workload.",
            found,
            "namespace",
            "workload",
        )
        workloads = [each for each in list(self._workloads.items()) if isinstance(each, Workload)]
        wanted = {(each.meta.namespace, each.meta.name): float(each.status.wanted) for each in workloads}
        yield gauge("mandor_workload_instances_wanted", "Instances wanted.", wanted, "namespace", "workload")
        ready = {(each.meta.namespace, each.meta.name): float(each.status.ready) for each in workloads}
        yield gauge("mandor_workload_instances_ready", "Instances ready.", ready, "namespace", "workload")

    def _usage_families(self) -> Iterator[Family]:
        reports = self._heartbeats.all_usage()
        ages = (((each.node,), each.age_seconds) for each in reports)
        yield gauge(
            "mandor_node_heartbeat_age_seconds",
            "Seconds since this server received the last heartbeat of a node.",
            ages,
            "node",
        )
        used = [
            (each.node, Resources(each.usage.cpu_milli, each.usage.memory_bytes, each.usage.disk_bytes))
            for each in reports
        ]
        yield gauge("mandor_node_used_cpu_cores", "CPU cores in use.", _cores(used), "node")
        yield gauge("mandor_node_used_memory_bytes", "Memory in use.", _memory(used), "node")
        yield gauge("mandor_node_used_disk_bytes", "Disk space in use.", _disk(used), "node")
        received = (((each.node,), float(each.usage.network_in_bytes)) for each in reports)
        yield gauge("mandor_node_network_received_bytes_per_second", "Bytes received per second.", received, "node")
        sent = (((each.node,), float(each.usage.network_out_bytes)) for each in reports)
        yield gauge("mandor_node_network_sent_bytes_per_second", "Bytes sent per second.", sent, "node")


def _counted(counts: Counter[Values]) -> dict[Values, float]:
    return {values: float(count) for values, count in counts.items() if count}


Amounts = Sequence[tuple[str, Resources]]
"""Resources by node. The samples of a gauge are computed while its lines are written, a few nodes at a time."""


def _cores(amounts: Amounts) -> Iterator[tuple[Values, float]]:
    return (((node,), each.cpu_milli / 1000) for node, each in amounts)


def _memory(amounts: Amounts) -> Iterator[tuple[Values, float]]:
    return (((node,), float(each.memory_bytes)) for node, each in amounts)


def _disk(amounts: Amounts) -> Iterator[tuple[Values, float]]:
    return (((node,), float(each.disk_bytes)) for node, each in amounts)
