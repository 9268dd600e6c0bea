"""Reads secrets of log sinks, from `kind: secret` or from files in one directory of the node, on each use."""

from mandor.agent.journal import Blocking
from mandor.errors import MandorError, Unavailable
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.model.meta import Key
from mandor.model.receiver import FILE
from mandor.model.secret import Secret, pick, secret_of
from mandor.store.base import Store


class Secrets:
    """Keeps the last values in memory, so that shipping continues without a control plane."""

    def __init__(self, store: Store, blocking: Blocking, files: SecretFiles = NO_FILES) -> None:
        self._store, self._blocking, self._files = store, blocking, files
        self._known: dict[tuple[str, str], str] = {}

    async def read(self, reference: str, namespace: str) -> str:
        """Return the value; raise `Unavailable` if there is none."""
        if reference.startswith(FILE):
            found: str = await self._blocking(_from_file, self._files, reference.removeprefix(FILE))
            return found
        place = namespace, reference
        try:
            secret = await self._store.get(Key(Secret.kind, namespace, secret_of(reference)))
        except MandorError as error:
            if place in self._known:
                return self._known[place]
            raise Unavailable(f"cannot read secret {reference}: {error}") from error
        value = pick(reference, secret.spec.values) if isinstance(secret, Secret) else None
        if value is None:
            raise Unavailable(
                f"secret {reference} does not exist in namespace {namespace}", hint="apply it, or name another one"
            )
        self._known[place] = value
        return value


def _from_file(files: SecretFiles, name: str) -> str:
    try:
        return files.read(name).decode()
    except (OSError, ValueError) as error:  # of which UnicodeDecodeError is one
        raise Unavailable(f"cannot read the secret file {name}: {error}") from error
