"""The machine under an agent: what it has, what is known about it, how busy it is and what is left of it."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from mandor.agent.defence import measure_machine
from mandor.agent.fingerprint import capacity, facts
from mandor.agent.pressure import Reading
from mandor.agent.usage import Meter
from mandor.lib.clock import Clock
from mandor.model.resources import Resources
from mandor.model.usage import NodeUsage


class Machine(Protocol):
    def capacity(self) -> Resources: ...

    def facts(self) -> Mapping[str, str]: ...

    def usage(self) -> NodeUsage:
        """Now; rates since the last time it was asked."""

    def readings(self) -> Sequence[Reading]:
        """How much is left of what it can run short of; an `OSError`: it cannot be measured now."""

    def real_path(self, path: str) -> str:
        """Where its links lead."""

    def has_path(self, path: str) -> bool: ...


class ThisMachine:
    """The one that this process runs on; `data` says which of its disks."""

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
