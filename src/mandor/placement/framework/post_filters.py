"""Runs PostFilter plugins, each with a dry run over the filters of its profile."""

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from mandor.lib.steps import Steps
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.dry_run import DryRun, TrialFilters
from mandor.placement.framework.incremental import IncrementalFilter, Reach, SteppedPostFilter, reach_of
from mandor.placement.framework.points import (
    SKIP,
    FilterPlugin,
    Nomination,
    Only,
    Plugin,
    PostFilterPlugin,
    PreFilterPlugin,
)
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault, blamed, run_filters, run_scores
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Watch

T = TypeVar("T")

OWN = "mandor.placement.plugins."
Quick = Callable[[Profile, CycleState, PlacementRequest, Snapshot, Watch], int]


class ProfileFilters(TrialFilters):
    """Runs the filters of a profile: those that depend on node attributes once, the others for each change.

    `quick` returns the slot of the best node for profiles with a declared reach; negative: no node fits.
    `within`: the nodes to consider; None: all.
    """

    def __init__(
        self,
        profile: Profile,
        request: PlacementRequest,
        nodes: Snapshot,
        watch: Watch,
        *,
        consulted: Mapping[str, object] | None = None,
        quick: Quick | None = None,
        within: Mask | None = None,
    ) -> None:
        self.request = request
        self.nodes = nodes
        self._profile = profile
        self._watch = watch
        self._consulted = consulted
        self._quick = quick
        self._within = within
        self._needs: dict[str, int] = {}
        self._asked: list[tuple[FilterPlugin, bool]] = []
        """Filters that depend on placed instances, and whether they depend on more than the node itself."""
        self._possible: Mask | None = None

    @property
    def possible(self) -> Mask:
        if self._possible is None:
            self._possible = self._first_pass()
        return self._possible

    @property
    def needs(self) -> Mapping[str, int]:
        return self._needs

    @property
    def by_amounts(self) -> bool:
        return bool(len(self.possible)) and not self._asked

    def of(self, request: PlacementRequest) -> "ProfileFilters":
        return ProfileFilters(
            self._profile, request, self.nodes, self._watch, consulted=self._consulted, quick=self._quick
        )

    def fits(self, slot: int) -> bool:
        free, rows = self.nodes.free, self.nodes.rows
        if not self.possible[slot] or any(free[rows[name], slot] < need for name, need in self._needs.items()):
            return False
        for plugin, wide in self._asked:
            self._watch.begin(plugin.name, "Filter")
            with blamed(plugin):
                if wide or not isinstance(plugin, IncrementalFilter):
                    fits = self._wide(plugin, slot)
                else:
                    fits = plugin.filter_slot(self.request, self.nodes, slot)
            self._watch.end()  # A plugin is not interrupted in the middle of a change to the table.
            if not fits:
                return False
        return True

    def place(self) -> str:
        state, profile = CycleState(self._consulted), self._profile
        if self._quick is not None and profile.local:
            found = self._quick(profile, state, self.request, self.nodes, self._watch)
            self._watch.end()
            return self.nodes.nodes[found].meta.name if found >= 0 else ""
        verdict = run_filters(profile, state, self.request, self.nodes, self._watch)
        self._watch.end()
        among = verdict.feasible.nonzero()[0]
        if not len(among):
            return ""
        totals = run_scores(profile, state, self.request, self.nodes, verdict.feasible, among, self._watch)
        self._watch.end()
        return self.nodes.nodes[int(among[totals.argmax()])].meta.name

    def _first_pass(self) -> Mask:
        """Run the filters that depend on node attributes once; collect the others, which run for each change."""
        request, nodes, state = self.request, self.nodes, CycleState(self._consulted)
        possible: Mask = np.ones(len(nodes), dtype=np.bool_) if self._within is None else self._within.copy()
        silent: set[Plugin] = set()
        attributes, cluster = Reach.ATTRIBUTES, Reach.CLUSTER
        for plugin in self._profile.pre_filters:
            self._watch.begin(plugin.name, "PreFilter")
            with blamed(plugin):
                answer = plugin.pre_filter(state, request, nodes)
            if answer is SKIP:
                silent.add(plugin)
            elif isinstance(answer, Only):
                named = [nodes.slots[name] for name in answer.nodes if name in nodes.slots]
                only = np.zeros(len(nodes), dtype=np.bool_)
                only[named] = True
                possible &= only
        for each in self._profile.filters:
            if each in silent:
                continue  # A plugin that skips now also skips when instances are removed.
            reach = reach_of(each, request, nodes)
            needs = each.needs(request) if isinstance(each, IncrementalFilter) else None
            if reach is attributes:
                self._watch.begin(each.name, "Filter")
                with blamed(each):
                    possible &= each.filter(state, request, nodes)
            elif needs is None:
                self._asked.append((each, reach is cluster))
            elif all(name in nodes.rows for name, _ in needs):
                self._needs.update(needs)
                for name, need in needs:
                    possible &= nodes.allocatable[nodes.rows[name]] >= need
            else:
                possible[:] = False
        self._watch.end()
        return possible

    def _wide(self, plugin: FilterPlugin, slot: int) -> bool:
        state = CycleState(self._consulted)
        if isinstance(plugin, PreFilterPlugin):
            answer = plugin.pre_filter(state, self.request, self.nodes)
            if answer is SKIP:
                return True
            if isinstance(answer, Only) and self.nodes.nodes[slot].meta.name not in answer.nodes:
                return False
        if id(plugin) in self._profile.one_by_one:
            return bool(plugin.filter_node(state, self.request, self.nodes.view(slot, self.nodes.nodes[slot])))
        return bool(plugin.filter(state, self.request, self.nodes)[slot])


def run_post_filters(profile: Profile, state: CycleState, dry_run: DryRun, watch: Watch) -> Steps[Nomination | None]:
    """Run the PostFilter plugins until one nominates a node; undo their changes after each step."""
    slots = dry_run.nodes.slots
    for plugin in profile.post_filters:
        answer = yield from _asked(plugin, _steps(plugin, state, dry_run), dry_run, watch)
        if isinstance(answer, str) and answer in slots:
            return Nomination(answer)
        if isinstance(answer, Nomination) and answer.node in slots:
            return answer
        if answer is not None:
            raise PluginFault(plugin.name, f"nominated {answer!r}, which is not a node")
    return None


def _steps(plugin: PostFilterPlugin, state: CycleState, dry_run: DryRun) -> Steps[Nomination | str | None]:
    if isinstance(plugin, SteppedPostFilter):
        return plugin.making_room(state, dry_run)
    return _in_one_step(plugin, state, dry_run)


def _in_one_step(plugin: PostFilterPlugin, state: CycleState, dry_run: DryRun) -> Steps[Nomination | str | None]:
    yield from ()
    return plugin.make_room(state, dry_run)


def _asked(plugin: Plugin, steps: Steps[T], dry_run: DryRun, watch: Watch) -> Steps[T]:
    while True:
        if type(plugin).__module__.startswith(OWN):
            watch.end()  # A built-in plugin changes the table and is not interrupted in the middle of that.
        else:
            watch.begin(plugin.name, "PostFilter")
        with blamed(plugin), dry_run.trial():
            try:
                looks = next(steps)
            except StopIteration as end:
                answer: T = end.value
                return answer
        yield looks
