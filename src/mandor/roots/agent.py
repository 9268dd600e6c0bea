"""Runs the data plane as one process: an agent with the engines of its machine."""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec
import uvloop

from mandor.agent.agent import Agent
from mandor.agent.fingerprint import capacity
from mandor.agent.foreign_ports import port_in_use
from mandor.agent.http_link import HttpLink
from mandor.agent.journal import SECRET_FILES, Journal
from mandor.agent.pressure import DEFAULT_THRESHOLDS, Threshold
from mandor.agent.settings import AgentSettings
from mandor.agent.shipping.agent_logs import AgentLogHandler
from mandor.client.aio import Client
from mandor.engines.base import Engine
from mandor.engines.registry import known_engines, make_engine
from mandor.errors import Conflict, Invalid
from mandor.lib import logs
from mandor.lib.clock import BootClock
from mandor.lib.lock import LockHeld, hold
from mandor.lib.metrics import Family
from mandor.lib.process_metrics import process_families
from mandor.lib.quantity import Cpu, Size
from mandor.lib.words import did_you_mean
from mandor.model.node import PortRange
from mandor.model.resources import Resources, device_amounts
from mandor.roots.balancing import choose_balancing, make_overlay
from mandor.roots.guard import GuardPost, Job
from mandor.roots.name_server import make_name_server
from mandor.roots.private_files import check_private_files
from mandor.roots.settings import AgentRootSettings, default_name, load
from mandor.roots.tracing import target_of, tracing
from mandor.store.remote import RemoteStore

ALL_ENGINES = "all"
"""Name for all installed engines, including `process`."""
ONLY_BY_NAME = frozenset({"fake", "process"})
"""Engines that an agent offers only by name: `fake` runs nothing, `process` runs tasks directly on the node."""
_PARTS: dict[str, tuple[str, Callable[[str], int]]] = {
    "cpu": ("cpu_milli", Cpu.parse),
    "memory": ("memory_bytes", Size.parse),
    "disk": ("disk_bytes", Size.parse),
}

log = logging.getLogger(__name__)


def run(settings: AgentRootSettings, *, dev: bool = False) -> None:
    """Serve this node until a signal; its instances keep running afterwards. `dev`: other users of the machine are
    trusted."""
    name = settings.name or default_name()
    own = AgentLogHandler(name)
    logs.set_up(settings.log_style, settings.log_level, also=own, node=name)
    target_of(settings)  # errors are reported before anything starts
    if not dev:
        check_private_files(settings.directory, SECRET_FILES)
    try:
        with hold(settings.directory / "agent.lock"):
            uvloop.run(serve(settings, own))
    except LockHeld as held:
        raise Conflict(f"another agent is running in {settings.directory}", hint=str(held)) from None


async def serve(settings: AgentRootSettings, own_logs: AgentLogHandler | None = None) -> None:
    known = agent_settings(settings)
    journal = Journal(known.data)
    async with contextlib.AsyncExitStack() as stack:
        pins = not settings.server_ca
        client = await stack.enter_async_context(
            Client(
                settings.server,
                ca_file=settings.server_ca,
                pinned=journal.authorities if pins else None,
                identity=journal.identity,
            )
        )
        engines = make_engines(settings.engine, settings.directory, settings.engine_option)
        for engine in engines.values():
            await stack.enter_async_context(engine)
        tracer = await stack.enter_async_context(tracing(target_of(settings), "mandor-agent", known.name))
        clock = BootClock()
        link = HttpLink(
            client, known, journal, join_token=partial(_join_token, settings), monotonic=clock.monotonic, pins=pins
        )
        agent = Agent(
            known,
            RemoteStore(client),
            link,
            engines,
            clock,
            journal=journal,
            port_in_use=port_in_use,
            clock_ahead=lambda: client.ahead_seconds,
            own_logs=own_logs,
            tracer=tracer,
            guard_control=GuardPost(_guard_job(settings)),
            balancing=await choose_balancing(settings.balancer, known.name, known.data),
            name_server=make_name_server(settings.dns, settings.dns_upstream, known.data) if known.names else None,
            overlay=make_overlay(settings.overlay, known.name),
        )
        if settings.metrics:
            from mandor.roots.metrics_page import metrics_at  # saves memory in agents that never need the server

            await stack.enter_async_context(metrics_at(settings.metrics, partial(_families, agent)))
        await _until_signal(agent)


async def _families(agent: Agent) -> list[Family]:
    return [*process_families(), *await agent.metrics()]


async def _until_signal(agent: Agent) -> None:
    working = asyncio.ensure_future(agent.run())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, working.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await working


def agent_settings(settings: AgentRootSettings) -> AgentSettings:
    return AgentSettings(
        name=settings.name or default_name(),
        data=settings.directory,
        servers=settings.server,
        join_token=_join_token(settings),
        labels=_labels(settings.label),
        pool=settings.pool or None,
        address=settings.address,
        capacity=_capacity(settings),
        devices=_devices(settings.device),
        max_instances=settings.max_instances,
        host_paths=settings.allow_host_path,
        egress_allow=settings.egress_allow,
        secret_files=settings.secret_files,
        names=settings.names,
        otlp=settings.otlp,
        ports=PortRange.parse(settings.port_range),
        thresholds=_thresholds(settings.pressure),
        heartbeat_seconds=float(settings.heartbeat),
    )


