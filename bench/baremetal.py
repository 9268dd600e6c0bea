"""Machines for virtual machines: how fast requests are accepted and placed, by one server over real HTTP and SQLite.

python bench/baremetal.py [--count 10000] [--machines 1000] [--connections 64] [--shuffles 200] [--json FILE]

Wanted: 2,000 requests a second are accepted with the queue inside the process, 800 go through RabbitMQ with
publisher confirms, and no machine is overcommitted. The load comes from this process; its own CPU is told beside the
server's, and rates are told by the second and by the server's second on a processor.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import uvloop

from bench._api import report
from bench._packing import quality
from bench._tasks import Load, Target, held, target, until_idle, until_ready, write_machines
from scripts.components import find
from tests.components.ports import free_port
from tests.components.rabbitmq import RabbitMq

ACCEPTED_LEAST, CONFIRMED_LEAST = 2_000, 800


async def flood(options: argparse.Namespace, **environ: str) -> dict[str, Any]:
    """All at once, and then until the last of them has its result."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        write_machines(folder / "machines.json", options.machines)
        with target(folder, port, MANDOR_INVENTORY=str(folder / "machines.json"), **environ) as server:
            await until_ready(port, options.machines)
            found, load = await _send(options, server)
        state = await held(folder / "data" / "state.db", load.accepted)
    return found | {
        "states": dict(state.states),
        "lost": state.missing,
        "placed_twice": state.twice,
        "machines_overcommitted": state.overcommitted,
        "machines_used": state.used,
    }


async def _send(options: argparse.Namespace, server: Target) -> tuple[dict[str, Any], Load]:
    load = Load.of(options.count, server.port, seed=1)
    began, cpu, own = time.monotonic(), server.cpu_seconds(), time.process_time()
    seconds = await load.send(server.port, options.connections)
    accepting = server.cpu_seconds() - cpu
    own = time.process_time() - own
    await until_idle(server.port)
    whole, all_cpu = time.monotonic() - began, server.cpu_seconds() - cpu
    count = len(load.accepted)
    found = {
        "accepted": count,
        "refused": {str(status): number for status, number in load.refused.items()},
        "accepted_per_second": round(count / seconds),
        "accepted_per_server_cpu_second": round(count / accepting),
        "load_cpu_seconds": round(own, 2),
        "seconds_to_last_result": round(whole, 2),
        "placed_per_second": round(count / whole),
        "placed_per_server_cpu_second": round(count / all_cpu),
    }
    return found, load


async def accept_only(options: argparse.Namespace) -> dict[str, Any]:
    """A server that takes requests in while others place them: what the API and the store cost."""
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        write_machines(folder / "machines.json", 1)
        known = {"MANDOR_INVENTORY": str(folder / "machines.json")}
        with target(folder, port, **known):
            await until_ready(port, 1)
        with target(folder, port, MANDOR_ROLES="api") as server:
            await until_ready(port, 1)
            load = Load.of(options.count, port, seed=1)
            cpu = server.cpu_seconds()
            seconds = await load.send(port, options.connections)
            cpu = server.cpu_seconds() - cpu
    count = len(load.accepted)
    return {
        "accepted": count,
        "accepted_per_second": round(count / seconds),
        "accepted_per_server_cpu_second": round(count / cpu),
    }


async def through_rabbitmq(options: argparse.Namespace) -> dict[str, Any] | None:
    epmd = find("rabbitmq", "epmd")
    if epmd is None:
        return None
    with tempfile.TemporaryDirectory() as name:
        broker = RabbitMq(epmd, Path(name))
        await asyncio.to_thread(broker.start)
        try:
            return await flood(options, MANDOR_TASK_QUEUE=broker.url)
        finally:
            await asyncio.to_thread(broker.kill)


def within(result: dict[str, Any]) -> bool:
    runs = [result["in_process"], *([result["rabbitmq"]] if result["rabbitmq"] else [])]
    sound = not any(each["lost"] or each["placed_twice"] or each["machines_overcommitted"] for each in runs)
    fast = result["in_process"]["accepted_per_second"] >= ACCEPTED_LEAST
    confirmed = result["rabbitmq"] is None or result["rabbitmq"]["placed_per_second"] >= CONFIRMED_LEAST
    return sound and fast and confirmed and result["quality"]["orders_worse"] == 0


async def main(options: argparse.Namespace) -> int:
    result: dict[str, Any] = {
        "machines": options.machines,
        "connections": options.connections,
        "accept_only": await accept_only(options),
        "in_process": await flood(options),
        "rabbitmq": await through_rabbitmq(options),
        "quality": quality(options.shuffles),
    }
    result["within_bound"] = within(result)
    report("baremetal", result, options.json)
    return 0 if result["within_bound"] else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--machines", type=int, default=1_000)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--shuffles", type=int, default=200, help="orders of requests whose placement is compared")
    parser.add_argument("--json", help="where to keep the result")
    sys.exit(uvloop.run(main(parser.parse_args())))
