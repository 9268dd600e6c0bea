"""Keys that seal secrets: list and rotation."""

from msgspec import Struct

from mandor.api.cluster import KEY
from mandor.api.operation import Call, Operation
from mandor.api.secret_keys import FEATURE, Rotated
from mandor.errors import Unsupported
from mandor.lib.sealing import key_id_of
from mandor.model.record import Cluster


class KeyInfo(Struct, frozen=True, kw_only=True):
    id: str
    created_at: float
    master: str
    """Id of the master key that it is sealed under."""
    seals: bool
    """Whether new values are sealed with this key."""


class KeyList(Struct, frozen=True, kw_only=True):
    items: tuple[KeyInfo, ...]


async def list_keys(call: Call[None, None]) -> KeyList:
    call.caller.require("update", Cluster.kind, what="list the keys of secrets")
    found = await call.parts.store.get(KEY)
    keys = found.status.keys if isinstance(found, Cluster) else ()
    return KeyList(
        items=tuple(
            KeyInfo(id=each.id, created_at=each.created_at, master=key_id_of(each.sealed), seals=each is keys[-1])
            for each in keys
        )
    )


async def rotate(call: Call[None, None]) -> Rotated:
    call.caller.require("update", Cluster.kind, what="rotate the keys of secrets")
    if call.parts.keys is None:
        raise Unsupported("this server has no key for secrets", hint="start it with --secrets-key FILE")
    if FEATURE not in call.parts.everywhere():
        raise Unsupported("a server of an earlier version cannot use several keys", hint="upgrade all servers first")
    done = await call.parts.keys.rotate(call.parts.clock.now())
    await call.parts.store.commit(call.parts.auditor.record(call.caller, "rotate-key", str(KEY), call.address))
    return done


OPERATIONS = [
    Operation(
        method="GET",
        path="/v1/secret-keys",
        name="list_secret_keys",
        summary="List the keys that secrets are sealed with",
        tag="secrets",
        handler=list_keys,
        result=KeyList,
    ),
    Operation(
        method="POST",
        path="/v1/secret-keys/rotate",
        name="rotate_secret_key",
        summary="Seal all secrets with a new key, and delete unused keys",
        tag="secrets",
        handler=rotate,
        result=Rotated,
        refuses=("conflict", "unsupported"),
    ),
]
