"""Who has something to say about a class of instances, sorted by how far he looks."""

from collections.abc import Hashable
from dataclasses import dataclass

from mandor.placement.framework.ask import Ask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import (
    SCORE_MOST,
    SKIP,
    FilterPlugin,
    Only,
    Plugin,
    PreFilterPlugin,
    PreScorePlugin,
    Reach,
    ScorePlugin,
)
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Watch
from mandor.placement.usual import Usual, taken_over

Weighed = tuple[tuple[ScorePlugin, int], ...]


@dataclass(frozen=True, slots=True)
class Wide:
    """Those who must be asked about all nodes in each cycle."""

    pre_filters: tuple[PreFilterPlugin, ...]
    filters: tuple[FilterPlugin, ...]
    pre_scores: tuple[PreScorePlugin, ...]
    scores: Weighed
    one_by_one: frozenset[int]

    @property
    def silent(self) -> bool:
        return not (self.pre_filters or self.filters or self.pre_scores or self.scores)


@dataclass(frozen=True, slots=True)
class Still:
    """Those who go by what nodes are."""

    only: tuple[tuple[Plugin, Only], ...]
    filters: tuple[FilterPlugin, ...]
    scores: Weighed
    key: Hashable
    """Asks with the same get the same answers."""


@dataclass(frozen=True, slots=True)
class Plan:
    still: Still
    usual: Usual | None
    filters: tuple[FilterPlugin, ...]
    scores: Weighed
    """Those who go by the room on each node, beside the usual ones."""
    wide: Wide | None
    most: int
    """The highest sum that all but the wide can give."""
    local: Hashable
    """What the sums of all but the wide depend on."""

    @property
    def full_cost(self) -> int:
        """When more than one node in so many has changed, all of them are computed faster than these."""
        return 16 if self.filters or self.scores else 3


def plan(profile: Profile, state: CycleState, ask: Ask, nodes: Snapshot, watch: Watch) -> Plan:
    silent: set[Plugin] = set()
    only: list[tuple[Plugin, Only]] = []
    wide_pre_filters: list[PreFilterPlugin] = []
    for plugin in profile.pre_filters:
        if not _declares(plugin):
            wide_pre_filters.append(plugin)
            continue
        watch.begin(plugin.name)
        answer = plugin.pre_filter(state, ask, nodes)
        if answer is SKIP:
            silent.add(plugin)
        elif plugin.reach(ask, nodes) is not Reach.ATTRIBUTES and (
            isinstance(answer, Only) or plugin.reach(ask, nodes) is Reach.CLUSTER
        ):
            wide_pre_filters.append(plugin)
        elif isinstance(answer, Only):
            only.append((plugin, answer))
        elif answer is not None:
            raise PluginFault(plugin.name, f"answered {answer!r}; a PreFilter answers None, SKIP or Only(…)")
    filters: dict[Reach, list[FilterPlugin]] = {reach: [] for reach in Reach}
    for filterer in profile.filters:
        if filterer not in silent:
            filters[filterer.reach(ask, nodes)].append(filterer)
    scores, wide_pre_scores = _scores(profile, state, ask, nodes, watch)
    return _sorted(
        ask,
        nodes,
        only,
        filters,
        scores,
        Wide(
            tuple(wide_pre_filters),
            tuple(filters[Reach.CLUSTER]),
            wide_pre_scores,
            tuple(scores[Reach.CLUSTER]),
            frozenset(id(each) for each in filters[Reach.CLUSTER] if id(each) in profile.one_by_one),
        ),
    )


def _scores(
    profile: Profile, state: CycleState, ask: Ask, nodes: Snapshot, watch: Watch
) -> tuple[dict[Reach, list[tuple[ScorePlugin, int]]], tuple[PreScorePlugin, ...]]:
    """By reach, and the PreScores that must be asked in each cycle. What is put in relation to the other feasible
    nodes is wide, whatever it goes by."""
    everyone = nodes.health.where("everyone", lambda _: True)
    silent: set[Plugin] = set()
    wide: set[Plugin] = set()
    for plugin in profile.pre_scores:
        if not _declares(plugin):
            wide.add(plugin)
            continue
        watch.begin(plugin.name)
        answer = plugin.pre_score(state, ask, nodes, everyone)
        if answer is SKIP:
            silent.add(plugin)
        elif answer is not None:
            raise PluginFault(plugin.name, f"answered {answer!r}; a PreScore answers None or SKIP")
        elif plugin.reach(ask, nodes) is Reach.CLUSTER:
            wide.add(plugin)
    found: dict[Reach, list[tuple[ScorePlugin, int]]] = {reach: [] for reach in Reach}
    for scorer, weight in profile.scores:
        if scorer not in silent:
            relative = type(scorer).normalize is not ScorePlugin.normalize
            reach = Reach.CLUSTER if relative else scorer.reach(ask, nodes)
            found[reach].append((scorer, weight))
            if reach is Reach.CLUSTER:
                wide.add(scorer)
    return found, tuple(each for each in profile.pre_scores if each in wide)


def _sorted(
    ask: Ask,
    nodes: Snapshot,
    only: list[tuple[Plugin, Only]],
    filters: dict[Reach, list[FilterPlugin]],
    scores: dict[Reach, list[tuple[ScorePlugin, int]]],
    wide: Wide,
) -> Plan:
    still_filters, still_scores = tuple(filters[Reach.ATTRIBUTES]), tuple(scores[Reach.ATTRIBUTES])
    key = (
        tuple(only),
        tuple((each, each.goes_by(ask)) for each in still_filters),
        tuple((each, weight, each.goes_by(ask)) for each, weight in still_scores),
    )
    usual, others, other_scores = taken_over(ask, nodes, filters[Reach.ROOM], scores[Reach.ROOM])
    weights = [weight for reach in (Reach.ATTRIBUTES, Reach.ROOM) for _, weight in scores[reach]]
    return Plan(
        Still(tuple(only), still_filters, still_scores, key),
        usual,
        others,
        other_scores,
        None if wide.silent else wide,
        SCORE_MOST * sum(weights),
        (key, tuple(filters[Reach.ROOM]), tuple(scores[Reach.ROOM])),
    )


def _declares(plugin: Plugin) -> bool:
    return type(plugin).reach is not Plugin.reach
