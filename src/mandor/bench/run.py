"""Runs one case of a scenario file and returns the measurements."""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from mandor.bench.cluster import Cluster
from mandor.bench.home import open_home
from mandor.bench.machine import machine
from mandor.bench.meter import Meter
from mandor.bench.scenario import Case, Op, Workload
from mandor.bench.steps import Steps
from mandor.errors import Unavailable, Unsupported
from mandor.lib.clock import SystemClock
from mandor.model.instance import Instance
from mandor.model.node import Node
from mandor.scheduler.reload import ConfigSource, Configured
from mandor.store.base import Store


def run_case(
    case: Case,
    workload: Workload,
    *,
    home: str = "memory",
    etcd: str = "",
    profile: Path | None = None,
    lenient: bool = False,
    seconds: float = 600.0,
    say: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Run a case; `profile`: a scheduler configuration that replaces the case's own."""
    configured = Configured(ConfigSource(profile or case.scheduler_config))
    try:
        return uvloop.run(_run(case, workload, home, etcd, configured, lenient, seconds, say))
    except ExceptionGroup as group:
        # Tasks run concurrently, so their errors come in an exception group.
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from group


async def _run(
    case: Case,
    workload: Workload,
    home: str,
    etcd: str,
    configured: Configured,
    lenient: bool,
    seconds: float,
    say: Callable[[str], None],
) -> dict[str, Any]:
    found = machine()
    meter = Meter()
    async with open_home(home, etcd) as (store, others):
        used = others()
        async with Cluster(store, SystemClock(), configured, meter) as cluster:
            ops = case.ops(workload)
            steps = Steps(case, cluster, lenient=lenient, say=say)
            if not lenient:
                await _check(Steps(case, cluster, lenient=True, say=say), ops)
            try:
                async with asyncio.timeout(seconds):
                    await steps.run(ops)
            except TimeoutError:
                raise await _stuck(cluster, seconds, tuple(steps.notes)) from None
            placed = await _placed(store)
        store_cpu = others() - used
    results: dict[str, Any] = {"case": f"{case.name}/{workload.name}", "store": home, **meter.results(), **placed}
    if home == "etcd" and not etcd:
        results["etcd_cpu_seconds"] = round(store_cpu, 3)
    return results | {"threshold": workload.threshold, "notes": list(steps.notes), "machine": found}


async def _check(steps: Steps, ops: Sequence[Op]) -> None:
    """Report everything in a case without a counterpart, before it runs."""
    await steps.look_through(ops)
    missing = list(steps.unsupported.values())
    if len(missing) == 1:
        raise missing[0]
    if missing:
        errors = [{"message": each.message, "file": each.facts["file"], "line": each.facts["line"]} for each in missing]
        errors[-1]["hint"] = missing[-1].hint
        raise Unsupported(f"{len(missing)} things in it have no counterpart", hint=missing[0].hint, errors=errors)


async def _stuck(cluster: Cluster, seconds: float, left_out: Sequence[str]) -> Unavailable:
    waiting = cluster.waiting()
    hint = "--timeout gives it longer"
    if left_out:
        hint = f"what was left out may be why: {'; '.join(left_out)}"
    if not waiting:
        return Unavailable(f"the run was not over after {seconds:g} s", hint=hint)
    first = await cluster.store.get(waiting[0])
    why = first.status.message if isinstance(first, Instance) else ""
    return Unavailable(
        f"after {seconds:g} s {len(waiting)} instances have no node, {waiting[0].namespace}/{waiting[0].name} for one: "
        f"{why or 'it was not tried yet'}",
        hint=hint,
    )


async def _placed(store: Store) -> dict[str, Any]:
    """Return the number of instances by node at the end."""
    nodes = (await store.list(Node.kind)).items
    instances = (await store.list(Instance.kind)).items
    on = Counter(each.node for each in instances if each.node)
    return {"nodes": len(nodes), "instances": len(instances), "most_on_a_node": max(on.values(), default=0)}
