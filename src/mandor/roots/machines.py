"""Wires machines on demand: provisioners by their settings, and join tokens for new machines."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from mandor.api.audit import SERVER, Auditor
from mandor.api.auth import make_token
from mandor.controllers.node_autoscale import MachineSource
from mandor.errors import Invalid
from mandor.lib.clock import Clock
from mandor.lib.egress import STRICT, Egress
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.model.features import FEATURES
from mandor.model.machine import UNMADE, NodeAutoscale
from mandor.model.meta import Key
from mandor.model.record import JoinTerms, Token
from mandor.provision.base import JoinInfo, Provisioner
from mandor.provision.registry import make_provisioner
from mandor.store.base import Delete, Put, Store


class Machines:
    """Caches one provisioner per name and settings, and closes them at the end."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        servers: tuple[str, ...],
        ca_file: str = "",
        everywhere: Callable[[], frozenset[str]] = lambda: frozenset(FEATURES),
        fingerprint: Callable[[], str] = lambda: "",
        egress: Egress = STRICT,
        files: SecretFiles = NO_FILES,
    ) -> None:
        """`everywhere`: features that all servers have. `fingerprint`: of the authority that issued the servers'
        certificates; empty: another authority issued them."""
        self._everywhere, self._fingerprint = everywhere, fingerprint
        self._egress, self._files = egress, files
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
            self._made[key] = make_provisioner(scaling.provisioner, settings, self._egress, self._files)
        return self._made[key]

    @property
    def source(self) -> MachineSource:
        """The source of machines for the node autoscaler."""
        return MachineSource(self.provisioner, self.join, records_unmade=lambda: UNMADE in self._everywhere())

    async def join(self, machine: str, pool: str, seconds: float) -> JoinInfo:
        """Create a join token for one use by this machine, in its pool; an earlier token of the machine is deleted."""
        name, ends = f"machine-{machine}", self._clock.now() + seconds
        # A server of an older version would drop these limits.
        terms = JoinTerms(uses=1, pool=pool, node=machine) if "join-terms" in self._everywhere() else None
        made, text = make_token("join", f"join:{machine}", name=name, expires_at=ends, join=terms)
        before = await self._store.get(Key(Token.kind, "", name))
        if before is not None:
            await self._store.commit(Delete(before.key, before.meta.version))
        record = Auditor(self._clock, self._everywhere).of_commit(SERVER, "create", "", [(Put(made), None)])
        await self._store.commit(Put(made), *record)
        if fingerprint := self._fingerprint():
            text = f"{text}.{fingerprint}"
        return JoinInfo(servers=self._servers, token=text, ca=self._ca)


def _read(file: str) -> str:
    try:
        return Path(file).read_text() if file else ""
    except OSError as error:
        raise Invalid(f"cannot read the certificates for new machines in {file}: {error.strerror}") from error
