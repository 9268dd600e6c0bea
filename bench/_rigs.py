"""Engines for a bench: each started privately, and told by its own command and its own API what mandor tells it."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mandor.engines.base import Launch, Unit
from mandor.engines.containers.labels import labels_of
from mandor.engines.cri import wire
from mandor.engines.cri.client import CriClient
from mandor.engines.cri.config import container_config, sandbox_config
from mandor.engines.cri.options import CriOptions
from mandor.engines.docker_api.body import make_body
from mandor.engines.docker_api.client import ApiClient
from mandor.engines.docker_api.options import ContainerOptions
from mandor.engines.incus.body import make_body as make_instance
from mandor.engines.incus.client import IncusClient, Server, path_of
from mandor.engines.incus.options import IncusOptions
from scripts.components import find, missing
from tests.components.containerd import PAUSE, start_containerd
from tests.components.daemon import Daemon
from tests.components.docker import start_docker
from tests.components.image import NAME, busybox_image
from tests.components.incus import IMAGE, start_incus
from tests.components.podman import start_podman

SLEEP = ("sleep", "100000")
OWNER = "by-hand"


class Rig(ABC):
    """One engine; `setting` tells an agent where it is."""

    name: str
    image = NAME
    command: Sequence[str] = SLEEP
    daemon: Daemon

    def __init__(self) -> None:
        self._numbers = itertools.count()

    @property
    @abstractmethod
    def setting(self) -> str: ...

    def by_command(self) -> float | None:
        """Seconds its own command takes to start one; None: it has none here."""
        return None

    @abstractmethod
    async def start(self, uid: str) -> None:
        """The same as mandor tells it, over its API."""

    @abstractmethod
    async def remove(self, uid: str) -> None: ...

    async def by_api(self, count: int, at_once: int) -> float:
        """Seconds for so many; they are removed afterwards."""
        places = asyncio.Semaphore(at_once)
        uids = [f"hand{next(self._numbers)}" for _ in range(count)]

        async def start(uid: str) -> None:
            async with places:
                await self.start(uid)

        begun = time.monotonic()
        await asyncio.gather(*map(start, uids))
        taken = time.monotonic() - begun
        await asyncio.gather(*map(self.remove, uids))
        return taken

    def launch(self, uid: str) -> Launch:
        return Launch(name=uid, image=self.image, command=self.command, memory_bytes=None)

    def unit(self, uid: str) -> Unit:
        return Unit(uid, "main", 0)

    async def close(self) -> None:
        await self.client.close()

    client: Any

    def manifest(self, name: str, count: int) -> str:
        command = f"command: {list(self.command)!r}\n" if self.command else ""
        return (
            f"name: {name}\nreplicas: {count}\nengine: {self.name}\nimage: {self.image}\n{command}stop: {{grace: 0s}}\n"
        )


class DockerRig(Rig):
    name = "docker"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.daemon = self._open(folder)
        self.daemon.cli("load", data=busybox_image())
        self.client = ApiClient(self.name, folder / f"{self.name}.sock", cure="")

    def _open(self, folder: Path) -> Daemon:
        return start_docker(_binary("docker"), folder)

    @property
    def setting(self) -> str:
        return f"{self.name}.socket={self.client.socket}"

    def by_command(self) -> float | None:
        begun = time.monotonic()
        made = self.daemon.cli("run", "--detach", NAME, *SLEEP)
        taken = time.monotonic() - begun
        self.daemon.cli("rm", "--force", made)
        return taken

    async def start(self, uid: str) -> None:
        launch = self.launch(uid)
        body = make_body(launch, ContainerOptions(), labels_of(OWNER, self.unit(uid), launch))
        made = await self.client.post("/containers/create", body, seconds=300, name=uid)
        await self.client.post(f"/containers/{made['Id']}/start", seconds=300)

    async def remove(self, uid: str) -> None:
        await self.client.call("DELETE", f"/containers/{uid}", query={"force": "true", "v": "true"}, seconds=300)


class PodmanRig(DockerRig):
    name = "podman"

    def _open(self, folder: Path) -> Daemon:
        return start_podman(_binary("podman"), folder)


class CriRig(Rig):
    name = "cri"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        _binary("docker")  # for its runc
        containerd = start_containerd(_binary("containerd"), folder)
        self.daemon, self._folder, self._sandboxes = containerd, folder, dict[str, str]()
        containerd.load(busybox_image())
        containerd.load(busybox_image(PAUSE, config={"Cmd": ["tail", "-f", "/dev/null"]}))
        self.client = CriClient(containerd.socket)

    @property
    def setting(self) -> str:
        return f"cri.socket={self.client.socket}"

    async def start(self, uid: str) -> None:
        launch, options, unit = self.launch(uid), CriOptions(), self.unit(uid)
        labels = labels_of(OWNER, unit, launch)
        logs = self._folder / "hand" / uid
        logs.mkdir(parents=True)
        config = sandbox_config(uid, launch, options, labels, logs)
        sandbox = await self.client.call(wire.RUN_SANDBOX, seconds=300, config=config)
        self._sandboxes[uid] = sandbox.pod_sandbox_id
        container = container_config(unit, launch, options, labels, {})
        fields = {"pod_sandbox_id": sandbox.pod_sandbox_id, "config": container, "sandbox_config": config}
        made = await self.client.call(wire.CREATE, seconds=300, **fields)
        await self.client.call(wire.START, seconds=300, container_id=made.container_id)

    async def remove(self, uid: str) -> None:
        identity = self._sandboxes.pop(uid)
        for method in (wire.STOP_SANDBOX, wire.REMOVE_SANDBOX):
            await self.client.call(method, seconds=300, pod_sandbox_id=identity)


class IncusRig(Rig):
    name = "incus"
    image = IMAGE
    command = ()

    def __init__(self, folder: Path) -> None:
        super().__init__()
        incus = start_incus(_binary("incus"), folder)
        self.daemon, self._url = incus, incus.url
        self.client = IncusClient(Server(incus.url))

    @property
    def setting(self) -> str:
        return f"incus.url={self._url}"

    def by_command(self) -> float | None:
        name = f"by-command-{next(self._numbers)}"
        begun = time.monotonic()
        self.daemon.cli("launch", IMAGE, name)
        taken = time.monotonic() - begun
        self.daemon.cli("delete", "--force", name)
        return taken

    async def start(self, uid: str) -> None:
        await self.client.run("POST", "/1.0/instances", make_instance(uid, self.launch(uid), IncusOptions(), {}, None))
        await self.client.run("PUT", path_of(uid, "state"), {"action": "start", "timeout": 60})

    async def remove(self, uid: str) -> None:
        await self.client.run("PUT", path_of(uid, "state"), {"action": "stop", "force": True})
        await self.client.run("DELETE", path_of(uid))


RIGS = {rig.name: rig for rig in (DockerRig, PodmanRig, CriRig, IncusRig)}


def _binary(component: str) -> Path:
    found = find(component)
    if found is None:
        sys.exit(missing(component))
    return found
