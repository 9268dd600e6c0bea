"""Networks of the engine that adopt a bridge of the node: containers get the addresses that the agent leased."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from mandor.engines.base import Attachment
from mandor.engines.containers import labels as marks
from mandor.engines.docker_api.client import GONE, NOT_NOW, ApiClient, Refused, filters
from mandor.errors import Conflict

NETWORK = "io.mandor.network"
"""Label of an adopted network: the name of the network in the cluster."""
_PREFIX = "com.docker.network"


class EngineNetworks:
    """Creates networks of the engine when they are needed, and removes those that no container uses."""

    def __init__(self, api: ApiClient, owner: Callable[[], str]) -> None:
        """`owner`: returns the agent that owns the networks."""
        self._api, self._owner = api, owner
        self._busy = asyncio.Lock()

    async def ensure(self, attachment: Attachment) -> None:
        """Make sure that the engine has a network with the bridge and the ranges of the attachment."""
        name, body = network_name(attachment), network_body(attachment, self._owner())
        async with self._busy:
            try:
                found = await self._api.get(f"/networks/{name}")
            except Refused as error:
                if error.status != GONE:
                    raise
            else:
                if (found.get("Labels") or {}).get(marks.OWNER) != self._owner():
                    raise Conflict(
                        f"there is a network {name} that belongs to another agent or program",
                        hint="remove or rename it",
                    )
                if same_network(found, body):
                    return
                # Running containers stay on the bridge without it, but the engine refuses to remove it then.
                await self._api.call("DELETE", f"/networks/{name}")
            await self._remove_unused()
            await self._api.post("/networks/create", body)

    async def _remove_unused(self) -> None:
        """Remove the adopted networks of this agent that no container uses; the bridges stay."""
        for each in await self._api.get(
            "/networks", filters=filters(label=[f"{marks.OWNER}={self._owner()}", NETWORK])
        ):
            try:
                if not (await self._api.get(f"/networks/{each['Id']}")).get("Containers"):
                    await self._api.call("DELETE", f"/networks/{each['Id']}")
            except Refused as error:
                if error.status not in {GONE, NOT_NOW, 403}:  # 403: a container uses it
                    raise


def network_name(attachment: Attachment) -> str:
    """Return the name of the network in the engine; other agents of the machine have bridges of their own."""
    return f"mandor-{attachment.bridge}"


def network_body(attachment: Attachment, owner: str) -> dict[str, Any]:
    """Return the request that creates a network which adopts the bridge.

    The agent's own rules translate addresses where needed, so that other members see the address of the instance.
    """
    ranges = [{"Subnet": attachment.subnet, "Gateway": attachment.gateway}]
    if attachment.subnet6:
        ranges.append({"Subnet": attachment.subnet6, "Gateway": attachment.gateway6})
    return {
        "Name": network_name(attachment),
        "CheckDuplicate": True,
        "Driver": "bridge",
        "EnableIPv6": bool(attachment.subnet6),
        "IPAM": {"Driver": "default", "Config": ranges},
        "Labels": {marks.OWNER: owner, NETWORK: attachment.network},
        "Options": {
            f"{_PREFIX}.bridge.name": attachment.bridge,
            f"{_PREFIX}.bridge.enable_ip_masquerade": "false",
            f"{_PREFIX}.driver.mtu": str(attachment.mtu),
        },
    }


def same_network(found: Mapping[str, Any], body: Mapping[str, Any]) -> bool:
    """Return whether a network of the engine has the ranges and options of the request."""
    ranges = [(each.get("Subnet"), each.get("Gateway")) for each in (found.get("IPAM") or {}).get("Config") or ()]
    wanted = [(each["Subnet"], each["Gateway"]) for each in body["IPAM"]["Config"]]
    return ranges == wanted and (found.get("Options") or {}) == body["Options"]
