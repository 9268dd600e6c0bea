"""What receivers' secrets are: values of `kind: secret`, or files on the server, read whenever they are used."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from mandor.errors import Unavailable
from mandor.model.meta import Key
from mandor.model.receiver import FILE
from mandor.model.secret import Secret, pick, secret_of
from mandor.store.base import Store

LEAST = 16
MOST = 64 * 1024

OpenSecret = Callable[[Secret], Secret]
"""With its values."""
ReadSecret = Callable[[str, str], Awaitable[bytes]]
"""(reference, namespace) → value; `Unavailable` while there is none."""


class Secrets:
    def __init__(self, store: Store, open_secret: OpenSecret) -> None:
        self._store, self._open = store, open_secret

    async def read(self, reference: str, namespace: str) -> bytes:
        if reference.startswith(FILE):
            return await asyncio.to_thread(_from_file, Path(reference.removeprefix(FILE)))
        found = await self._store.get(Key(Secret.kind, namespace, secret_of(reference)))
        if not isinstance(found, Secret):
            raise Unavailable(
                f"there is no secret {secret_of(reference)} in the namespace {namespace}",
                hint="apply it, or name another one",
            )
        value = pick(reference, self._open(found).spec.values)
        if value is None:
            raise Unavailable(f"the secret {reference} has no such value", hint="write NAME/KEY")
        return value.encode()


def signing_key(value: bytes, what: str) -> bytes:
    key = value.strip()
    if len(key) < LEAST:
        raise Unavailable(f"the secret {what} is shorter than {LEAST} bytes", hint="openssl rand -hex 32")
    return key


def _from_file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            found = file.read(MOST + 1)
    except OSError as error:
        raise Unavailable(f"the secret in {path} cannot be read: {error.strerror}") from error
    if len(found) > MOST:
        raise Unavailable(f"{path} has more than {MOST} bytes: no secret")
    return found
