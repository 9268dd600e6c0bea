"""Wires webhooks and event buses: secrets are opened with this server's key, the leader sends the events."""

from mandor.api.cluster import read_cluster
from mandor.api.secret import opened
from mandor.lib.clock import Clock
from mandor.lib.egress import STRICT, Egress
from mandor.lib.sealing import Sealer
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.model.receiver import Receiver
from mandor.notify.event_sender import EventSender, try_out
from mandor.notify.secrets import Secrets
from mandor.notify.sink import Sink
from mandor.notify.sinks import open_sink
from mandor.store.base import Store
from mandor.store.recorder import Recorder


class Messages:
    def __init__(
        self, store: Store, clock: Clock, sealer: Sealer | None, egress: Egress = STRICT, files: SecretFiles = NO_FILES
    ) -> None:
        self._store, self._clock, self._egress, self._files = store, clock, egress, files
        self._secrets = Secrets(store, lambda secret: opened(sealer, secret), files)

    async def run(self, recorder: Recorder) -> None:
        """Send until cancelled, in the leader."""
        cluster = await read_cluster(self._store)
        await EventSender(self._store, self._clock, recorder, cluster.id, self._sink).run()

    async def try_out(self, receiver: Receiver) -> str:
        cluster = await read_cluster(self._store)
        return await try_out(receiver, self._sink, cluster.id, self._clock)

    def _sink(self, receiver: Receiver) -> Sink:
        return open_sink(receiver, self._secrets.read, self._egress, self._files)
