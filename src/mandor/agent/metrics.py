"""What the agent counts of itself, and what its machine and instances use, for metrics."""

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
"""The labels of what one task of one instance uses."""


class AgentMetrics:
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
        """The work, timed and counted."""
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
        yield counter("mandor_agent_heartbeats_total", "Heartbeats, by what was answered.", self.heartbeats, "result")
        yield counter(
            "mandor_agent_credential_renewals_total",
            "Times that the node's credential was to be renewed, by how it ended.",
            self.credential_renewals,
            "result",
        )
        yield counter(
            "mandor_agent_certificate_renewals_total",
            "Times that the node's certificate was to be renewed, by how it ended.",
            self.certificate_renewals,
            "result",
        )
        yield counter(
            "mandor_engine_calls_total",
            "What engines were told to do, by how it ended.",
            self._calls,
            "engine",
            "verb",
            "result",
        )
        yield histogram("mandor_engine_call_duration_seconds", "How long they took.", self._durations, "engine", "verb")


def node_families(
    engines: Mapping[str, Capabilities], pressure: Iterable[str], usage: NodeUsage, phases: Mapping[Values, float]
) -> Iterator[Family]:
    """The machine as the agent sees it."""
    yield gauge("mandor_agent_instances", "Instances that this agent looks after, by phase.", phases, "phase")
    up = {(name,): float(each.up) for name, each in engines.items()}
    yield gauge("mandor_engine_up", "1: the engine answers.", up, "engine")
    pressed = {(what,): 1.0 for what in pressure}
    yield gauge("mandor_agent_pressure", "1: the machine is short of it.", pressed, "resource")
    yield gauge("mandor_machine_used_cpu_cores", "Processors in use, lately.", usage.cpu_milli / 1000)
    yield gauge("mandor_machine_used_memory_bytes", "Memory in use.", usage.memory_bytes)
    yield gauge("mandor_machine_used_disk_bytes", "Disk in use, where the agent keeps its data.", usage.disk_bytes)


def unit_families(used: Mapping[Unit, tuple[Instance, str, Usage]]) -> Iterator[Family]:
    """What each task of each instance uses; with its engine."""

    def of(field: str) -> dict[Values, float]:
        return {
            (each.meta.namespace, each.spec.workload, each.meta.name, unit.task, engine): float(getattr(usage, field))
            for unit, (each, engine, usage) in used.items()
        }

    yield counter("mandor_instance_cpu_seconds_total", "Processor time since it began.", of("cpu_seconds"), *UNIT)
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
