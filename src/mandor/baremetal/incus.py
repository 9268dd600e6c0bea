"""Incus pipeline: virtual machines are instances of the Incus server on the chosen machine, or of a fixed one."""

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mandor.baremetal.pipeline import Pipeline, Run, VmOrder
from mandor.engines.incus.client import MISSING, IncusClient, Refused, Server, path_of
from mandor.engines.incus.options import IncusOptions, source_of
from mandor.errors import Invalid, Unavailable

MARK = "user.mandor.spare"
STOP_SECONDS = 30


class IncusPipeline(Pipeline):
    """`{address}` and `{node}` in `url` are replaced by the machine's. Other instances of Incus are never changed."""

    def __init__(
        self,
        url: str,
        image: str,
        type: str = "virtual-machine",  # noqa: A002 - it is Incus' word
        profiles: tuple[str, ...] = ("default",),
        config: Mapping[str, str] | None = None,
        certificate: str = "",
        key: str = "",
        server_certificate: str = "",
        project: str = "default",
    ) -> None:
        self._url, self._image, self._type, self._profiles = url, image, type, profiles
        self._config = dict(config or {})
        self._own, self._key, self._its = (
            Path(each) if each else None for each in (certificate, key, server_certificate)
        )
        self._project = project
        self._clients: dict[str, IncusClient] = {}

    async def create(self, order: VmOrder, run: Run) -> None:
        api = self._client(order)
        try:
            if run.id:  # Incus lists an instance before it is complete.
                await _finish(api, run)
            found = await _find(api, order.name)
            if found is None:
                await run.keep((await api.call("POST", "/1.0/instances", self._body(order)))["operation"])
                await _finish(api, run)
                found = await _find(api, order.name)
            if found is None:
                raise Unavailable(f"incus did not create {order.name}")
            if found["config"].get(MARK) != order.cluster:
                raise Invalid(f"incus has an instance {order.name} that mandor did not create")
            if found["status"] != "Running":
                await api.run("PUT", path_of(order.name, "state"), {"action": "start", "timeout": STOP_SECONDS})
        except Refused as error:
            raise Unavailable(f"incus could not create {order.name}: {error.message}") from error

    async def delete(self, order: VmOrder, run: Run) -> None:
        api = self._client(order)
        try:
            if run.id:
                with contextlib.suppress(Refused):  # Some operations cannot be cancelled.
                    await api.call("DELETE", run.id)
                with contextlib.suppress(Refused):
                    await _finish(api, run)
            found = await _find(api, order.name)
            if found is None or found["config"].get(MARK) != order.cluster:
                return
            if found["status"] != "Stopped":
                body = {"action": "stop", "timeout": STOP_SECONDS, "force": True}
                await api.run("PUT", path_of(order.name, "state"), body)
            await api.run("DELETE", path_of(order.name))
        except Refused as error:
            if not error.unknown:
                raise Unavailable(f"incus could not delete {order.name}: {error.message}") from error

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()
        self._clients.clear()

    def _client(self, order: VmOrder) -> IncusClient:
        url = self._url.replace("{address}", order.address).replace("{node}", order.node)
        if url not in self._clients:
            self._clients[url] = IncusClient(Server(url, self._own, self._key, self._its, self._project))
        return self._clients[url]

    def _body(self, order: VmOrder) -> dict[str, Any]:
        limits = {"limits.cpu": str(order.cpu), "limits.memory": f"{order.memory_mib}MiB"}
        return {
            "name": order.name,
            "type": self._type,
            "source": source_of(self._image, IncusOptions()),
            "profiles": list(self._profiles),
            "config": {**limits, **self._config, MARK: order.cluster, "boot.autostart": "true"},
        }


async def _finish(api: IncusClient, run: Run) -> None:
    """Wait for the operation of an earlier attempt, which continues in Incus; it may no longer be known."""
    try:
        await api.finish({"operation": run.id})
    except Refused as error:
        await run.keep("")
        if error.status != MISSING:
            raise
    else:
        await run.keep("")


async def _find(api: IncusClient, name: str) -> Mapping[str, Any] | None:
    try:
        found: Mapping[str, Any] = await api.get(path_of(name))
        return found
    except Refused as error:
        if error.status == MISSING or error.unknown:
            return None
        raise