def make_engines(wanted: tuple[str, ...], directory: Path, options: tuple[str, ...] = ()) -> dict[str, Engine]:
    """Return the requested engines, or all installed ones; `fake` only by name, `process` by name or with `all`."""
    every, wanted = ALL_ENGINES in wanted, _named(wanted)
    settings = _engine_settings(options, wanted or tuple(known_engines()))
    left_out = ONLY_BY_NAME - {"process"} if every else ONLY_BY_NAME
    names = wanted or tuple(name for name in known_engines() if name not in left_out)
    made = {}
    for name in names:
        try:
            made[name] = make_engine(name, directory=directory / "engines" / name, **settings.get(name, {}))
        except Invalid as error:
            if name in wanted or name in settings:
                raise
            log.info("without the engine %s: %s", name, error)  # Usually an extra of the package is not installed.
    return made


def _guard_job(settings: AgentRootSettings) -> Job:
    return Job(
        data=str(settings.directory.absolute()),
        agent=os.getpid(),
        engines=_engine_settings(settings.engine_option, _named(settings.engine) or tuple(known_engines())),
        log_style=settings.log_style,
        log_level=settings.log_level,
    )


def _named(engines: tuple[str, ...]) -> tuple[str, ...]:
    return () if ALL_ENGINES in engines else engines


def _engine_settings(options: tuple[str, ...], known: tuple[str, ...]) -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for path, value in _pairs(options, "a setting of an engine", "ENGINE.SETTING=VALUE, as incus.url=https://…"):
        engine, dot, setting = path.partition(".")
        if not dot or engine not in known:
            raise Invalid(f"{path!r} is not a setting of an engine", hint=did_you_mean(engine, known))
        found.setdefault(engine, {})[setting] = value
    return found


def _join_token(settings: AgentRootSettings) -> str | None:
    if settings.join_token:
        return settings.join_token
    if not settings.join_token_file:
        return None
    try:
        return Path(settings.join_token_file).read_text().strip()
    except OSError as error:
        raise Invalid(f"cannot read the join token in {settings.join_token_file}: {error.strerror}") from error


def _labels(words: tuple[str, ...]) -> Mapping[str, str]:
    return dict(_pairs(words, "a label", "KEY=VALUE"))


def _capacity(settings: AgentRootSettings) -> Resources | None:
    """Return the capacity of the node; resources that are not named are those of the machine."""
    if not settings.capacity:
        return None
    has: dict[str, int] = {}
    for name, amount in _pairs(settings.capacity, "a part of a machine", "cpu=2, memory=4Gi or disk=10Gi"):
        if name not in _PARTS:
            raise Invalid(f"{name!r} is not a part of a machine", hint=did_you_mean(name, _PARTS))
        field, parse = _PARTS[name]
        try:
            has[field] = int(parse(amount))
        except ValueError as error:
            raise Invalid(f"capacity {name}: {error}") from error
    return msgspec.structs.replace(capacity(settings.directory), **has)


def _thresholds(words: tuple[str, ...]) -> Mapping[str, Threshold]:
    found: dict[str, Threshold | None] = dict(DEFAULT_THRESHOLDS)
    for what, text in _pairs(words, "a threshold", "memory=6%:3%:60s, disk=off"):
        if what not in DEFAULT_THRESHOLDS:
            raise Invalid(f"the pressure of {what!r} is not measured", hint=did_you_mean(what, DEFAULT_THRESHOLDS))
        try:
            found[what] = Threshold.parse(text)
        except ValueError as error:
            raise Invalid(str(error)) from error
    return {what: each for what, each in found.items() if each is not None}


def _devices(words: tuple[str, ...]) -> Mapping[str, int]:
    """Return the devices; the devices of several vendors add up to the number of their kind."""
    devices = Resources()
    for name, count in _pairs(words, "a kind of device", "gpu=4 or nvidia/gpu=4"):
        if not count.isdecimal() or int(count) > 1024:
            raise Invalid(f"device {name}: {count!r} is not a number of devices", hint="write gpu=4")
        try:
            devices += Resources(devices=device_amounts(name, int(count)))
        except ValueError as error:
            raise Invalid(str(error)) from error
    return devices.devices


def _pairs(words: tuple[str, ...], what: str, example: str) -> Iterator[tuple[str, str]]:
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise Invalid(f"{word!r} is not {what}", hint=f"write {example}")
        yield key, value


def main() -> None:
    """`python -m mandor.roots.agent`: the program that `mandor dev` starts."""
    parser = argparse.ArgumentParser(prog="mandor-agent")
    for option in ("--data", "--name", "--join-token-file", "--port-range", "--otlp", "--otlp-traces", "--trace-share"):
        parser.add_argument(option)
    parser.add_argument("--server", type=lambda text: tuple(text.split(",")))
    for option in (
        "--engine",
        "--engine-option",
        "--capacity",
        "--device",
        "--allow-host-path",
        "--pressure",
        "--egress-allow",
    ):
        parser.add_argument(option, action="append")
    run(load(AgentRootSettings, "agent", environ=os.environ, flags=vars(parser.parse_args())), dev=True)


if __name__ == "__main__":
    main()
