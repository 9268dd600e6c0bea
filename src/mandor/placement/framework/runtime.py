"""Asks the plugins of a profile, point by point, and remembers who said no."""

from dataclasses import dataclass
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.ask import Ask
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import SCORE_MOST, SKIP, FilterPlugin, Plugin, Skip
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.snapshot import Snapshot

NOBODY = -1
_BOOL = np.dtype(np.bool_)
_INT = np.dtype(np.int64)


class PluginFault(Exception):
    """A plugin raised, or answered something that is no answer. It ends the cycle, not the scheduler."""

    def __init__(self, plugin: str, problem: str) -> None:
        super().__init__(f"the plugin {plugin} {problem}")
        self.plugin = plugin


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who fits, and for each other node the plugin that said no first."""

    feasible: Mask
    blame: NDArray[np.int16]
    plugins: tuple[Plugin, ...]

    @property
    def refusals(self) -> list[tuple[Plugin, Mask]]:
        """Each plugin that said no, with its nodes; the one with most first."""
        by_plugin = [(plugin, self.blame == index) for index, plugin in enumerate(self.plugins)]
        found = [(plugin, refused) for plugin, refused in by_plugin if refused.any()]
        return sorted(found, key=lambda item: -int(item[1].sum()))

    def explain(self, ask: Ask, nodes: Snapshot) -> str:
        """`0/3 nodes fit: 2 NodeResourcesFit (short of 512Mi memory), 1 NodeUnschedulable (cordoned)`"""
        if not len(nodes):
            return "0/0 nodes fit: there are no nodes"
        parts = []
        for plugin, refused in self.refusals:
            with _Blaming(plugin):
                why = plugin.why(ask, nodes, refused) if isinstance(plugin, FilterPlugin) else ""
            parts.append(f"{int(refused.sum())} {plugin.name}" + (f" ({why})" if why else ""))
        return f"{int(self.feasible.sum())}/{len(nodes)} nodes fit: {', '.join(parts)}"


def run_filters(profile: Profile, state: CycleState, ask: Ask, nodes: Snapshot) -> Verdict:
    """PreFilter and Filter in the profile's order; a node is asked about until the first no."""
    feasible = np.ones(len(nodes), dtype=np.bool_)
    blame = np.full(len(nodes), NOBODY, dtype=np.int16)
    skipped: set[Plugin] = set()
    for index, pre in enumerate(profile.pre_filters, start=len(profile.filters)):
        with _Blaming(pre):
            answer = pre.pre_filter(state, ask, nodes)
        if isinstance(answer, Skip):
            skipped.add(pre)
        elif answer is not None:
            named = np.zeros(len(nodes), dtype=np.bool_)
            named[[nodes.slots[name] for name in answer.nodes if name in nodes.slots]] = True
            blame[feasible & ~named] = index
            feasible &= named
    for index, plugin in enumerate(profile.filters):
        if plugin in skipped:
            continue
        with _Blaming(plugin):
            passed = plugin.filter(state, ask, nodes)
        _check_answer(plugin, passed, _BOOL, len(nodes))
        refused = feasible > passed
        if refused.any():
            blame[refused] = index
            feasible &= passed
            if not feasible.any():
                break
    return Verdict(feasible, blame, (*profile.filters, *profile.pre_filters))


def run_scores(
    profile: Profile, state: CycleState, ask: Ask, nodes: Snapshot, feasible: Mask, among: NDArray[np.intp]
) -> Scores:
    """PreScore, Score and Normalize: the weighted sum for the feasible nodes, in the order of `among`."""
    total = np.zeros(len(among), dtype=np.int64)
    skipped: set[Plugin] = set()
    for pre in profile.pre_scores:
        with _Blaming(pre):
            if pre.pre_score(state, ask, nodes, feasible) is SKIP:
                skipped.add(pre)
    for plugin, weight in profile.scores:
        if plugin in skipped:
            continue
        with _Blaming(plugin):
            raw = plugin.score(state, ask, nodes, feasible)
        _check_answer(plugin, raw, _INT, len(nodes))
        with _Blaming(plugin):
            scores = plugin.normalize(state, ask, raw[among])
        _check_answer(plugin, scores, _INT, len(among))
        if int(scores.min()) < 0 or int(scores.max()) > SCORE_MOST:
            raise PluginFault(plugin.name, f"gave scores from {scores.min()} to {scores.max()}; they are 0..100")
        total += weight * scores
    return total


class _Blaming:
    """What goes wrong inside is the plugin's fault, and is said so: a plugin may be anybody's code."""

    __slots__ = ("_plugin",)

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            raise PluginFault(self._plugin.name, f"raised {type(error).__name__}: {error}") from error


def _check_answer(plugin: Plugin, answer: object, dtype: np.dtype[np.generic], length: int) -> None:
    if not isinstance(answer, np.ndarray) or answer.shape != (length,) or answer.dtype != dtype:
        shown = f"{answer.dtype}{answer.shape}" if isinstance(answer, np.ndarray) else type(answer).__name__
        raise PluginFault(plugin.name, f"answered {shown}; expected {dtype}({length},)")
