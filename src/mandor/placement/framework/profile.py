"""Profile: a named set of plugins with their order and weights for each point."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mandor.errors import Invalid
from mandor.placement.framework.cached_columns import EVERYWHERE, At
from mandor.placement.framework.incremental import (
    IncrementalFilter,
    IncrementalPlugin,
    declares_cache_key,
    declares_reach,
)
from mandor.placement.framework.points import (
    POINTS,
    BindPlugin,
    ConsultPlugin,
    FilterPlugin,
    GangPlugin,
    PermitPlugin,
    Plugin,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    PreScorePlugin,
    QueueSortPlugin,
    ReservePlugin,
    ScorePlugin,
)
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.tie_break import TieBreaks, Ties, tie_breaks

DEFAULT_BINDER = "DefaultBinder"


@dataclass(frozen=True, slots=True)
class Enabled:
    """A plugin of a profile."""

    plugin: Plugin
    weight: int = 1
    """Weight of its scores."""
    version: str = ""
    """Version of a plugin that is not built in."""


class PluginSubset(NamedTuple):
    """Some of the plugins of a profile that filter and score nodes."""

    pre_filters: tuple[PreFilterPlugin, ...]
    filters: tuple[FilterPlugin, ...]
    pre_scores: tuple[PreScorePlugin, ...]
    scores: tuple[tuple[ScorePlugin, int], ...]
    one_by_one: frozenset[int]


class Profile:
    """The plugins of a profile by point; invalid combinations are refused by the constructor.

    Each plugin of `enabled` serves all of its points in this order, unless `points` lists the plugins of a point.
    """

    def __init__(
        self,
        name: str,
        enabled: Iterable[Enabled],
        *,
        points: Mapping[str, Sequence[Enabled]] | None = None,
        ties: Ties = "spread",
    ) -> None:
        self.name, self.ties = name, ties
        self.enabled = tuple(enabled)
        _check(name, self.enabled)
        self._points = dict(points) if points is not None else dict.fromkeys(POINTS, self.enabled)
        self.queue_sort = _only(name, [each for each in self._at("queueSort") if isinstance(each, QueueSortPlugin)])
        self.pre_enqueues = tuple(each for each in self._at("preEnqueue") if isinstance(each, PreEnqueuePlugin))
        self.pre_filters = tuple(each for each in self._at("preFilter") if isinstance(each, PreFilterPlugin))
        self.filters = tuple(each for each in self._at("filter") if isinstance(each, FilterPlugin))
        self.post_filters = tuple(each for each in self._at("postFilter") if isinstance(each, PostFilterPlugin))
        self.pre_scores = tuple(each for each in self._at("preScore") if isinstance(each, PreScorePlugin))
        self.scores = tuple(
            (each.plugin, each.weight) for each in self._points.get("score", ()) if isinstance(each.plugin, ScorePlugin)
        )
        self.reserves = tuple(each for each in self._at("reserve") if isinstance(each, ReservePlugin))
        self.permits = tuple(each for each in self._at("permit") if isinstance(each, PermitPlugin))
        self.pre_binds = tuple(each for each in self._at("preBind") if isinstance(each, PreBindPlugin))
        self.binds = tuple(each for each in self._at("bind") if isinstance(each, BindPlugin))
        self.post_binds = tuple(each for each in self._at("postBind") if isinstance(each, PostBindPlugin))
        self.consults = tuple(each.plugin for each in self.enabled if isinstance(each.plugin, ConsultPlugin))
        self.gangs = tuple(each.plugin for each in self.enabled if isinstance(each.plugin, GangPlugin))
        """Gang plugins; empty: members of gangs are placed by themselves."""
        self.one_by_one = frozenset(id(each) for each in self.filters if type(each).filter is FilterPlugin.filter)
        """Ids of plugins that define `filter_node`; they are called only for nodes that no other plugin refused."""
        self.outright = tuple(
            each
            for each in self.filters
            if isinstance(each, IncrementalFilter) and type(each).rules_out is not IncrementalFilter.rules_out
        )
        """Filters that can rule a node out by its attributes alone."""
        self.filter_names = tuple(plugin.name for plugin in self.filters)
        self.versions = tuple(f"{each.plugin.name}@{each.version}" for each in self.enabled if each.version)
        """Names and versions of the plugins that are not built in."""
        choosy = tuple(each for each in self.pre_binds if type(each).concerns is not PreBindPlugin.concerns)
        self.batched = len(choosy) == len(self.pre_binds) and [each.name for each in self.binds] == [DEFAULT_BINDER]
        """Whether most decisions go straight to the default bind and are written in batches."""
        self._choosy = choosy
        followers = {*self.reserves, *self.permits, *self.post_binds} - {*self.gangs}
        self.plain = self.batched and not (followers or self.versions)
        """Whether no plugin runs after the decision about an instance that is in no gang."""
        judges = (*self.filters, *(plugin for plugin, _ in self.scores))
        self.settled, self.open = (
            self._part(lambda each: declares_cache_key(type(each))),
            self._part(lambda each: not declares_cache_key(type(each))),
        )
        """Plugins that filter and score: those that declare a cache key, and the others."""
        self.settled_plugins = tuple(
            each.plugin
            for each in self.enabled
            if isinstance(each.plugin, IncrementalPlugin) and declares_cache_key(type(each.plugin))
        )
        self.local = any(map(declares_reach, judges))
        """Whether a plugin declares its reach, so that not all nodes are computed in every cycle."""
        self.by_class = all(
            isinstance(plugin, IncrementalPlugin) and plugin.by_class
            for plugin in (*self.pre_filters, *self.filters, *self.post_filters, *self.consults)
        )
        """Whether a refusal holds for all instances of a class until the table changes."""

    def _part(self, wanted: Callable[[Plugin], bool]) -> "PluginSubset":
        return PluginSubset(
            tuple(each for each in self.pre_filters if wanted(each)),
            tuple(each for each in self.filters if wanted(each)),
            tuple(each for each in self.pre_scores if wanted(each)),
            tuple((each, weight) for each, weight in self.scores if wanted(each)),
            self.one_by_one,
        )

    def _at(self, point: str) -> list[Plugin]:
        return [each.plugin for each in self._points.get(point, ())]

    def batches(self, request: PlacementRequest) -> bool:
        """Return whether the decision about this instance goes straight to the default bind."""
        for each in self._choosy:
            if each.concerns(request):
                return False
        return self.batched

    def tie_breaks(self, request: PlacementRequest, nodes: Snapshot, at: At = EVERYWHERE) -> TieBreaks:
        """Return the tie breaks; of nodes with equal scores, the one with the highest value is chosen."""
        if self.ties == "first":
            return nodes.listed()[at]
        return tie_breaks(request.identity, nodes.order()[at], len(nodes))

    def plugin(self, name: str) -> Plugin | None:
        return next((each.plugin for each in self.enabled if each.plugin.name == name), None)


def check_together(profiles: Mapping[str, Profile]) -> None:
    """Check that the profiles work together: one default, one QueueSort for all, and a Bind plugin in each."""
    if "default" not in profiles:
        raise Invalid(
            "there is no profile named default", hint="workloads without a profile use it; add one named default"
        )
    sorts = {profile.queue_sort.name for profile in profiles.values()}
    if len(sorts) > 1:
        raise Invalid(
            f"all profiles share one queue and need the same QueueSort plugin; these use {', '.join(sorted(sorts))}",
            hint="enable the same QueueSort plugin in each profile",
        )
    for profile in profiles.values():
        if not profile.binds:
            raise Invalid(
                f"profile {profile.name}: no Bind plugin is enabled",
                hint=f"enable {DEFAULT_BINDER}, or one of your own",
            )


def _check(name: str, enabled: tuple[Enabled, ...]) -> None:
    seen: set[str] = set()
    for each in enabled:
        plugin = each.plugin
        if plugin.name in seen:
            raise Invalid(f"profile {name}: the plugin {plugin.name} is enabled twice")
        seen.add(plugin.name)
        if each.weight < 1:
            raise Invalid(f"profile {name}: the weight of {plugin.name} is {each.weight}; a weight is 1 or more")
        if not isinstance(plugin, tuple(POINTS.values())):
            raise Invalid(f"profile {name}: {plugin.name} serves no point")


def _only(name: str, sorts: Sequence[QueueSortPlugin]) -> QueueSortPlugin:
    if len(sorts) != 1:
        found = ", ".join(plugin.name for plugin in sorts) or "none"
        raise Invalid(f"profile {name}: {len(sorts)} QueueSort plugins are enabled ({found}); exactly one is required")
    return sorts[0]
