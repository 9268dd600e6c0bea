"""Adds settings that the CRI lacks, through containerd's own API: tmpfs mounts and the limit of processes.

A container that was created and not started is only a description, which is changed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import grpc.aio
import msgspec

from mandor.engines.base import Launch, Mount
from mandor.engines.cri.client import CriClient
from mandor.engines.cri.containerd import METADATA
from mandor.lib.wire import Fields, make_messages

_MESSAGES: dict[str, Fields] = {
    "Empty": {},
    "Any": {1: ("type_url", "string"), 2: ("value", "bytes")},
    "FieldMask": {1: ("paths", "*string")},
    "Container": {1: ("id", "string"), 5: ("spec", "Any")},
    "GetContainerRequest": {1: ("id", "string")},
    "OneContainer": {1: ("container", "Container")},
    "UpdateContainerRequest": {1: ("container", "Container"), 2: ("update_mask", "FieldMask")},
}
_messages = make_messages("mandor.containerd.containers", _MESSAGES)
_SERVICE = "/containerd.services.containers.v1.Containers"


def needs_amending(launch: Launch) -> bool:
    return launch.processes is not None or any(each.source is None for each in launch.mounts)


def amended(spec: dict[str, Any], launch: Launch) -> dict[str, Any]:
    """Return the changed OCI runtime specification of a container: pure."""
    mounts = list(spec.get("mounts") or ())
    for each in (each for each in launch.mounts if each.source is None):
        mounts.insert(_place(mounts, each.path), _tmpfs(each))
    linux = dict(spec.get("linux") or {})
    if launch.processes is not None:
        linux["resources"] = {**(linux.get("resources") or {}), "pids": {"limit": launch.processes}}
    return {**spec, "mounts": mounts, "linux": linux}


def _place(mounts: Sequence[Mapping[str, Any]], path: str) -> int:
    """Return the index of a mount: before the mounts below its path."""
    inside = (number for number, each in enumerate(mounts) if each["destination"].startswith(f"{path.rstrip('/')}/"))
    return next(inside, len(mounts))


def _tmpfs(mount: Mount) -> dict[str, Any]:
    options = ["nosuid", "nodev", "mode=1777", "ro" if mount.read_only else "rw"]
    options += [] if mount.size_bytes is None else [f"size={mount.size_bytes}"]
    return {"destination": mount.path, "type": "tmpfs", "source": "tmpfs", "options": options}


async def amend(client: CriClient, identity: str, launch: Launch) -> None:
    try:
        found = await _call(client, "Get", "GetContainerRequest", "OneContainer", id=identity)
        spec = found.container.spec
        spec.value = msgspec.json.encode(amended(msgspec.json.decode(spec.value), launch))
        changed = _messages["Container"](id=identity, spec=spec)
        mask = _messages["FieldMask"](paths=["spec"])
        await _call(client, "Update", "UpdateContainerRequest", "Empty", container=changed, update_mask=mask)
    except grpc.aio.AioRpcError as error:
        raise client.failed(error) from None


async def _call(client: CriClient, verb: str, request: str, response: str, **fields: Any) -> Any:
    stub: Any = client.open().unary_unary(
        f"{_SERVICE}/{verb}",
        request_serializer=_messages[request].SerializeToString,
        response_deserializer=_messages[response].FromString,
    )
    return await stub(_messages[request](**fields), metadata=METADATA, timeout=client.answer_seconds)
