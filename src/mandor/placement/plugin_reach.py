"""Groups the plugins of a profile by reach: node attributes, resources of a node, or the whole cluster."""

from collections.abc import Hashable, Sequence
from typing import NamedTuple

from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter, IncrementalScore, Reach, declares_reach, reach_of
from mandor.placement.framework.points import (
    SCORE_MOST,
    SKIP,
    FilterPlugin,
    Only,
    Plugin,
    PreFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
)
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import NodePlugins, PluginFault
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Watch
from mandor.placement.resource_formulas import FormulaChoice, ResourceFormulas

Weighed = Sequence[tuple[ScorePlugin, int]]
_SETTLED_MOST = 256


class ClusterWide(NamedTuple):
    """Plugins that have to be called for all nodes in each cycle."""

    pre_filters: Sequence[PreFilterPlugin]
    filters: Sequence[FilterPlugin]
    pre_scores: Sequence[PreScorePlugin]
    scores: Weighed
    one_by_one: frozenset[int]


class PluginsByReach(NamedTuple):
    """Plugins by their reach."""

    only: list[tuple[Plugin, Only]]
    """Nodes that a PreFilter selected by their attributes."""
    quiescent_filters: list[FilterPlugin]
    quiescent_scores: list[tuple[ScorePlugin, int]]
    filters: list[IncrementalFilter]
    scores: list[tuple[IncrementalScore, int]]
    """Plugins that depend on the resources of each node."""
    wide_pre_filters: list[PreFilterPlugin]
    wide_filters: list[FilterPlugin]
    wide_pre_scores: list[PreScorePlugin]
    wide_scores: list[tuple[ScorePlugin, int]]


class Quiescent(NamedTuple):
    """Plugins that depend on the attributes of nodes only: their answers hold until a node changes."""

    only: Sequence[tuple[Plugin, Only]]
    filters: Sequence[FilterPlugin]
    scores: Weighed
    key: Hashable
    """Requests with equal keys get equal answers."""


class ScoringPlan(NamedTuple):
    quiescent: Quiescent
    formulas: ResourceFormulas | None
    filters: Sequence[IncrementalFilter]
    scores: Sequence[tuple[IncrementalScore, int]]
    """Plugins that depend on the resources of each node and have no formula."""
    wide: ClusterWide | None
    most: int
    """The highest possible sum of all scores but the cluster-wide ones."""
    local: Hashable
    """Key of everything that these sums depend on."""

    @property
    def alone(self) -> bool:
        """Return whether the formulas cover all plugins that depend on resources."""
        return self.formulas is not None and not self.filters and not self.scores


class PlanOutline(NamedTuple):
    """A plan without the numbers of the request."""

    quiescent: Quiescent
    formula_choice: FormulaChoice
    wide: ClusterWide | None
    most: int
    local: Hashable


def plan(profile: Profile, state: CycleState, request: PlacementRequest, nodes: Snapshot, watch: Watch) -> ScoringPlan:
    settled, outline, key = _settled(profile, state, request, nodes, watch)
    opened = _sort(profile.open, state, request, nodes, watch)
    if any(opened):
        only_its_own = opened.only or opened.quiescent_filters or opened.quiescent_scores
        outline = _outline(profile, settled, opened, (key, request.class_key) if only_its_own else key)
    formulas, others, other_scores = outline.formula_choice.of(request, nodes)
    return ScoringPlan(outline.quiescent, formulas, others, other_scores, outline.wide, outline.most, outline.local)


def _outline(profile: Profile, settled: PluginsByReach, opened: PluginsByReach, key: Hashable) -> PlanOutline:
    filters, scores = (*settled.filters, *opened.filters), (*settled.scores, *opened.scores)
    quiescent = Quiescent(
        (*settled.only, *opened.only),
        (*settled.quiescent_filters, *opened.quiescent_filters),
        (*settled.quiescent_scores, *opened.quiescent_scores),
        key,
    )
    weights = sum(weight for _, weight in quiescent.scores) + sum(weight for _, weight in scores)
    wide = _wide(profile, settled, opened)
    return PlanOutline(quiescent, FormulaChoice(filters, scores), wide, SCORE_MOST * weights, (key, filters, scores))


