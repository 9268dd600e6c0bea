"""The data plane as one process: an agent with the engines of its machine."""

import argparse
import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from pathlib import Path

import uvloop

from mandor.agent.agent import Agent
from mandor.agent.http_link import HttpLink
from mandor.agent.journal import Journal
from mandor.agent.settings import AgentSettings
from mandor.client.aio import Client
from mandor.engines.base import Engine
from mandor.engines.registry import known_engines, make_engine
from mandor.errors import Conflict, Invalid
from mandor.lib import logs
from mandor.lib.clock import SystemClock
from mandor.lib.lock import Held, hold
from mandor.roots.settings import AgentRootSettings, default_name, load
from mandor.store.remote import RemoteStore

FAKE = "fake"


def run(settings: AgentRootSettings) -> None:
    """Serve this node until a signal; its work goes on afterwards."""
    logs.set_up(settings.log_style, settings.log_level)
    try:
        with hold(settings.directory / "agent.lock"):
            uvloop.run(serve(settings))
    except Held as held:
        raise Conflict(f"another agent runs in {settings.directory}", hint=str(held)) from None


async def serve(settings: AgentRootSettings) -> None:
    known = agent_settings(settings)
    journal = Journal(known.data)
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client(settings.server, ca_file=settings.server_ca))
        engines = make_engines(settings.engine, settings.directory)
        for engine in engines.values():
            await stack.enter_async_context(engine)
        link = HttpLink(client, known, journal)
        agent = Agent(known, RemoteStore(client), link, engines, SystemClock(), journal=journal)
        await _until_told(agent)


async def _until_told(agent: Agent) -> None:
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
        pool=settings.pool,
        address=settings.address,
        host_paths=settings.allow_host_path,
        heartbeat_seconds=float(settings.heartbeat),
    )


def make_engines(wanted: tuple[str, ...], directory: Path) -> dict[str, Engine]:
    """The engines asked for, or every real one that is installed; `fake` only by name."""
    names = wanted or tuple(name for name in known_engines() if name != FAKE)
    return {name: make_engine(name, directory=directory / "engines" / name) for name in names}


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
    labels = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise Invalid(f"{word!r} is not a label", hint="write KEY=VALUE")
        labels[key] = value
    return labels


def main() -> None:
    """`python -m mandor.roots.agent`: what `mandor dev` starts."""
    parser = argparse.ArgumentParser(prog="mandor-agent")
    for option in ("--data", "--name", "--join-token-file"):
        parser.add_argument(option)
    parser.add_argument("--server", type=lambda text: tuple(text.split(",")))
    parser.add_argument("--engine", action="append")
    parser.add_argument("--allow-host-path", action="append")
    run(load(AgentRootSettings, "agent", environ=os.environ, flags=vars(parser.parse_args())))


if __name__ == "__main__":
    main()
