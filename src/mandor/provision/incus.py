"""Incus provisioner: each machine is an Incus instance whose agent joins by itself.

Instances are marked with the ids of their cluster and machine; instances without these marks are never touched. The
settings of the agent are written to `/etc/mandor/mandor.toml`; a command or cloud-init then starts it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta, Struct

from mandor.engines.incus.client import MISSING, IncusClient, Refused, Server, path_of
from mandor.engines.incus.engine import find_url
from mandor.engines.incus.options import IncusOptions, source_of
from mandor.engines.options import read_options
from mandor.errors import Invalid, Unavailable
from mandor.lib.egress import Egress
from mandor.provision.base import MachineOrder, Made, NotMade, Provisioner

MACHINE, CLUSTER, BEGUN = "user.mandor.machine", "user.mandor.cluster", "user.mandor.begun"
SETTINGS = "/etc/mandor/mandor.toml"
CA = "/etc/mandor/ca.pem"
DATA = "/var/lib/mandor/agent"
STOP_SECONDS = 30


class IncusMachineOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options of a kind of machine."""

    image: str
    """Image as in a workload: a local alias, `images:debian/12` … It contains `mandor`, or `start` installs it."""
    type: Literal["container", "virtual-machine"] = "container"
    profiles: tuple[str, ...] = ("default",)
    config: dict[str, str | int | bool] = {}
    """Incus configuration keys, for example `security.nesting: true` for engines inside."""
    devices: dict[str, dict[str, str | int | bool]] = {}
    begin: Literal["command", "cloud-init"] = "command"
    """How the agent is started: by running `start` in the instance, or by cloud-init at the first boot."""
    start: Annotated[tuple[str, ...], Meta(max_length=64)] = ("systemctl", "enable", "--now", "mandor-agent")
    """Command that starts the agent, after its settings were written to /etc/mandor/mandor.toml."""
    environment: dict[str, str] = {}
    """Environment of that command."""
    servers: tuple[str, ...] = ()
    """API servers for its agent; empty: those of the pool."""
    server: str | None = None
    """Image server; empty: a remote that is known by name."""
    protocol: Literal["simplestreams", "incus"] | None = None
    server_certificate: str | None = None


