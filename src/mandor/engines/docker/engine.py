"""The docker engine, over Docker's socket."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace

from mandor.engines.docker_api.engine import DockerApiEngine
from mandor.model.network import OVERLAY
from mandor.model.node import Capabilities

SOCKET = Path("/var/run/docker.sock")


class DockerEngine(DockerApiEngine):
    name: ClassVar[str] = "docker"
    cure: ClassVar[str] = "systemctl start docker"
    program: ClassVar[str] = "dockerd"

    def default_socket(self) -> Path:
        return find_socket()

    async def probe(self) -> Capabilities:
        """Return the capabilities; a rootless Docker has a network namespace of its own, without the node's bridges."""
        found = await super().probe()
        with self._engine_errors("report its version"):
            rootless = await self.rootless()
        return found if rootless else replace(found, extras=found.extras | {OVERLAY})


def find_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the socket of DOCKER_HOST, else that of the system, else that of the user (rootless)."""
    named = environ.get("DOCKER_HOST", "")
    if named.startswith("unix://"):
        return Path(named.removeprefix("unix://"))
    own = Path(environ.get("XDG_RUNTIME_DIR") or "/nonexistent") / "docker.sock"
    return own if own.exists() and not os.access(SOCKET, os.W_OK) else SOCKET
