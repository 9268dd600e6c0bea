"""Wires audit records: the leader keeps the hash chain, and exports it through the sinks that agents use for logs."""

import socket
from collections.abc import Sequence
from pathlib import Path

from mandor.agent.shipping.line import Line, clean_text
from mandor.agent.shipping.sink import open_sink
from mandor.api.secret import opened
from mandor.controllers.audit_export import AuditSink
from mandor.lib.egress import STRICT, Egress
from mandor.lib.sealing import Sealer
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.model.audit import Audit
from mandor.model.codec import encode
from mandor.model.log_sink import LogSinkSpec
from mandor.notify.secrets import Secrets
from mandor.store.base import Store

STREAM = "audit"


class LineSink:
    """Sends each record as one line of JSON."""

    def __init__(
        self,
        spec: LogSinkSpec,
        folders: Sequence[Path],
        secrets: Secrets,
        egress: Egress = STRICT,
        files: SecretFiles = NO_FILES,
    ) -> None:
        async def read(reference: str, namespace: str) -> str:
            return (await secrets.read(reference, namespace)).decode().strip()

        self._sink = open_sink(spec, folders, read, egress, files)
        self._node = socket.gethostname()

    async def send(self, records: Sequence[Audit]) -> None:
        await self._sink.send([self._line(each) for each in records])

    async def close(self) -> None:
        await self._sink.close()

    def _line(self, record: Audit) -> Line:
        facts = {"identity": record.spec.identity, "verb": record.spec.verb, "about": record.spec.about}
        text = clean_text(encode(record))
        return Line(at=record.spec.at, text=text, node=self._node, stream=STREAM, level="info", facts=facts)


class AuditSinks:
    """Opens sinks with the secrets and the folders of this server."""

    def __init__(
        self,
        store: Store,
        sealer: Sealer | None,
        folder: str,
        egress: Egress = STRICT,
        files: SecretFiles = NO_FILES,
    ) -> None:
        """`folder`: the folder below which `file:` sinks may write; empty: none."""
        self._secrets = Secrets(store, lambda secret: opened(sealer, secret), files)
        self._egress, self._files = egress, files
        self._folders = [Path(folder)] if folder else []

    def open(self, spec: LogSinkSpec) -> AuditSink:
        return LineSink(spec, self._folders, self._secrets, self._egress, self._files)
