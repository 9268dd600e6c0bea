"""Where machines come from, put together: provisioners by their settings, and keys with which new machines join."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from mandor.api.auth import make_token
from mandor.errors import Invalid
from mandor.lib.clock import Clock
from mandor.model.machine import NodeAutoscale
from mandor.model.meta import Key
from mandor.model.record import Token
from mandor.provision.base import JoinInfo, Provisioner
from mandor.provision.registry import make_provisioner
from mandor.store.base import Delete, Put, Store


class Machines:
    """Provisioners are kept, one for each name and settings, and closed in the end."""

    def __init__(self, store: Store, clock: Clock, servers: tuple[str, ...], ca_file: str = "") -> None:
        self._store, self._clock, self._servers, self._ca = store, clock, servers, _read(ca_file)
        self._made: dict[tuple[str, tuple[tuple[str, str], ...]], Provisioner] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in self._made.values():
            await each.close()

    def provisioner(self, scaling: NodeAutoscale) -> Provisioner:
        settings: Mapping[str, str] = scaling.settings
        key = (scaling.provisioner, tuple(sorted(settings.items())))
        if key not in self._made:
            self._made[key] = make_provisioner(scaling.provisioner, settings)
        return self._made[key]

    async def join(self, machine: str, seconds: float) -> JoinInfo:
        """A key for this machine alone to be used with; one that it was given before is worth nothing any more."""
        name = f"machine-{machine}"
        made, text = make_token("join", f"join:{machine}", name=name, expires_at=self._clock.now() + seconds)
        before = await self._store.get(Key(Token.kind, "", name))
        if before is not None:
            await self._store.commit(Delete(before.key, before.meta.version))
        await self._store.commit(Put(made))
        return JoinInfo(servers=self._servers, token=text, ca=self._ca)


def _read(file: str) -> str:
    try:
        return Path(file).read_text() if file else ""
    except OSError as error:
        raise Invalid(f"the certificates for new machines cannot be read: {file}: {error.strerror}") from error
