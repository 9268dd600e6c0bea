"""What a sink's receiver knows us by: values of `kind: secret`, or files on the node, read whenever they are used."""

from pathlib import Path

from mandor.agent.journal import Blocking
from mandor.errors import MandorError, Unavailable
from mandor.model.meta import Key
from mandor.model.receiver import FILE
from mandor.model.secret import Secret, pick, secret_of
from mandor.store.base import Store

MOST = 64 * 1024


class Secrets:
    """The last value is remembered, in memory alone: lines go on when the control plane is away."""

    def __init__(self, store: Store, blocking: Blocking) -> None:
        self._store, self._blocking = store, blocking
        self._known: dict[tuple[str, str], str] = {}

    async def read(self, reference: str, namespace: str) -> str:
        """`Unavailable` while there is none."""
        if reference.startswith(FILE):
            found: str = await self._blocking(_from_file, Path(reference.removeprefix(FILE)))
            return found
        place = namespace, reference
        try:
            secret = await self._store.get(Key(Secret.kind, namespace, secret_of(reference)))
        except MandorError as error:
            if place in self._known:
                return self._known[place]
            raise Unavailable(f"the secret {reference} cannot be read: {error}") from error
        value = pick(reference, secret.spec.values) if isinstance(secret, Secret) else None
        if value is None:
            raise Unavailable(
                f"there is no secret {reference} in the namespace {namespace}", hint="apply it, or name another one"
            )
        self._known[place] = value
        return value


def _from_file(path: Path) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MOST)
    except (OSError, UnicodeDecodeError) as error:
        raise Unavailable(f"the secret in {path} cannot be read: {error}") from error