class IncusProvisioner(Provisioner):
    name: ClassVar[str] = "incus"
    options: ClassVar[type[Struct]] = IncusMachineOptions
    file_settings: ClassVar[tuple[str, ...]] = ("certificate", "key", "server_certificate")
    url_settings: ClassVar[tuple[str, ...]] = ("url",)

    def __init__(
        self,
        url: str = "",
        certificate: str = "",
        key: str = "",
        server_certificate: str = "",
        project: str = "default",
    ) -> None:
        """`url` empty: the Incus socket of the server's machine."""
        own, secret, its = (Path(each) if each else None for each in (certificate, key, server_certificate))
        self._api = IncusClient(Server(url or find_url(), own, secret, its, project))

    def restrict(self, egress: Egress) -> None:
        super().restrict(egress)
        self._api.egress = egress

    async def create(self, order: MachineOrder) -> None:
        options = read_options(self.name, order.what.options, IncusMachineOptions)
        name = _name(order.id)
        try:
            found = await self._find(name)
        except (Refused, Unavailable) as error:
            raise NotMade(f"incus could not make {name}: {error}") from error
        try:
            if found is None:
                found = await self._make(name, body_of(order, options))
            if found is None or not _own(found, order.cluster, order.id):
                raise Invalid(f"incus has an instance {name} that is not this machine")
            if found["status"] != "Running":
                await self._state(name, "start")
            if options.begin == "command" and found["config"].get(BEGUN) != "true":
                await self._begin(name, order, options)
                await self._api.call("PATCH", path_of(name), {"config": {BEGUN: "true"}})
        except Refused as error:
            raise Unavailable(f"incus could not make {name}: {error.message}") from error

    async def _make(self, name: str, body: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Create the instance and return it; raise `NotMade` if Incus refused and kept nothing."""
        try:
            await self._api.run("POST", "/1.0/instances", body)
        except Refused as error:
            if await self._find(name) is None:
                raise NotMade(f"incus could not make {name}: {error.message}") from error
            raise
        return await self._find(name)

    async def list(self, cluster: str) -> Sequence[Made]:
        try:
            found = await self._api.get("/1.0/instances", recursion=1)
        except Refused as error:
            raise Unavailable(f"cannot list the instances of incus: {error.message}") from error
        own = (each for each in found if each["config"].get(CLUSTER) == cluster)
        return [_made(each) for each in own if MACHINE in each["config"]]

    async def delete(self, cluster: str, machine: str) -> None:
        name = _name(machine)
        try:
            found = await self._find(name)
            if found is None or not _own(found, cluster, machine):
                return
            if found["status"] != "Stopped":
                await self._state(name, "stop", force=True)
            await self._api.run("DELETE", path_of(name))
        except Refused as error:
            if not error.unknown:
                raise Unavailable(f"incus could not delete {name}: {error.message}") from error

    async def close(self) -> None:
        await self._api.close()

    # Requests to Incus.

    async def _find(self, name: str) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = await self._api.get(path_of(name))
            return found
        except Refused as error:
            if error.status == MISSING or error.unknown:
                return None
            raise

    async def _state(self, name: str, action: str, *, force: bool = False) -> None:
        body = {"action": action, "timeout": STOP_SECONDS, "force": force}
        await self._api.run("PUT", path_of(name, "state"), body)

    async def _begin(self, name: str, order: MachineOrder, options: IncusMachineOptions) -> None:
        for folder in ("/etc", str(Path(SETTINGS).parent)):
            await self._push(name, folder, None)
        await self._push(name, SETTINGS, settings_of(order, options))
        if order.join.ca:
            await self._push(name, CA, order.join.ca)
        body = {
            "command": list(options.start),
            "environment": {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
            | options.environment,
            "wait-for-websocket": False,
            "interactive": False,
        }
        operation = await self._api.call("POST", path_of(name, "exec"), body)
        ended = await self._ended(operation)
        code = (ended or {}).get("metadata", {}).get("return")
        if code not in {None, 0}:
            raise Unavailable(f"{options.start[0]!r} ended with {code} in {name}: no agent was started")

    async def _ended(self, operation: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the exit code of a command; None: it is still running, and is the agent itself."""
        try:
            found: Mapping[str, Any] = await self._api.call(
                "GET", f"{operation['operation']}/wait", query={"timeout": 5}
            )
        except Refused as error:
            if "deadline exceeded" in error.message:
                return None
            raise
        return found if found.get("status_code", 0) >= 200 else None

    async def _push(self, name: str, path: str, content: str | None) -> None:
        kind = "file" if content is not None else "directory"
        headers = {"X-Incus-type": kind, "X-Incus-mode": "0600" if content else "0755"}
        headers |= {"X-Incus-uid": "0", "X-Incus-gid": "0"}
        data = content.encode() if content is not None else b""
        try:
            await self._api.fetch("POST", path_of(name, "files"), query={"path": path}, data=data, headers=headers)
        except Refused as error:
            if content is not None or "exists" not in error.message.lower():
                raise


def body_of(order: MachineOrder, options: IncusMachineOptions) -> dict[str, Any]:
    """Return the body of the request that creates an instance."""
    config = {name: _text(value) for name, value in options.config.items()}
    config |= {MACHINE: order.id, CLUSTER: order.cluster, "boot.autostart": "true"}
    config.setdefault("limits.cpu", str(max(1, -(-int(order.what.cpu) // 1000))))
    config.setdefault("limits.memory", f"{int(order.what.memory)}B")
    if options.begin == "cloud-init":
        config["cloud-init.user-data"] = user_data(order, options)
    asked = IncusOptions(
        server=options.server, protocol=options.protocol, server_certificate=options.server_certificate
    )
    return {
        "name": _name(order.id),
        "type": options.type,
        "source": source_of(options.image, asked),
        "profiles": list(options.profiles),
        "config": config,
        "devices": {name: {key: _text(value) for key, value in each.items()} for name, each in options.devices.items()},
    }


def settings_of(order: MachineOrder, options: IncusMachineOptions) -> str:
    """Return the agent's settings as TOML; JSON texts and lists are valid TOML."""
    labels = [f"{key}={value}" for key, value in order.what.labels.items()]
    lines = {
        "data": DATA,
        "name": order.id,
        "pool": order.pool,
        "server": list(options.servers or order.join.servers),
        "join_token": order.join.token,
        "engine": list(order.what.engines),
        "label": labels,
        "capacity": [f"cpu={order.what.cpu}", f"memory={order.what.memory}"],
        "device": [f"{key}={count}" for key, count in order.what.devices.items()],
    }
    if order.what.disk:
        lines["capacity"] = [*lines["capacity"], f"disk={order.what.disk}"]
    if order.join.ca:
        lines["server_ca"] = CA
    return "[agent]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items() if value)


def user_data(order: MachineOrder, options: IncusMachineOptions) -> str:
    """Return the user data of cloud-init: YAML, for which JSON is valid."""
    files = [{"path": SETTINGS, "permissions": "0600", "content": settings_of(order, options)}]
    if order.join.ca:
        files.append({"path": CA, "permissions": "0644", "content": order.join.ca})
    return "#cloud-config\n" + json.dumps({"write_files": files, "runcmd": [list(options.start)]})


def _made(found: Mapping[str, Any]) -> Made:
    state: Literal["there", "failed"] = "there" if found["status"] in {"Running", "Frozen"} else "failed"
    message = "" if state == "there" else f"the instance {found['name']} is {found['status']}"
    return Made(id=found["config"][MACHINE], state=state, message=message)


def _own(found: Mapping[str, Any], cluster: str, machine: str) -> bool:
    config: Mapping[str, str] = found["config"]
    return config.get(CLUSTER) == cluster and config.get(MACHINE) == machine


def _name(machine: str) -> str:
    """Return the Incus name of a machine: a valid host name."""
    name = re.sub(r"[^a-z0-9-]", "-", machine)
    return name if name[0].isalpha() else f"m-{name}"


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
