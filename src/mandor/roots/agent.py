"""The data plane as one process: an agent with the engines of its machine."""

import contextlib
import logging
import re
import socket
from pathlib import Path

import uvloop

from mandor.engines.base import Engine
from mandor.engines.registry import known_engines, make_engine
from mandor.errors import Conflict
from mandor.lib import logs
from mandor.lib.lock import Held, hold
from mandor.roots.settings import AgentRootSettings

log = logging.getLogger("mandor.agent")


def run(settings: AgentRootSettings) -> None:
    """Serve this node until a signal; its work goes on afterwards."""
    logs.set_up(settings.log_style, settings.log_level)  # type: ignore[arg-type]
    name = settings.name or default_name()
    try:
        with hold(settings.directory / "agent.lock"), contextlib.suppress(KeyboardInterrupt):
            uvloop.run(serve(settings, name))
    except Held as held:
        raise Conflict(f"another agent runs with {settings.directory}", hint=str(held)) from None


def default_name() -> str:
    """The host's name as a node name."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-") or "node"


def make_engines(wanted: tuple[str, ...], directory: Path) -> dict[str, Engine]:
    """The engines asked for, or every real one; `fake` only by name."""
    names = wanted or tuple(name for name in known_engines() if name != "fake")
    return {name: make_engine(name, directory=directory / "engines" / name) for name in names}
