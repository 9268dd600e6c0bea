"""The last valid scheduler configuration, for plans and explanations outside the scheduler."""

from collections.abc import Mapping

from mandor.errors import Invalid, Unavailable
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.config import SchedulerConfig
from mandor.placement.framework.handle import Detached
from mandor.placement.framework.profile import Profile
from mandor.placement.plugin_source import Registry
from mandor.placement.profile_factory import ProfileFactory
from mandor.scheduler.reload import ConfigSource


class LastConfig:
    """Reads the configuration when its files change; an invalid one is ignored, as in the scheduler."""

    def __init__(self, source: ConfigSource) -> None:
        self._source = source
        self._seen: object = None
        self._good: tuple[SchedulerConfig, Registry] | None = None

    def read(self) -> tuple[SchedulerConfig, Registry]:
        seen = self._source.seen()
        if self._good is None or seen != self._seen:
            self._seen = seen
            try:
                self._good = self._source.read()
            except Invalid as error:
                if self._good is None:
                    raise Unavailable(f"the scheduler's configuration cannot be read: {error}") from error
        return self._good


class ConfiguredProfiles:
    """The scheduler's profiles for decisions on a cluster model, made again when the configuration changes."""

    def __init__(self, source: ConfigSource) -> None:
        self._config = LastConfig(source)
        self._of: tuple[object, ...] = ()
        self._made: dict[str, Profile] = {}

    def __call__(self, model: ClusterModel) -> Mapping[str, Profile]:
        config, registry = self._config.read()
        made_of = (config, registry, model)
        if not self._of or any(old is not new for old, new in zip(self._of, made_of, strict=True)):
            self._made = ProfileFactory(Detached(model.table.snapshot)).profiles(config, registry)
            self._of = made_of
        return self._made
