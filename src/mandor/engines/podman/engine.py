"""The podman engine, over the socket of podman's service: Docker's API, and podman's own where they differ."""

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
    """Podman polls while it waits for an end, which takes a quarter of a core and delays the end."""
    kill: ClassVar[str] = "/libpod/containers/{}/kill"
    """Podman's call returns at once; Docker's form of it waits for the end of the container."""
    initialize: ClassVar[str] = "/libpod/containers/{}/init"

    _limits: frozenset[str] | None = None
    _known_host: Mapping[str, Any] | None = None
    _counts = True

    def default_socket(self) -> Path:
        return find_socket()

    async def limits(self) -> frozenset[str]:
        """Return the limits that are enforced: rootless podman has only delegated controllers, none with cgroups v1.

        Read once: podman takes seconds to answer, and the answer changes only with a reboot.
        """
        if self._limits is None:
            host = await self._host()
            found = {LIMITS[each] for each in host.get("cgroupControllers") or () if each in LIMITS}
            self._limits = frozenset(found)
            # Without its own cgroup a container has no statistics.
            self._counts = host.get("cgroupVersion") == "v2" or not host["security"]["rootless"]
        return self._limits

    async def maps_users(self) -> bool:
        return bool((await self._host())["security"]["rootless"])

    async def rootless(self) -> bool:
        return await self.maps_users()

    async def _host(self) -> Mapping[str, Any]:
        if self._known_host is None:
            self._known_host = (await self._api.get("/libpod/info"))["host"]
        return self._known_host

    def logs(
        self, unit: Unit, *, follow: bool = False, tail: int | None = None, since: float | None = None
    ) -> AsyncIterator[LogLine]:
        """Podman compares times in whole seconds, so `since` is rounded down."""
        return super().logs(unit, follow=follow, tail=tail, since=None if since is None else floor(since))

    @property
    def extras(self) -> frozenset[str]:
        return super().extras if self._counts else super().extras - {"stats"}

    async def _usage(self, ids: Mapping[str, Unit]) -> Mapping[Unit, Usage]:
        """Measure all containers with one request."""
        if not ids or not self._counts:
            return {}
        found = await self._api.get("/libpod/containers/stats", stream="false")
        stats = {each["ContainerID"]: each for each in found.get("Stats") or ()}
        return {unit: usage_of(stats[key]) for key, unit in ids.items() if key in stats}

    def correct(self, observed: Observed, inspected: Mapping[str, Any], *, asked: bool) -> Observed:
        """Report a container with a memory limit as OOMKilled if it was killed and not by the agent.

        With cgroups v1 podman does not report that memory ran out.
        """
        limited = (inspected["Config"]["Labels"] or {}).get(MEMORY)
        if observed.reason == "Signalled" and observed.exit_code == KILLED and limited and not asked:
            return replace(observed, reason="OOMKilled")
        return observed


def find_socket(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the socket of CONTAINER_HOST, else that of root or of the user."""
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
