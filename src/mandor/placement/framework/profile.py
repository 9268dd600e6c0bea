"""Profile: a named choice of plugins, their order and weights."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mandor.errors import Invalid
from mandor.placement.framework.points import (
    NOT_RUN,
    RUN,
    FilterPlugin,
    Plugin,
    PreFilterPlugin,
    PreScorePlugin,
    QueueSortPlugin,
    ScorePlugin,
)


@dataclass(frozen=True, slots=True)
class Enabled:
    plugin: Plugin
    weight: int = 1
    """Of its scores."""


class Profile:
    """Plugins in order, sorted by the points they serve; a wrong choice is refused here, before it is used."""

    def __init__(self, name: str, enabled: Iterable[Enabled]) -> None:
        self.name = name
        self.enabled = tuple(enabled)
        plugins = [each.plugin for each in self.enabled]
        _check(name, self.enabled)
        self.queue_sort = _only(name, [each for each in plugins if isinstance(each, QueueSortPlugin)])
        self.pre_filters = tuple(each for each in plugins if isinstance(each, PreFilterPlugin))
        self.filters = tuple(each for each in plugins if isinstance(each, FilterPlugin))
        self.pre_scores = tuple(each for each in plugins if isinstance(each, PreScorePlugin))
        self.scores = tuple((each.plugin, each.weight) for each in self.enabled if isinstance(each.plugin, ScorePlugin))
        self.filter_names = tuple(plugin.name for plugin in self.filters)


def _check(name: str, enabled: tuple[Enabled, ...]) -> None:
    seen: set[str] = set()
    for each in enabled:
        plugin = each.plugin
        if plugin.name in seen:
            raise Invalid(f"profile {name}: the plugin {plugin.name} is enabled twice")
        seen.add(plugin.name)
        if each.weight < 1:
            raise Invalid(f"profile {name}: the weight of {plugin.name} is {each.weight}; a weight is 1 or more")
        if not isinstance(plugin, RUN + NOT_RUN):
            raise Invalid(f"profile {name}: {plugin.name} serves no point")
        for point in NOT_RUN:
            if isinstance(plugin, point):
                raise Invalid(
                    f"profile {name}: {plugin.name} serves {point.__name__.removesuffix('Plugin')}, "
                    "a point that this version does not run",
                    hint="take the plugin out of the profile",
                )


def _only(name: str, sorts: Sequence[QueueSortPlugin]) -> QueueSortPlugin:
    if len(sorts) != 1:
        found = ", ".join(plugin.name for plugin in sorts) or "none"
        raise Invalid(f"profile {name}: exactly one QueueSort plugin is enabled, not {len(sorts)} ({found})")
    return sorts[0]
