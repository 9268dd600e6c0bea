"""Makes the profiles of a configuration; unchanged plugins are reused, so that they keep their state."""

from dataclasses import dataclass

from msgspec import Struct
from msgspec.structs import replace

from mandor.placement.config import ProfileConfig, SchedulerConfig
from mandor.placement.framework.handle import Handle
from mandor.placement.framework.plugin_factory import Registered, make_plugin
from mandor.placement.framework.points import POINTS, Plugin
from mandor.placement.framework.profile import Enabled, Profile, check_together
from mandor.placement.plugin_source import Registry
from mandor.placement.plugins.http_extender import Extender, HTTPExtender
from mandor.placement.plugins.node_resources_fit import NodeResourcesFit, NodeResourcesFitArgs


@dataclass(frozen=True, slots=True)
class _Made:
    registered: Registered
    args: Struct | None
    plugin: Plugin


class ProfileFactory:
    """Makes plugins once per profile and arguments."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._made: dict[tuple[str, str], _Made] = {}

    def profiles(self, config: SchedulerConfig, registry: Registry) -> dict[str, Profile]:
        """Return all profiles of a configuration; an error changes nothing."""
        made: dict[tuple[str, str], _Made] = {}
        profiles = {each.name: self._profile(each, config, registry, made) for each in config.profiles}
        check_together(profiles)
        self._made = made
        return profiles

    def _profile(
        self,
        config: ProfileConfig,
        whole: SchedulerConfig,
        registry: Registry,
        made: dict[tuple[str, str], _Made],
    ) -> Profile:
        enabled: dict[str, Enabled] = {}
        points: dict[str, list[Enabled]] = {point: [] for point in POINTS}
        for point, choices in config.points.items():
            for choice in choices:
                registered = registry[choice.name]
                args = _without_managed(choice.name, config.args.get(choice.name), whole)
                plugin = self._plugin(config.name, registered, args, made)
                weight = choice.weight if point == "score" else 1
                each = Enabled(plugin, weight, registered.version)
                points[point].append(each)
                enabled.setdefault(choice.name, each)
        for extender in whole.extenders:
            self._extend(config.name, extender, enabled, points, made)
        return Profile(config.name, enabled.values(), points=points, ties=config.ties)

    def _extend(
        self,
        profile: str,
        extender: Extender,
        enabled: dict[str, Enabled],
        points: dict[str, list[Enabled]],
        made: dict[tuple[str, str], _Made],
    ) -> None:
        plugin = self._plugin(profile, Registered(HTTPExtender), extender, made, key=extender.url_prefix)
        each = Enabled(plugin, max(extender.weight, 1))
        enabled[plugin.name] = each
        if extender.filter_verb:
            points["filter"].append(each)
        if extender.prioritize_verb:
            points["score"].append(each)
        if extender.bind_verb:
            points["bind"].insert(0, each)

    def _plugin(
        self,
        profile: str,
        registered: Registered,
        args: Struct | None,
        made: dict[tuple[str, str], _Made],
        *,
        key: str = "",
    ) -> Plugin:
        slot = (profile, key or registered.name)
        known = made.get(slot) or self._made.get(slot)
        if known is None or known.registered != registered or known.args != args:
            known = _Made(registered, args, make_plugin(registered, self._handle, args))
        made[slot] = known
        return known.plugin


def _without_managed(name: str, args: Struct | None, config: SchedulerConfig) -> Struct | None:
    """Return the arguments with resources ignored that an extender manages alone."""
    managed = {each.name for extender in config.extenders for each in extender.managed_resources if each.ignored_here}
    if name != NodeResourcesFit.name or not managed:
        return args
    known = args if isinstance(args, NodeResourcesFitArgs) else NodeResourcesFitArgs()
    return replace(known, ignored_resources=tuple(sorted({*known.ignored_resources, *managed})))
