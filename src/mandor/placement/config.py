"""The scheduler configuration, in the format of KubeSchedulerConfiguration; errors name their lines."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import Struct

from mandor.errors import Invalid
from mandor.lib.delay import Delay
from mandor.lib.words import did_you_mean
from mandor.lib.yaml12 import List, Malformed, Map, load_all
from mandor.model.claim import CLAIM_PROFILE
from mandor.model.reading import FAILED, Mistake, Reader
from mandor.placement.built_in import BUILT_IN, DEFAULTS
from mandor.placement.claim_profile import claim_profile_source
from mandor.placement.framework.points import POINTS, Plugin
from mandor.placement.framework.profile import DEFAULT_BINDER
from mandor.placement.framework.tie_break import Ties
from mandor.placement.plugin_source import Registry
from mandor.placement.plugins.http_extender import Extender
from mandor.placement.plugins.priority_sort import PrioritySort

MULTI = "multiPoint"
ALL = "*"
WEIGHT_MOST = 1_000_000
PROFILES_MOST = 64
KINDS = ("KubeSchedulerConfiguration", "scheduler-config")
NAMES = {"default-scheduler": "default"}
"""Kubernetes' name of the default profile."""

IGNORED = frozenset(
    {
        "clientConnection",
        "delayCacheUntilActive",
        "enableContentionProfiling",
        "enableProfiling",
        "leaderElection",
        "metadata",
        "parallelism",
        "percentageOfNodesToScore",
    }
)
"""Keys of Kubernetes that have no effect here: all nodes are always scored."""
_KNOWN = {"apiVersion", "kind", "profiles", "extenders", "podInitialBackoffSeconds", "podMaxBackoffSeconds"}
_PROFILE = {"schedulerName", "plugins", "pluginConfig", "ties"}

ELSEWHERE = frozenset(
    {
        "AzureDiskLimits",
        "CinderLimits",
        "DefaultPreemption",
        "DynamicResources",
        "EBSLimits",
        "GCEPDLimits",
        "GangScheduling",
        "NodeDeclaredFeatures",
        "NodeVolumeLimits",
        "VolumeRestrictions",
        "VolumeZone",
    }
)
"""Plugins of Kubernetes that do not exist here: disabling them has no effect, enabling them is an error."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A plugin in a list of enabled or disabled ones."""

    name: str
    line: int
    weight: int = 1


@dataclass(frozen=True, slots=True)
class PointChoice:
    enabled: tuple[Choice, ...] = ()
    disabled: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ProfileConfig:
    name: str
    line: int
    points: Mapping[str, tuple[Choice, ...]]
    """Plugins of each point, in order, after all rules of precedence."""
    args: Mapping[str, Struct] = field(default_factory=dict)
    ties: Ties = "spread"
    """How a node is chosen among several with the same score."""


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    profiles: tuple[ProfileConfig, ...]
    extenders: tuple[Extender, ...] = ()
    pause: Delay | None = None
    """Back-off between tries; None: the default."""
    ignored: tuple[str, ...] = ()
    """Keys without an effect."""


def without(config: SchedulerConfig, names: Set[str]) -> SchedulerConfig:
    """Return the configuration without some plugins; a required point falls back to the built-in plugin."""
    if not names:
        return config
    return replace(config, profiles=tuple(_profile_without(each, names) for each in config.profiles))


def _profile_without(profile: ProfileConfig, names: Set[str]) -> ProfileConfig:
    points = {
        point: tuple(each for each in choices if each.name not in names) for point, choices in profile.points.items()
    }
    for point, needed in (("queueSort", PrioritySort.name), ("bind", DEFAULT_BINDER)):
        points[point] = points.get(point) or (Choice(needed, profile.line),)
    return replace(profile, points=points)


