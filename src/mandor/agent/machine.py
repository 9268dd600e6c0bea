"""The machine of a node: capacity, facts, usage and what is left of its resources."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import psutil

from mandor.agent.fingerprint import capacity, facts
from mandor.agent.pressure import Reading
from mandor.agent.usage import Meter
from mandor.engines.base import Engine
from mandor.errors import MandorError
from mandor.lib.clock import Clock
from mandor.model.resources import Resources
from mandor.model.usage import NodeUsage

DISKS_SECONDS = 60.0
"""Interval between queries for the storage directories of the engines."""


class Machine(Protocol):
    """The machine that a node runs on."""

    def capacity(self) -> Resources: ...

    def facts(self) -> Mapping[str, str]: ...

    def usage(self) -> NodeUsage:
        """Return the usage now, with rates since the previous call."""

    def readings(self) -> Sequence[Reading]:
        """Return how much is left of memory, disk and inodes; raise `OSError` if that cannot be measured."""

    def real_path(self, path: str) -> str:
        """Return the path with all symbolic links resolved."""

    def has_path(self, path: str) -> bool: ...


class ThisMachine:
    """The machine that this process runs on; its disk is the one of `data`."""

    def __init__(self, clock: Clock, data: Path) -> None:
        self._data = data
        self._meter = Meter(clock, data)

    def capacity(self) -> Resources:
        return capacity(self._data)

    def facts(self) -> Mapping[str, str]:
        return facts()

    def usage(self) -> NodeUsage:
        return self._meter.read()

    def readings(self) -> Sequence[Reading]:
        return measure_machine(self._data)

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def has_path(self, path: str) -> bool:
        return os.path.exists(path)


class EngineDisks:
    """Disks of the engines besides the agent's own: images fill them too."""

    def __init__(self, engines: Iterable[Engine], clock: Clock) -> None:
        self._engines = tuple(each for each in engines if type(each).storage is not Engine.storage)
        """The engines that can report their storage directory."""
        self._clock = clock
        self._folders: dict[str, Path] = {}

    async def run(self) -> None:
        """Query the storage directories until cancelled; an engine that does not answer keeps its last directory."""
        while self._engines:
            for engine in self._engines:
                try:
                    folder = await engine.storage()
                except MandorError:
                    continue
                if folder:
                    self._folders[engine.name] = Path(folder)
            await self._clock.sleep(DISKS_SECONDS)

    def readings(self) -> Iterator[Reading]:
        for folder in set(self._folders.values()):
            try:
                yield from measure_disk(folder)
            except OSError:
                continue  # the directory is on another machine, or inside a container


def measure_machine(data: Path) -> list[Reading]:
    memory = psutil.virtual_memory()
    return [Reading("memory", memory.available, memory.total), *measure_disk(data)]


def measure_disk(folder: Path) -> list[Reading]:
    disk = os.statvfs(folder)
    return [Reading("disk", disk.f_bavail, disk.f_blocks), Reading("inodes", disk.f_favail, disk.f_files)]
