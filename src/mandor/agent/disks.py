"""The disks of the engines, beside the one of the agent: images fill them, too."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from mandor.agent.defence import measure_disk
from mandor.agent.pressure import Reading
from mandor.engines.base import Engine
from mandor.errors import MandorError
from mandor.lib.clock import Clock

ASK_SECONDS = 60.0


class EngineDisks:
    def __init__(self, engines: Iterable[Engine], clock: Clock, found: Callable[[], None] = lambda: None) -> None:
        """`found`: called when an engine has one of its own."""
        self._engines = tuple(each for each in engines if type(each).storage is not Engine.storage)
        """Those that can tell."""
        self._clock, self._found = clock, found
        self._folders: dict[str, Path] = {}

    async def run(self) -> None:
        """An engine that does not answer keeps what it had when it last did."""
        while self._engines:
            for engine in self._engines:
                try:
                    folder = await engine.storage()
                except MandorError:
                    continue
                if folder:
                    self._folders[engine.name] = Path(folder)
                    self._found()
            await self._clock.sleep(ASK_SECONDS)

    def readings(self) -> Iterator[Reading]:
        for folder in set(self._folders.values()):
            try:
                yield from measure_disk(folder)
            except OSError:
                continue  # it is on another machine, or in a container of its own
