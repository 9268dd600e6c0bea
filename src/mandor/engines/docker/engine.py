"""Docker, over its socket."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from mandor.engines.docker_api.engine import ContainerEngine

SOCKET = Path("/var/run/docker.sock")


class DockerEngine(ContainerEngine):
    name: ClassVar[str] = "docker"
    cure: ClassVar[str] = "systemctl start docker"
    program: ClassVar[str] = "dockerd"

    def __init__(
        self,
        directory: Path,
        *,
        socket: Path | None = None,
        credentials: Sequence[Path] | None = None,
        answer_seconds: float = 60.0,
    ) -> None:
        """`socket` None: the one that DOCKER_HOST names, else the system's, else the user's own (rootless)."""
        super().__init__(
            directory, socket=socket or find_socket(), credentials=credentials, answer_seconds=answer_seconds
        )


def find_socket(environ: Mapping[str, str] = os.environ) -> Path:
    named = environ.get("DOCKER_HOST", "")
    if named.startswith("unix://"):
        return Path(named.removeprefix("unix://"))
    own = Path(environ.get("XDG_RUNTIME_DIR") or "/nonexistent") / "docker.sock"
    return own if own.exists() and not os.access(SOCKET, os.W_OK) else SOCKET
