"""The docker engine, over Docker's socket."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from mandor.engines.docker_api.engine import DockerApiEngine

SOCKET = Path("/var/run/docker.sock")


class DockerEngine(DockerApiEngine):
    name: ClassVar[str] = "docker"
    cure: ClassVar[str] = "systemctl start docker"
    program: ClassVar[str] = "dockerd"

    def default_socket(self) -> Path:
        return find_socket()


def find_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the socket of DOCKER_HOST, else that of the system, else that of the user (rootless)."""
    named = environ.get("DOCKER_HOST", "")
    if named.startswith("unix://"):
        return Path(named.removeprefix("unix://"))
    own = Path(environ.get("XDG_RUNTIME_DIR") or "/nonexistent") / "docker.sock"
    return own if own.exists() and not os.access(SOCKET, os.W_OK) else SOCKET
