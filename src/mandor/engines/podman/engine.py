"""Podman, over the socket of its service: Docker's API, and where podman differs, its own."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Mapping
from math import floor
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from mandor.engines.base import LogLine, Observed, Unit, Usage
from mandor.engines.containers.labels import MEMORY
from mandor.engines.docker_api.engine import DockerApiEngine

SOCKET = Path("/run/podman/podman.sock")
KILLED = 137
LIMITS = {"cpu": "cpu", "memory": "memory", "pids": "processes"}


class PodmanEngine(DockerApiEngine):
    name: ClassVar[str] = "podman"
    cure: ClassVar[str] = "systemctl start podman.socket"
    program: ClassVar[str] = "podman"
    waits: ClassVar[bool] = False
    """While it waits, podman keeps looking, with a quarter of a core, and hinders those who end the container."""
    kill: ClassVar[str] = "/libpod/containers/{}/kill"
    """Sent and answered; Docker's form of it waits for the end, as above."""

    _limits: frozenset[str] | None = None
    _known_host: Mapping[str, Any] | None = None
    _counts = True

    def default_socket(self) -> Path:
        return find_socket()

    async def limits(self) -> frozenset[str]:
        """A user's own podman has only the controllers that were delegated to them: none with cgroups v1.

        Asked once: the answer takes podman seconds, and changes with the machine's boot only.
        """
        if self._limits is None:
            host = await self._host()
            found = {LIMITS[each] for each in host.get("cgroupControllers") or () if each in LIMITS}
            self._limits = frozenset(found)
            # Without a cgroup of its own there is nothing to count in.
            self._counts = host.get("cgroupVersion") == "v2" or not host["security"]["rootless"]
        return self._limits

    async def maps_users(self) -> bool:
        return bool((await self._host())["security"]["rootless"])

    async def _host(self) -> Mapping[str, Any]:
        if self._known_host is None:
            self._known_host = (await self._api.get("/libpod/info"))["host"]
        return self._known_host

    def logs(
        self, unit: Unit, *, follow: bool = False, tail: int | None = None, since: float | None = None
    ) -> AsyncIterator[LogLine]:
        """Podman tells times in whole seconds: rather some lines too many than one too few."""
        return super().logs(unit, follow=follow, tail=tail, since=None if since is None else floor(since))

    @property
    def extras(self) -> frozenset[str]:
        return super().extras if self._counts else super().extras - {"stats"}

    async def _usage(self, ids: Mapping[str, Unit]) -> Mapping[Unit, Usage]:
        """All containers with one question."""
        if not ids or not self._counts:
            return {}
        found = await self._api.get("/libpod/containers/stats", stream="false")
        stats = {each["ContainerID"]: each for each in found.get("Stats") or ()}
        return {unit: usage_of(stats[key]) for key, unit in ids.items() if key in stats}

    def judge(self, observed: Observed, inspected: Mapping[str, Any], *, asked: bool) -> Observed:
        """With cgroups v1 podman does not say that memory ran out.

        Killed with a limit on its memory, and not by mandor: taken for that.
        """
        limited = (inspected["Config"]["Labels"] or {}).get(MEMORY)
        if observed.reason == "Signalled" and observed.exit_code == KILLED and limited and not asked:
            return replace(observed, reason="OOMKilled")
        return observed


def find_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """The one that CONTAINER_HOST names, else root's for root and a user's own for others."""
    named = environ.get("CONTAINER_HOST", "")
    if named.startswith("unix://"):
        return Path(named.removeprefix("unix://"))
    if os.geteuid() == 0:
        return SOCKET
    own = environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.geteuid()}"
    return Path(own) / "podman" / "podman.sock"


def usage_of(stats: Mapping[str, Any]) -> Usage:
    return Usage(
        cpu_seconds=int(stats.get("CPUNano", 0)) / 1e9,
        memory_bytes=int(stats.get("MemUsage", 0)),
        network_in_bytes=int(stats.get("NetInput", 0)),
        network_out_bytes=int(stats.get("NetOutput", 0)),
        disk_read_bytes=int(stats.get("BlockInput", 0)),
        disk_write_bytes=int(stats.get("BlockOutput", 0)),
    )