def read_config(
    text: str | bytes, registry: Registry, *, filename: str = "", server: SchedulerConfig | None = None
) -> SchedulerConfig:
    """Read a configuration; raise `Invalid` with the first error (`file`, `line`, `path`) and a list of all (`errors`).

    `server`: the text comes from a caller of the API, and this is the server's own configuration. Extenders and
    arguments of plugins from outside the package may name URLs and files, so they are refused in the text and taken
    from the server's configuration.
    """
    try:
        documents = load_all(text)
    except Malformed as error:
        raise _invalid([Mistake(error.line, "", error.message, error.hint)], filename) from None
    reader = Reader()
    if len(documents) != 1:
        reader.wrong(1, "", f"{len(documents)} documents; a configuration is one")
        raise _invalid(reader.mistakes, filename)
    config = _Reading(reader, registry, server).config(documents[0].value, documents[0].line)
    if reader.mistakes or config is None:
        raise _invalid(sorted(reader.mistakes, key=lambda each: each.line), filename)
    return config


def default_config(registry: Registry) -> SchedulerConfig:
    """Return the configuration that is used without a file."""
    reading = _Reading(Reader(), registry)
    return SchedulerConfig((reading.profile(Map(0), 0), reading.profile(claim_profile_source(), 0)))


def _invalid(mistakes: list[Mistake], filename: str) -> Invalid:
    first = mistakes[0]
    errors = [
        {"file": filename, "line": each.line, "path": each.path, "message": each.message, "hint": each.hint}
        for each in mistakes
    ]
    where = f"{filename}:{first.line}: " if filename else f"line {first.line}: "
    return Invalid(
        where + first.message, hint=first.hint, file=filename, line=first.line, path=first.path, errors=errors
    )