def _settled(
    profile: Profile, state: CycleState, request: PlacementRequest, nodes: Snapshot, watch: Watch
) -> tuple[PluginsByReach, PlanOutline, tuple[Hashable, ...]]:
    """Return the plugins that declare their inputs, grouped once for all requests with equal inputs."""
    # The owner matters only while a node is dedicated or reserved.
    whose = (nodes.anyone_dedicated(), request.identity if nodes.reservations else None)
    key = (profile, whose, *[each.cache_key(request) for each in profile.settled_plugins])
    kept, seen = nodes._cached.settled, nodes._cached.attributes
    found = kept.get(key)
    if found is None or found[0] != seen:
        if len(kept) >= _SETTLED_MOST:
            del kept[next(iter(kept))]
        settled = _sort(profile.settled, state, request, nodes, watch)
        found = kept[key] = (seen, (settled, _outline(profile, settled, _no_plugins(), key)))
    return *found[1], key


def _wide(profile: Profile, settled: PluginsByReach, opened: PluginsByReach) -> ClusterWide | None:
    wide = ClusterWide(
        (*settled.wide_pre_filters, *opened.wide_pre_filters),
        (*settled.wide_filters, *opened.wide_filters),
        (*settled.wide_pre_scores, *opened.wide_pre_scores),
        (*settled.wide_scores, *opened.wide_scores),
        profile.one_by_one,
    )
    return wide if wide.pre_filters or wide.filters or wide.pre_scores or wide.scores else None


def _no_plugins() -> PluginsByReach:
    return PluginsByReach([], [], [], [], [], [], [], [], [])


def _sort(
    judges: NodePlugins, state: CycleState, request: PlacementRequest, nodes: Snapshot, watch: Watch
) -> PluginsByReach:
    found = _no_plugins()
    skipped = _sort_pre_filters(found, judges, state, request, nodes, watch)
    for filterer in judges.filters:
        if filterer not in skipped:
            reach = reach_of(filterer, request, nodes)
            if reach is Reach.ATTRIBUTES:
                found.quiescent_filters.append(filterer)
            elif reach is Reach.ROOM and isinstance(filterer, IncrementalFilter):
                found.filters.append(filterer)
            else:
                found.wide_filters.append(filterer)
    skipped, wide = _ask_pre_scores(judges, state, request, nodes, watch)
    for scorer, weight in judges.scores:
        if scorer in skipped:
            continue
        # A score that is normalized over the feasible nodes is cluster-wide, whatever its inputs are.
        relative = type(scorer).normalize is not ScorePlugin.normalize
        reach = Reach.CLUSTER if relative else reach_of(scorer, request, nodes)
        if reach is Reach.ATTRIBUTES:
            found.quiescent_scores.append((scorer, weight))
        elif reach is Reach.ROOM and isinstance(scorer, IncrementalScore):
            found.scores.append((scorer, weight))
        else:
            found.wide_scores.append((scorer, weight))
            wide.add(scorer)
    found.wide_pre_scores.extend(each for each in judges.pre_scores if each in wide)
    return found


def _sort_pre_filters(
    found: PluginsByReach,
    judges: NodePlugins,
    state: CycleState,
    request: PlacementRequest,
    nodes: Snapshot,
    watch: Watch,
) -> set[Plugin]:
    """Sort the PreFilter plugins; return those that answered SKIP."""
    skipped: set[Plugin] = set()
    for plugin in judges.pre_filters:
        if not declares_reach(plugin):
            found.wide_pre_filters.append(plugin)
            continue
        watch.begin(plugin.name, "PreFilter")
        answer = plugin.pre_filter(state, request, nodes)
        if answer is SKIP:
            skipped.add(plugin)
        elif answer is not None and not isinstance(answer, Only):
            raise PluginFault(plugin.name, f"returned {answer!r}; a PreFilter returns None, SKIP or Only(…)")
        else:
            reach = reach_of(plugin, request, nodes)
            if reach is Reach.CLUSTER or (answer is not None and reach is Reach.ROOM):
                found.wide_pre_filters.append(plugin)
            elif answer is not None:
                found.only.append((plugin, answer))
    return skipped


def _ask_pre_scores(
    judges: NodePlugins, state: CycleState, request: PlacementRequest, nodes: Snapshot, watch: Watch
) -> tuple[set[Plugin], set[Plugin]]:
    """Call the PreScore plugins; return those that answered SKIP, and those with cluster-wide reach."""
    everyone = nodes.health.where("everyone", lambda _: True)
    skipped: set[Plugin] = set()
    wide: set[Plugin] = set()
    for plugin in judges.pre_scores:
        if not declares_reach(plugin):
            wide.add(plugin)
            continue
        watch.begin(plugin.name, "PreScore")
        answer = plugin.pre_score(state, request, nodes, everyone)
        if answer is SKIP:
            skipped.add(plugin)
        elif answer is not None:
            raise PluginFault(plugin.name, f"returned {answer!r}; a PreScore returns None or SKIP")
        elif reach_of(plugin, request, nodes) is Reach.CLUSTER:
            wide.add(plugin)
    return skipped, wide
