"""Secrets of receivers: values of `kind: secret`, or files of one folder, read at every use."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable

from mandor.errors import Unavailable
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.model.meta import Key
from mandor.model.receiver import FILE
from mandor.model.secret import Secret, pick, secret_of
from mandor.store.base import Store

LEAST = 16

OpenSecret = Callable[[Secret], Secret]
"""Returns the secret with its decrypted values."""
ReadSecret = Callable[[str, str], Awaitable[bytes]]
"""Returns the value for (reference, namespace); raises `Unavailable` while there is none."""


class Secrets:
    def __init__(self, store: Store, open_secret: OpenSecret, files: SecretFiles = NO_FILES) -> None:
        self._store, self._open, self._files = store, open_secret, files

    async def read(self, reference: str, namespace: str) -> bytes:
        if reference.startswith(FILE):
            return await asyncio.to_thread(_from_file, self._files, reference.removeprefix(FILE))
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


def _from_file(files: SecretFiles, name: str) -> bytes:
    try:
        return files.read(name)
    except OSError as error:
        raise Unavailable(f"the secret in the file {name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise Unavailable(str(error)) from error


def certificates(files: SecretFiles, name: str) -> ssl.SSLContext:
    """Return a TLS context that trusts a file of the folder; without a file, the certificates of the machine."""
    try:
        return ssl.create_default_context(cafile=str(files.path(name)) if name else None)
    except (ValueError, OSError) as error:  # ssl.SSLError is an OSError
        raise Unavailable(f"the certificates in {name} cannot be read: {error}") from error
