"""Metrics of the agent, its machine and its instances."""

from collections.abc import Awaitable, Iterable, Iterator, Mapping
from time import perf_counter
from typing import TypeVar

from mandor.engines.base import Unit, Usage
from mandor.errors import MandorError
from mandor.lib.metrics import Counts, Family, Spreads, Values, counter, gauge, histogram
from mandor.model.instance import Instance
from mandor.model.node import Capabilities
from mandor.model.usage import NodeUsage
from mandor.telemetry.span import step

T = TypeVar("T")

UNIT = ("namespace", "workload", "instance", "task", "engine")
"""Labels of the usage metrics of one task."""


class AgentMetrics:
    """Counters and histograms of the agent."""

    def __init__(self) -> None:
        self.heartbeats = Counts()
        """By result."""
        self.credential_renewals = Counts()
        """By result."""
        self.certificate_renewals = Counts()
        """By result."""
        self._calls = Counts()
        self._durations = Spreads()

    async def call(self, engine: str, verb: str, work: Awaitable[T]) -> T:
        """Await a call to an engine, and record its duration and result."""
        began, result = perf_counter(), "error"
        try:
            with step(f"engine.{verb}", {"mandor.engine": engine}):
                done = await work
            result = "ok"
            return done
        except MandorError as error:
            result = error.code
            raise
        finally:
            self._calls[engine, verb, result] += 1
            self._durations[engine, verb].add(perf_counter() - began)

    def families(self) -> Iterator[Family]:
        yield counter("mandor_agent_heartbeats_total", "Heartbeats sent, by result.", self.heartbeats, "result")
        yield counter(
            "mandor_agent_credential_renewals_total",
            "Renewals of the node's credential, by result.",
            self.credential_renewals,
            "result",
        )
        yield counter(
            "mandor_agent_certificate_renewals_total",
            "Renewals of the node's certificate, by result.",
            self.certificate_renewals,
            "result",
        )
        yield counter(
            "mandor_engine_calls_total",
            "Calls to engines, by result.",
            self._calls,
            "engine",
            "verb",
            "result",
        )
        yield histogram(
            "mandor_engine_call_duration_seconds", "Duration of calls to engines.", self._durations, "engine", "verb"
        )


def node_families(
    engines: Mapping[str, Capabilities], pressure: Iterable[str], usage: NodeUsage, phases: Mapping[Values, float]
) -> Iterator[Family]:
    """Yield the metrics of the machine and its engines."""
    yield gauge("mandor_agent_instances", "Instances on this node, by phase.", phases, "phase")
    up = {(name,): float(each.up) for name, each in engines.items()}
    yield gauge("mandor_engine_up", "1 if the engine answers, otherwise 0.", up, "engine")
    pressed = {(what,): 1.0 for what in pressure}
    yield gauge("mandor_agent_pressure", "1 for each resource that the node is short of.", pressed, "resource")
    yield gauge(
        "mandor_machine_used_cpu_cores", "CPU cores in use since the previous heartbeat.", usage.cpu_milli / 1000
    )
    yield gauge("mandor_machine_used_memory_bytes", "Memory in use.", usage.memory_bytes)
    yield gauge(
        "mandor_machine_used_disk_bytes", "Space in use on the disk of the agent's data directory.", usage.disk_bytes
    )


def unit_families(used: Mapping[Unit, tuple[Instance, str, Usage]]) -> Iterator[Family]:
    """Yield the resource usage of each task of each instance."""

    def of(field: str) -> dict[Values, float]:
        return {
            (each.meta.namespace, each.spec.workload, each.meta.name, unit.task, engine): float(getattr(usage, field))
            for unit, (each, engine, usage) in used.items()
        }

    yield counter("mandor_instance_cpu_seconds_total", "CPU time since the task started.", of("cpu_seconds"), *UNIT)
    yield gauge("mandor_instance_memory_bytes", "Memory in use.", of("memory_bytes"), *UNIT)
    yield counter(
        "mandor_instance_network_received_bytes_total",
        "Bytes received since the task started, where the engine measures it.",
        of("network_in_bytes"),
        *UNIT,
    )
    yield counter(
        "mandor_instance_network_sent_bytes_total",
        "Bytes sent since the task started, where the engine measures it.",
        of("network_out_bytes"),
        *UNIT,
    )
    yield counter(
        "mandor_instance_disk_read_bytes_total",
        "Bytes read from disk since the task started.",
        of("disk_read_bytes"),
        *UNIT,
    )
    yield counter(
        "mandor_instance_disk_written_bytes_total",
        "Bytes written to disk since the task started.",
        of("disk_write_bytes"),
        *UNIT,
    )
