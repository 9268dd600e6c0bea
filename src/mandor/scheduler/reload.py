"""Reloads the configuration file and the plugin folder when they change; an invalid change is refused."""

import logging
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from mandor.errors import Invalid
from mandor.lib.clock import Clock
from mandor.lib.delay import Delay
from mandor.lib.owned_file import read_owned
from mandor.placement.config import SchedulerConfig, default_config, read_config, without
from mandor.placement.framework.handle import Handle
from mandor.placement.framework.profile import Profile
from mandor.placement.plugin_source import Registry, find_plugins, plugin_files
from mandor.placement.profile_factory import ProfileFactory
from mandor.scheduler.queue import PAUSE

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
"""Seconds between two checks of the files."""

Use = Callable[[dict[str, Profile], Delay], None]
"""Called with new profiles, and the pause between the tries of one instance."""
FileStamps = tuple[tuple[str, int, int, int], ...]


class Disabled(NamedTuple):
    """A version of a plugin that was disabled, and why."""

    name: str
    version: str
    why: str


class ConfigSource:
    """Reads the configuration from a file and a plugin folder; without both, the built-in configuration.

    `disabled` plugins are left out of the configuration.
    """

    def __init__(
        self,
        file: Path | None = None,
        plugins: Path | None = None,
        *,
        disabled: Collection[Disabled] = (),
        found: Callable[[Registry], None] = lambda registry: None,
    ) -> None:
        """`found` is called with the plugins at each read."""
        self._file = file
        self._plugins = plugins
        self._disabled = disabled
        self._found = found

    def read(self) -> tuple[SchedulerConfig, Registry]:
        registry = find_plugins(self._plugins)
        self._found(registry)
        config = self._config(registry)
        off = {each.name for each in self._disabled if each.name in registry}
        return without(config, {name for name in off if self._is_disabled(name, registry[name].version)}), registry

    def once(self) -> "ConfigSource":
        """Return a source that reads unchanged files only once, for simulations that start many schedulers."""
        return _Once(self._file, self._plugins, disabled=self._disabled, found=self._found)

    def _is_disabled(self, name: str, version: str) -> bool:
        """Return whether this version is disabled; other versions of the plugin are not."""
        return any((each.name, each.version) == (name, version) for each in self._disabled)

    def _config(self, registry: Registry) -> SchedulerConfig:
        if self._file is None:
            return default_config(registry)
        try:
            text = read_owned(self._file)
        except OSError as error:
            raise Invalid(f"cannot read the scheduler configuration {self._file}: {error.strerror}") from error
        return read_config(text, registry, filename=str(self._file))

    def seen(self) -> FileStamps:
        """Return the names, times and sizes of the files, to detect changes."""
        try:
            files = plugin_files(self._plugins) if self._plugins is not None else []
        except Invalid:
            files = []
        return tuple(_stamp(each) for each in ([self._file] if self._file is not None else []) + files)


class _Once(ConfigSource):
    _known: tuple[FileStamps, tuple[SchedulerConfig, Registry]] | None = None

    def read(self) -> tuple[SchedulerConfig, Registry]:
        seen = self.seen()
        if self._known is None or self._known[0] != seen:
            self._known = seen, super().read()
        return self._known[1]


class Configured:
    """Makes the profiles of a scheduler, and replaces them when the files change."""

    def __init__(self, source: ConfigSource) -> None:
        self._source = source
        self._seen = source.seen()
        self._factory: ProfileFactory | None = None
        self.config: SchedulerConfig | None = None

    def pause(self) -> Delay:
        """Return the configured pause between the tries of one instance."""
        return self._source.read()[0].pause or PAUSE

    def profiles(self, handle: Handle) -> dict[str, Profile]:
        """Make the profiles at the start; raise `Invalid` for an invalid configuration."""
        self._seen = self._source.seen()
        self._factory = ProfileFactory(handle)
        return self._make(self._factory)

    def _make(self, factory: ProfileFactory) -> dict[str, Profile]:
        config, registry = self._source.read()
        profiles = factory.profiles(config, registry)
        self.config = config
        for key in config.ignored:
            log.warning("the scheduler configuration has the unsupported key %s, which is ignored", key)
        return profiles

    async def follow(self, clock: Clock, use: Use) -> None:
        """Check the files every `LOOK_SECONDS`, until cancelled; each change is logged."""
        while True:
            await clock.sleep(LOOK_SECONDS)
            self.check(use)

    def check(self, use: Use) -> bool:
        """Reload the files if they have changed; return whether new profiles are in use."""
        seen = self._source.seen()
        if seen == self._seen or self._factory is None:
            return False
        self._seen = seen
        try:
            profiles = self._make(self._factory)
            assert self.config is not None
            use(profiles, self.config.pause or PAUSE)
        except Invalid as error:
            log.error("the changed scheduler configuration is invalid, the previous one stays in use: %s", error)
            return False
        log.info("the scheduler configuration was reloaded, with the profiles %s", ", ".join(profiles))
        return True


def _stamp(path: Path) -> tuple[str, int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return str(path), 0, 0, 0
    return str(path), found.st_mtime_ns, found.st_size, found.st_ino
