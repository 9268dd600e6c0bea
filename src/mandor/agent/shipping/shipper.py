"""Reads the logs of units and of the agent, and passes them to the deliveries of the log sinks."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import Struct

from mandor.agent.feed import Source
from mandor.agent.journal import Blocking, replace_file
from mandor.agent.shipping.agent_logs import AgentLogHandler
from mandor.agent.shipping.delivery import SinkDelivery
from mandor.agent.shipping.line import Line, clean_text
from mandor.agent.shipping.secrets import Secrets
from mandor.agent.shipping.sink import Sink, open_sink
from mandor.engines.base import Engine, LogLine, Unit
from mandor.errors import Invalid, MandorError, NotFound, Unsupported
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock, wait_event
from mandor.lib.egress import STRICT, Egress
from mandor.lib.metrics import Counts, Family, counter, gauge
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.lib.tasks import Background
from mandor.model.codec import decode_known, encode
from mandor.model.instance import Instance
from mandor.model.log_sink import LogSink, SinkHealth
from mandor.model.meta import Object
from mandor.store.base import Change, Store

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
PENDING_MOST = 5000
"""Largest number of lines in memory before reading waits for the disk."""
FINISH_SECONDS = 10.0
"""Longest time in seconds that the removal of an ended unit waits until its log is read."""
BACKOFF = Backoff(1, 30, jitter=0.3)


class ReadPosition(Struct, frozen=True, gc=False, omit_defaults=True):
    """Position in the log of a unit: the time of the last line read, and the number of lines of exactly that time."""

    at: float = 0.0
    same: int = 0
    over: bool = False
    """Whether the unit has ended and its log was read to the end."""

    def after(self, at: float) -> "ReadPosition":
        """Return the position after one more line."""
        return ReadPosition(at, self.same + 1 if at == self.at else 1)


class ResumeFilter:
    """Skips lines that were read before, in a log that is read again from the time of a position."""

    __slots__ = ("_at", "_left", "_passed")

    def __init__(self, place: ReadPosition) -> None:
        self._at, self._left = place.at, place.same
        self._passed = False

    def fresh(self, at: float) -> bool:
        """Return whether a line is new; after the position every line is, even if its time is earlier."""
        if self._passed:
            return True
        if at < self._at:
            return False
        if at == self._at and self._left:
            self._left -= 1
            return False
        self._passed = True
        return True


@dataclass(frozen=True, slots=True)
class LogSource:
    """A unit on this node whose log can be read."""

    unit: Unit
    engine: Engine
    instance: Instance
    labels: dict[str, str] = field(hash=False, compare=False)
    """Labels of the workload."""
    over: bool = False


class Shipper:
    """Ships the logs of all units that a log sink selects."""

    def __init__(
        self,
        node: str,
        folder: Path,
        store: Store,
        clock: Clock,
        blocking: Blocking,
        own: AgentLogHandler,
        *,
        log_sources: Callable[[], Iterable[LogSource]],
        folders: Sequence[Path],
        health_changed: Callable[[], None],
        egress: Egress = STRICT,
        files: SecretFiles = NO_FILES,
    ) -> None:
        """`folders`: directories for file sinks; `health_changed`: called when the health of a sink changes."""
        self._node, self._folder, self._clock, self._blocking = node, folder, clock, blocking
        self._own, self._log_sources, self._folders, self._health_changed = own, log_sources, folders, health_changed
        self._egress, self._files = egress, files
        self._secrets = Secrets(store, blocking, files)
        self._wanted: dict[str, LogSink] = {}
        self._deliveries: dict[str, SinkDelivery] = {}
        self._sending: dict[str, asyncio.Task[None]] = {}
        self._reading: dict[Unit, asyncio.Task[None]] = {}
        self._places: dict[str, ReadPosition] = {}
        self._kept: dict[str, ReadPosition] = {}
        self._news = asyncio.Event()
        self._flushing = asyncio.Lock()
        self._sends = Counts()
        self._tasks: Background | None = None

    # Reader of the feed.

    def listed(self, items: Sequence[Object], source: Source) -> None:
        self._wanted = {each.meta.uid: each for each in items if isinstance(each, LogSink)}
        self._news.set()

    def changed(self, change: Change, source: Source) -> None:
        before, after = change.before, change.after
        if isinstance(before, LogSink):
            self._wanted.pop(before.meta.uid, None)
        if isinstance(after, LogSink):
            self._wanted[after.meta.uid] = after
        self._news.set()

    def lost(self, error: MandorError, failures: int) -> None:
        log.debug("cannot watch log sinks: %s", error)

    # Shipping.

    async def run(self) -> None:
        """Ship logs until cancelled; lines in memory are written to disk at the end."""
        await self._restore()
        try:
            async with Background() as tasks:
                self._tasks = tasks
                while True:
                    self._news.clear()
                    await self._match()
                    self._look()
                    await self.flush()
                    await wait_event(self._clock, LOOK_SECONDS if self._deliveries else None, self._news)
        finally:
            self._tasks = None
            await self.flush()

    async def finish(self, unit: Unit) -> None:
        """Wait until the log of a unit is read, at most `FINISH_SECONDS`, before the unit is removed."""
        if self._tasks is None or not self._deliveries:
            return
        self._look()
        reading = self._reading.get(unit)
        if reading is not None:
            await asyncio.wait({reading}, timeout=FINISH_SECONDS)
            await self.flush()

    async def flush(self) -> None:
        """Write all lines, then the read positions: a crash in between repeats lines and loses none."""
        async with self._flushing:
            self._take_own()
            places = dict(self._places)
            for delivery in list(self._deliveries.values()):
                await delivery.flush()
            if places != self._kept:
                await self._keep("places.json", msgspec.json.encode(places))
                self._kept = places

    async def _keep(self, name: str, data: bytes) -> None:
        try:
            await self._blocking(lambda: replace_file(self._folder / name, data, durable=False))
        except OSError as error:
            log.warning("cannot write %s: %s", self._folder / name, error.strerror or error)

    async def _restore(self) -> None:
        """Read positions and sinks from disk, so that shipping continues without a control plane."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            self._places = msgspec.json.decode(
                (self._folder / "places.json").read_bytes(), type=dict[str, ReadPosition]
            )
        except (OSError, msgspec.MsgspecError):
            self._places = {}
        try:
            known = decode_known((self._folder / "sinks.json").read_bytes(), list[LogSink])
        except (OSError, Invalid):
            known = []
        self._wanted = {each.meta.uid: each for each in known} | self._wanted
        self._kept = dict(self._places)
        self._news.set()

    async def _match(self) -> None:
        """Create, change and remove deliveries, one for each sink."""
        assert self._tasks is not None
        wanted = dict(self._wanted)
        altered = False
        for uid, sink in wanted.items():
            delivery = self._deliveries.get(uid)
            if delivery is None:
                delivery = await self._blocking(self._make, sink)
                self._deliveries[uid] = delivery
                self._sending[uid] = self._tasks.start(delivery.run(), f"log sink {sink.meta.name}")
            elif delivery.value.spec != sink.spec:
                delivery.change(sink)
            else:
                continue
            altered = True
        for uid in self._deliveries.keys() - wanted.keys():
            await self._close(uid)
            altered = True
        if altered:
            await self._keep("sinks.json", encode(list(wanted.values())))
            self._health_changed()

    def _make(self, sink: LogSink) -> SinkDelivery:
        folder = self._folder / sink.meta.uid
        return SinkDelivery(sink, folder, self._clock, self._blocking, self._open, self._health_changed, self._sends)

    def _open(self, sink: LogSink) -> Sink:
        return open_sink(sink.spec, self._folders, self._secrets.read, self._egress, self._files)

    async def _close(self, uid: str) -> None:
        sending, delivery = self._sending.pop(uid), self._deliveries.pop(uid)
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        await delivery.remove()

    def _look(self) -> None:
        """Start to read the logs of units that a sink selects; forget units that are gone."""
        assert self._tasks is not None
        if not self._deliveries:
            return
        found = {each.unit: each for each in self._log_sources()}
        for unit, source in found.items():
            place = self._places.get(str(unit))
            if unit in self._reading or (place is not None and place.over) or not self._wants(source):
                continue
            self._reading[unit] = self._tasks.start(self._read(source), f"log of {unit}")
        self._reading = {unit: task for unit, task in self._reading.items() if not task.done()}
        living = {str(unit) for unit in (*found, *self._reading)}
        self._places = {unit: place for unit, place in self._places.items() if unit in living}
        uids = {"", *(unit.uid for unit in found)}
        for delivery in self._deliveries.values():
            delivery.forget(uids)

    def _wants(self, source: LogSource) -> list[SinkDelivery]:
        meta, workload = source.instance.meta, source.instance.spec.workload
        return [
            each for each in self._deliveries.values() if each.value.spec.wants(meta.namespace, workload, source.labels)
        ]

    async def _read(self, source: LogSource) -> None:
        """Read the log of a unit until it has ended, or no sink selects it any more."""
        failures, unit = 0, source.unit
        while deliveries := self._wants(source):
            begin = min(each.begin for each in deliveries)
            place = self._places.setdefault(str(unit), ReadPosition(at=begin))
            resumed = ResumeFilter(place)
            try:
                async for line in source.engine.logs(unit, follow=True, since=place.at):
                    failures = 0
                    if resumed.fresh(line.at):
                        await self._take(source, line)
            except (Unsupported, NotFound):
                break
            except (MandorError, OSError) as error:
                failures += 1
                log.debug("the log of unit %s was interrupted: %s", unit, error)
            except Exception:  # A third-party engine may raise anything; other logs go on.
                failures += 1
                log.warning("reading the log of unit %s raised an exception", unit, exc_info=True)
            else:
                if self._is_over(unit):
                    break
            await self._clock.sleep(BACKOFF.pause(max(1, failures)))
        if str(unit) in self._places:
            self._places[str(unit)] = msgspec.structs.replace(self._places[str(unit)], over=True)

    def _is_over(self, unit: Unit) -> bool:
        return all(each.over for each in self._log_sources() if each.unit == unit)

    async def _take(self, source: LogSource, line: LogLine) -> None:
        unit, instance = source.unit, source.instance
        made = Line(
            at=line.at,
            text=clean_text(line.text),
            node=self._node,
            stream=line.stream,
            namespace=instance.meta.namespace,
            workload=instance.spec.workload,
            instance=instance.meta.name,
            task=unit.task,
        )
        for delivery in self._wants(source):
            delivery.offer(made, unit.uid)
        self._places[str(unit)] = self._places.get(str(unit), ReadPosition()).after(line.at)
        if any(each.pending >= PENDING_MOST for each in self._deliveries.values()):
            await self.flush()

    def _take_own(self) -> None:
        lines, dropped = self._own.take()
        for delivery in self._deliveries.values():
            spec = delivery.value.spec
            if spec.active and "agent" in spec.sources:
                delivery.missed(dropped)
                for line in lines:
                    delivery.offer(line, "")

    # Health and metrics.

    def health(self) -> dict[str, SinkHealth]:
        return {each.name: each.health() for each in self._deliveries.values() if each.value.spec.active}

    def families(self) -> Iterator[Family]:
        deliveries = list(self._deliveries.values())
        shipped = {(each.name,): float(each.shipped) for each in deliveries}
        yield counter("mandor_log_lines_shipped_total", "Lines that receivers have taken.", shipped, "sink")
        dropped = {(each.name, why): float(count) for each in deliveries for why, count in each.drops.items()}
        meaning = "Lines that receivers never get: over the rate, over the buffer, refused, or no disk to keep them on."
        yield counter("mandor_log_lines_dropped_total", meaning, dropped, "sink", "reason")
        yield counter("mandor_log_sends_total", "Batches, by what became of them.", self._sends, "sink", "result")
        lines = {(each.name,): float(each.waiting) for each in deliveries}
        yield gauge("mandor_log_buffer_lines", "Lines on disk that wait for their receiver.", lines, "sink")
        size = {(each.name,): float(each.size) for each in deliveries}
        yield gauge("mandor_log_buffer_bytes", "Disk space of the lines that wait for their receiver.", size, "sink")
        lag = {(each.name,): float(each.lag) for each in deliveries}
        yield gauge("mandor_log_lag_seconds", "Age of the oldest line that waits for its receiver.", lag, "sink")
