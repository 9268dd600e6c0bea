"""Sandboxes: an idle container for each instance that holds the network its tasks share."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from mandor.engines.base import Launch, Observed
from mandor.engines.containers import labels as marks
from mandor.engines.docker_api.body import add_network
from mandor.engines.docker_api.client import GONE, NOT_NOW, START_SECONDS, ApiClient, Refused
from mandor.engines.docker_api.idle import IDLE, idle_archive
from mandor.engines.docker_api.observe import address_of
from mandor.engines.docker_api.options import ContainerOptions
from mandor.errors import Conflict

SANDBOX = "io.mandor.sandbox"
IDLE_USER = "65534:65534"
"""Settings of the idle container, which needs no capabilities."""


class Sandboxes:
    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self._addresses: dict[str, str] = {}
        """Sandbox containers by instance uid, as last listed."""
        self._busy = asyncio.Lock()

    def saw(self, listed: Iterable[Mapping[str, Any]]) -> None:
        held = [each for each in listed if each["Labels"].get(SANDBOX)]
        self._addresses = {each["Labels"][marks.UID]: address_of(each) for each in held}

    def located(self, observed: Observed) -> Observed:
        """Return the state of a unit with the address of its sandbox."""
        address = self._addresses.get(observed.unit.uid)
        return observed if not address or observed.address else replace(observed, address=address)

    def known(self, uid: str) -> bool:
        return uid in self._addresses

    async def ensure(self, uid: str, launch: Launch, options: ContainerOptions, owner: str) -> str:
        """Return the running sandbox container of an instance, created if need be."""
        name = _name(uid)
        async with self._busy:
            self._addresses.setdefault(uid, "")
            try:
                found = await self._api.get(f"/containers/{name}/json")
            except Refused as error:
                if error.status != GONE:
                    raise
                await self._ensure_image()
                labels = {marks.OWNER: owner, marks.UID: uid, SANDBOX: "1", marks.NAME: launch.name.partition("/")[0]}
                body: dict[str, Any] = {"Image": IDLE, "Entrypoint": ["/idle"], "Cmd": [], "Labels": labels}
                body["User"] = IDLE_USER
                body["HostConfig"] = {
                    "RestartPolicy": {"Name": "no"},
                    "CapDrop": ["ALL"],
                    "SecurityOpt": ["no-new-privileges"],
                    "ReadonlyRootfs": True,
                }
                add_network(body, launch, options)
                found = await self._api.post("/containers/create", body, seconds=START_SECONDS, name=name)
            if "Config" in found and (found["Config"]["Labels"] or {}).get(marks.OWNER) != owner:
                raise Conflict(
                    f"there is a container {name} that belongs to another agent or program", hint="remove or rename it"
                )
            if not (found.get("State") or {}).get("Running"):
                await self._api.post(f"/containers/{found['Id']}/start", seconds=START_SECONDS)
            return str(found["Id"])

    async def remove(self, uid: str) -> None:
        self._addresses.pop(uid, None)
        try:
            await self._api.call("DELETE", f"/containers/{_name(uid)}", query={"force": "true", "v": "true"})
        except Refused as error:
            if error.status not in {GONE, NOT_NOW}:
                raise

    async def tidy(self, wanted: set[str]) -> None:
        """Remove sandboxes of instances without units, such as those left by a crash."""
        for uid in [uid for uid in self._addresses if uid not in wanted]:
            await self.remove(uid)

    async def _ensure_image(self) -> None:
        try:
            await self._api.get(f"/images/{IDLE}/json")
        except Refused as error:
            if error.status != GONE:
                raise
            repository, _, tag = IDLE.rpartition(":")
            await self._api.call(
                "POST",
                "/images/create",
                query={"fromSrc": "-", "repo": repository, "tag": tag},
                data=idle_archive(),
                headers={"Content-Type": "application/x-tar"},
            )


def _name(uid: str) -> str:
    return f"mandor-{uid}"