@dataclass(slots=True)
class _Reading:
    reader: Reader
    registry: Registry
    server: SchedulerConfig | None = None
    """The server's own configuration, if the text comes from a caller of the API."""

    def config(self, source: Any, line: int) -> SchedulerConfig | None:
        if not isinstance(source, Map):
            self.reader.wrong(line, "", "a configuration is a mapping", "it begins with `profiles:`")
            return None
        self._check_head(source, line)
        for key in source:
            if key not in _KNOWN | IGNORED:
                self.reader.unknown(key, _KNOWN, frozenset(), "", source.lines[key])
        profiles = self._profiles(source)
        return SchedulerConfig(
            profiles=profiles,
            extenders=self._extenders(source),
            pause=self._pause(source),
            ignored=tuple(sorted(source.keys() & IGNORED)),
        )

    def _extenders(self, source: Map) -> tuple[Extender, ...]:
        if self.server is not None:
            if "extenders" in source:
                text = "extenders are taken only from the server's own configuration"
                self.reader.wrong(source.lines["extenders"], "extenders", text, "leave `extenders` out")
            return self.server.extenders
        found: dict[str, Extender] = {}
        for value, line, path in self._items(source, "extenders"):
            extender = self.reader.read(value, Extender, path, line)
            if extender is FAILED:
                continue
            if extender.url_prefix in found:
                self.reader.wrong(line, path, f"the extender {extender.url_prefix} is listed twice")
            found[extender.url_prefix] = extender
        if sum(bool(each.bind_verb) for each in found.values()) > 1:
            self.reader.wrong(source.lines["extenders"], "extenders", "only one extender has a bindVerb")
        return tuple(found.values())

    def _check_head(self, source: Map, line: int) -> None:
        kind = source.get("kind", KINDS[0])
        if kind not in KINDS:
            self.reader.wrong(
                source.lines.get("kind", line),
                "kind",
                f"{kind!r} is not a scheduler configuration",
                did_you_mean(str(kind), KINDS),
            )
        version = source.get("apiVersion", "kubescheduler.config.k8s.io/v1")
        if not str(version).startswith("kubescheduler.config.k8s.io/"):
            at = source.lines.get("apiVersion", line)
            self.reader.wrong(at, "apiVersion", f"{version!r} is not known", "write kubescheduler.config.k8s.io/v1")

    def _pause(self, source: Map) -> Delay | None:
        keys = ("podInitialBackoffSeconds", "podMaxBackoffSeconds")
        if not source.keys() & set(keys):
            return None
        found = [
            self.reader.read(source.get(key, usual), int, key, source.lines.get(key, source.line))
            for key, usual in zip(keys, (1, 10), strict=True)
        ]
        if FAILED in found:
            return None
        first, most = found
        if not 1 <= first <= most <= 3600:
            at = source.lines.get(keys[0]) or source.lines[keys[1]]
            self.reader.wrong(at, keys[0], f"pauses from {first} to {most} seconds; 1 <= first <= most <= 3600")
        return Delay(first_seconds=float(first), most_seconds=float(most))

    def _profiles(self, source: Map) -> tuple[ProfileConfig, ...]:
        found: dict[str, ProfileConfig] = {}
        for index, (value, line, path) in enumerate(self._items(source, "profiles")):
            if not isinstance(value, Map):
                self.reader.wrong(line, path, "a profile is a mapping")
                continue
            if index >= PROFILES_MOST:
                self.reader.wrong(line, path, f"at most {PROFILES_MOST} profiles are allowed")
                break
            profile = self.profile(value, line, path)
            if profile.name in found:
                text = f"the profile {profile.name} is defined twice, first in line {found[profile.name].line}"
                self.reader.wrong(profile.line, f"{path}.schedulerName", text, "give one of them another name")
            found.setdefault(profile.name, profile)
        if "default" not in found:
            found["default"] = self.profile(Map(0), 0)
        if CLAIM_PROFILE not in found:
            found[CLAIM_PROFILE] = self._baremetal(found["default"])
        self._check_sorts(list(found.values()))
        return tuple(found.values())

    def _baremetal(self, default: ProfileConfig) -> ProfileConfig:
        """Add the built-in profiles, with the shared QueueSort plugin."""
        made = self.profile(claim_profile_source(), 0)
        return replace(made, line=0, points={**made.points, "queueSort": default.points["queueSort"]})

    def _check_sorts(self, profiles: list[ProfileConfig]) -> None:
        """Check that all profiles have the same QueueSort plugin."""
        first = profiles[0]
        for other in profiles[1:]:
            ours, theirs = first.points["queueSort"], other.points["queueSort"]
            if len(ours) == len(theirs) == 1 and ours[0].name != theirs[0].name:
                text = (
                    f"all profiles share one QueueSort plugin: {first.name} has {ours[0].name}, "
                    f"{other.name} has {theirs[0].name}"
                )
                at = max(theirs[0].line, ours[0].line, 1)
                self.reader.wrong(at, "profiles", text, "enable the same one in each, and in `default`")

    def profile(self, source: Map, line: int, path: str = "profiles[0]") -> ProfileConfig:
        for key in source:
            if key not in {*_PROFILE, "percentageOfNodesToScore"}:
                self.reader.unknown(key, _PROFILE, frozenset(), path, source.lines[key])
        name = source.get("schedulerName", "default")
        if not isinstance(name, str) or not name:
            self.reader.wrong(
                source.lines["schedulerName"], f"{path}.schedulerName", "the name of a profile must be a string"
            )
            name = "default"
        chosen = self._points(source, path)
        points = dict(self._expand(chosen))
        self._check_one_sort(points["queueSort"], chosen, line, path)
        if not points["bind"]:
            self.reader.wrong(line, path, "no Bind plugin is enabled", f"enable {DEFAULT_BINDER}, or one of your own")
        return ProfileConfig(NAMES.get(name, name), line, points, self._args(source, path), self._ties(source, path))

    def _ties(self, source: Map, path: str) -> Ties:
        found: Ties = self.reader.read(source.get("ties", "spread"), Ties, f"{path}.ties", source.lines.get("ties", 0))
        return found

    def _check_one_sort(
        self, sorts: tuple[Choice, ...], chosen: Mapping[str, PointChoice], line: int, path: str
    ) -> None:
        if len(sorts) == 1:
            return
        names = " and ".join(each.name for each in sorts) or "none"
        at = max((each.line for each in sorts), default=0) or line
        hint = (
            "disable the other: `queueSort: {disabled: [{name: '*'}], enabled: [{name: …}]}`"
            if sorts
            else "enable PrioritySort"
        )
        self.reader.wrong(at, f"{path}.plugins", f"exactly one QueueSort plugin must be enabled, not {names}", hint)

    # Plugins.

    def _points(self, source: Map, path: str) -> dict[str, PointChoice]:
        plugins = source.get("plugins")
        if plugins is None:
            return {}
        if not isinstance(plugins, Map):
            self.reader.wrong(source.lines["plugins"], f"{path}.plugins", "plugins must be a mapping of points")
            return {}
        known = {MULTI, *POINTS}
        found: dict[str, PointChoice] = {}
        for point, value in plugins.items():
            at, where = plugins.lines[point], f"{path}.plugins.{point}"
            if point not in known:
                self.reader.wrong(at, where, "there is no such point", did_you_mean(point, known))
            elif not isinstance(value, Map):
                self.reader.wrong(at, where, "`enabled` and `disabled` belong here")
            else:
                found[point] = self._point(point, value, where)
        return found

    def _point(self, point: str, source: Map, path: str) -> PointChoice:
        for key in source:
            if key not in {"enabled", "disabled"}:
                self.reader.unknown(key, {"enabled", "disabled"}, frozenset(), path, source.lines[key])
        enabled = list(self._choices(source, "enabled", path))
        disabled = list(self._choices(source, "disabled", path))
        seen: set[str] = set()
        for each in enabled:
            if each.name in seen:
                self.reader.wrong(each.line, f"{path}.enabled", f"{each.name} is enabled twice")
            seen.add(each.name)
            self._check_serves(point, each, path)
        for each in disabled:
            if each.name not in self.registry and each.name not in ELSEWHERE | {ALL}:
                self._no_such(each, f"{path}.disabled")
        return PointChoice(tuple(enabled), frozenset(each.name for each in disabled))

    def _choices(self, source: Map, key: str, path: str) -> Iterator[Choice]:
        for value, line, where in self._items(source, key, path):
            if not isinstance(value, Map) or not isinstance(value.get("name"), str):
                self.reader.wrong(line, where, "`name` is missing", "write `- name: PLUGIN`")
                continue
            for other in value.keys() - {"name", "weight"}:
                self.reader.unknown(other, {"name", "weight"}, frozenset(), where, value.lines[other])
            weight, at = value.get("weight", 0), value.lines.get("weight", line)
            if not isinstance(weight, int) or isinstance(weight, bool) or not 0 <= weight <= WEIGHT_MOST:
                text = (
                    f"{weight!r} is not a weight: weights are whole numbers from 0 (which means 1) to {WEIGHT_MOST:,}"
                )
                self.reader.wrong(at, f"{where}.weight", text)
                weight = 1
            yield Choice(value["name"], value.lines["name"], weight or 1)

    def _check_serves(self, point: str, choice: Choice, path: str) -> None:
        registered = self.registry.get(choice.name)
        if registered is None:
            self._no_such(choice, f"{path}.enabled")
        elif point != MULTI and not issubclass(registered.cls, POINTS[point]):
            serves = ", ".join(each for each, kind in POINTS.items() if issubclass(registered.cls, kind))
            self.reader.wrong(
                choice.line, f"{path}.enabled", f"{choice.name} does not serve {point}", f"it serves {serves}"
            )

    def _no_such(self, choice: Choice, path: str) -> None:
        hint = did_you_mean(choice.name, self.registry)
        if choice.name in ELSEWHERE:
            hint = "this plugin of Kubernetes does not exist here; leave it out"
        self.reader.wrong(choice.line, path, f"there is no plugin {choice.name}", hint)

    def _expand(self, chosen: Mapping[str, PointChoice]) -> Iterator[tuple[str, tuple[Choice, ...]]]:
        """Kubernetes' precedence: a point's own list over `multiPoint`, `multiPoint` over the defaults."""
        everywhere = _merged(chosen.get(MULTI, PointChoice()))
        for point, kind in POINTS.items():
            own = chosen.get(point, PointChoice())
            known = [each for each in own.enabled if each.name in self.registry]
            if ALL in own.disabled:
                yield point, tuple(known)
                continue
            serving = [each for each in everywhere if each.name not in own.disabled and self._serves(each.name, kind)]
            spread = {each.name for each in serving}
            mine = {each.name for each in known}
            yield (
                point,
                (
                    *(each for each in known if each.name in spread),
                    *(each for each in serving if each.name not in mine),
                    *(each for each in known if each.name not in spread),
                ),
            )

    def _serves(self, name: str, kind: type[Plugin]) -> bool:
        registered = self.registry.get(name)
        return registered is not None and issubclass(registered.cls, kind)

    # Arguments of plugins.

    def _args(self, source: Map, path: str) -> dict[str, Struct]:
        found: dict[str, Struct] = {}
        seen: set[str] = set()
        for value, line, where in self._items(source, "pluginConfig", path):
            if not isinstance(value, Map) or not isinstance(value.get("name"), str):
                self.reader.wrong(line, where, "`name` is missing", "write `- name: PLUGIN` and `args:`")
                continue
            name, at = value["name"], value.lines["name"]
            if name in seen:
                self.reader.wrong(at, where, f"{name} is configured twice")
            seen.add(name)
            registered = self.registry.get(name)
            if registered is None:
                if name not in ELSEWHERE:
                    self._no_such(Choice(name, at), where)
                continue
            if self.server is not None and name not in BUILT_IN:
                text = f"arguments of {name}, which is not built in, are accepted only in the server's configuration"
                self.reader.wrong(at, where, text, "leave them out")
                continue
            args = self._plugin_args(registered.cls, value.get("args"), f"{where}.args", value.lines.get("args", line))
            if args is not None:
                found[name] = args
        return {**self._server_args(source.get("schedulerName", "default")), **found}

    def _server_args(self, profile: object) -> dict[str, Struct]:
        """Return the arguments of third-party plugins from the server's profile of the same name."""
        profiles = self.server.profiles if self.server is not None else ()
        return {
            name: args
            for each in profiles
            if each.name == NAMES.get(str(profile), profile)
            for name, args in each.args.items()
            if name not in BUILT_IN
        }

    def _plugin_args(self, cls: type[Plugin], value: Any, path: str, line: int) -> Struct | None:
        own = Map(line)
        if isinstance(value, Map):
            for key in value:
                if key not in {"apiVersion", "kind"}:  # type information of Kubernetes
                    own.take(key, value)
        elif value is not None:
            self.reader.wrong(line, path, "arguments are a mapping")
            return None
        if cls.Args is None:
            if own:
                self.reader.wrong(next(iter(own.lines.values())), path, f"{cls.name} takes no arguments")
            return None
        args = self.reader.read(own, cls.Args, path, line)
        return None if args is FAILED else args

    def _items(self, source: Map, key: str, path: str = "") -> Iterator[tuple[Any, int, str]]:
        value = source.get(key)
        where = f"{path}.{key}" if path else key
        if value is None:
            return
        if not isinstance(value, List):
            self.reader.wrong(source.lines[key], where, "a list belongs here")
            return
        for index, each in enumerate(value):
            yield each, value.lines[index], f"{where}[{index}]"


def _merged(custom: PointChoice) -> list[Choice]:
    """Return the defaults without the disabled ones, changed in place where they are listed; then the others."""
    named = {each.name: each for each in custom.enabled}
    kept: list[Choice] = []
    if ALL not in custom.disabled:
        kept = [
            named.get(cls.name, Choice(cls.name, 0, weight))
            for cls, weight in DEFAULTS
            if cls.name not in custom.disabled
        ]
    placed = {each.name for each in kept}
    return kept + [each for each in custom.enabled if each.name not in placed]
