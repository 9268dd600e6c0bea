"""Runs the PreFilter, Filter, PreScore and Score plugins of a profile and records which plugin refused which node."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import (
    SCORE_MOST,
    SKIP,
    FilterPlugin,
    Only,
    Plugin,
    PreFilterPlugin,
    PreScorePlugin,
    ScorePlugin,
    filter_each,
)
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Overrun, Unwatched, Watch

_BOOL = np.dtype(np.bool_)
_INT = np.dtype(np.int64)


class PluginFault(Exception):
    """A plugin raised or returned an invalid result. The attempt fails; the scheduler goes on."""

    def __init__(self, plugin: str, problem: str) -> None:
        super().__init__(f"the plugin {plugin} {problem}")
        self.plugin = plugin


@dataclass(frozen=True)
class Verdict:
    """The nodes that fit, and for each other node the first plugin that refused it."""

    feasible: Mask
    answers: tuple[tuple[Plugin, Mask], ...]
    """Masks of the plugins in the order of the calls; `refusals` is computed only when it is needed."""

    @cached_property
    def refusals(self) -> Sequence[tuple[Plugin, Mask]]:
        """Plugins with the nodes that they were the first to refuse; the plugin with most nodes first."""
        left = np.ones(len(self.feasible), dtype=np.bool_)
        found = []
        for plugin, passed in self.answers:
            refused = left & ~passed
            if np.count_nonzero(refused):
                found.append((plugin, refused))
                left &= passed
        return sorted(found, key=lambda item: -int(item[1].sum()))

    def explain(self, request: PlacementRequest, nodes: Snapshot) -> str:
        """Return a message: `0/3 nodes fit: 2 NodeResourcesFit (short of 512Mi memory), 1 NodeUnschedulable (1
        cordoned)`."""
        if not len(nodes):
            return "0/0 nodes fit: there are no nodes"
        parts = []
        for plugin, refused in self.refusals:
            why = why_of(plugin, request, nodes, refused)
            parts.append(f"{int(refused.sum())} {plugin.name}" + (f" ({why})" if why else ""))
        return f"{int(self.feasible.sum())}/{len(nodes)} nodes fit: {', '.join(parts)}"


def why_of(plugin: Plugin, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
    """Return the explanation of a plugin for the nodes that it refused."""
    with blamed(plugin):
        return plugin.why(request, nodes, refused) if isinstance(plugin, FilterPlugin) else ""


class Scored(NamedTuple):
    """Scores of one plugin for the feasible nodes."""

    plugin: Plugin
    weight: int
    raw: Scores
    scores: Scores
    """Normalized scores, 0..100."""


class NodePlugins(Protocol):
    """The plugins that filter and score nodes: of a profile, or some of them."""

    @property
    def pre_filters(self) -> Sequence[PreFilterPlugin]: ...
    @property
    def filters(self) -> Sequence[FilterPlugin]: ...
    @property
    def one_by_one(self) -> frozenset[int]: ...
    @property
    def pre_scores(self) -> Sequence[PreScorePlugin]: ...
    @property
    def scores(self) -> Sequence[tuple[ScorePlugin, int]]: ...


def run_filters(
    plugins: NodePlugins,
    state: CycleState,
    request: PlacementRequest,
    nodes: Snapshot,
    watch: Watch | None = None,
    left: Mask | None = None,
) -> Verdict:
    """Run PreFilter and Filter in the order of the profile, until no node is left.

    `left`: the nodes to consider, if not all.
    """
    watch = watch or Unwatched()
    length = len(nodes)
    feasible = np.ones(length, dtype=np.bool_) if left is None else left
    answers: list[tuple[Plugin, Mask]] = []
    skipped: set[int] = set()
    current: Plugin | None = None
    try:
        for current in plugins.pre_filters:
            watch.begin(current.name, "PreFilter")
            answer = current.pre_filter(state, request, nodes)
            if answer is SKIP:
                skipped.add(id(current))
            elif isinstance(answer, Only):
                named = named_in(answer, nodes)
                answers.append((current, named))
                feasible &= named
            elif answer is not None:
                raise PluginFault(current.name, f"returned {answer!r}; a PreFilter returns None, SKIP or Only(…)")
        for current in plugins.filters:
            if id(current) in skipped:
                continue
            watch.begin(current.name, "Filter")
            if id(current) in plugins.one_by_one:
                passed = filter_each(current, state, request, nodes, feasible)
            else:
                passed = current.filter(state, request, nodes)
            check_mask(current, passed, length)
            answers.append((current, passed))
            feasible &= passed
            if not np.count_nonzero(feasible):
                break
    except PluginFault:
        raise
    except Exception as error:  # third-party code can raise anything
        raise PluginFault(current.name if current else "", _raised(error)) from error
    return Verdict(feasible, tuple(answers))


def run_scores(
    plugins: NodePlugins,
    state: CycleState,
    request: PlacementRequest,
    nodes: Snapshot,
    feasible: Mask,
    among: NDArray[np.intp],
    watch: Watch | None = None,
    parts: list[Scored] | None = None,
) -> Scores:
    """Run PreScore, Score and `normalize`; return the weighted sums of the feasible nodes, in the order of `among`.

    `parts`: the scores of each plugin are added to this list.
    """
    watch = watch or Unwatched()
    total = np.zeros(len(among), dtype=np.int64)
    skipped: set[int] = set()
    current: Plugin | None = None
    feasible.flags.writeable = False  # other plugins read the same array
    try:
        for current in plugins.pre_scores:
            watch.begin(current.name, "PreScore")
            answer = current.pre_score(state, request, nodes, feasible)
            if answer is SKIP:
                skipped.add(id(current))
            elif answer is not None:
                raise PluginFault(current.name, f"returned {answer!r}; a PreScore returns None or SKIP")
        for current, weight in plugins.scores:
            if id(current) in skipped:
                continue
            watch.begin(current.name, "Score")
            raw = current.score(state, request, nodes, feasible)
            check_numbers(current, raw, len(feasible))
            scores = current.normalize(state, request, raw.take(among))
            check_scores(current, scores, len(among))
            total += weight * scores
            if parts is not None:
                parts.append(Scored(current, weight, raw[among], scores))
    except PluginFault:
        raise
    except Exception as error:
        raise PluginFault(current.name if current else "", _raised(error)) from error
    return total


class blamed:  # noqa: N801 - read as `with blamed(plugin)`; a class, because a generator is too slow
    """Raise exceptions of the block as a `PluginFault` of this plugin."""

    __slots__ = ("_plugin",)

    def __init__(self, plugin: Plugin) -> None:
        self._plugin = plugin

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Overrun):
            raise PluginFault(self._plugin.name, "exceeded its time limit and was interrupted") from None
        if isinstance(error, Exception) and not isinstance(error, PluginFault):
            raise PluginFault(self._plugin.name, _raised(error)) from error


def named_in(only: Only, nodes: Snapshot) -> Mask:
    mask = np.zeros(len(nodes), dtype=np.bool_)
    mask[[nodes.slots[name] for name in only.nodes if name in nodes.slots]] = True
    return mask


def check_mask(plugin: Plugin, answer: object, length: int) -> None:
    _check_answer(plugin, answer, _BOOL, length)


def check_numbers(plugin: Plugin, answer: object, length: int) -> None:
    _check_answer(plugin, answer, _INT, length)


def check_scores(plugin: Plugin, scores: Scores, length: int) -> None:
    check_numbers(plugin, scores, length)
    if np.count_nonzero(scores.view(np.uint64) > SCORE_MOST):  # as an unsigned number, a negative score is a huge one
        raise PluginFault(plugin.name, f"returned scores from {scores.min()} to {scores.max()}; scores are 0..100")


def _check_answer(plugin: Plugin, answer: object, dtype: np.dtype[np.generic], length: int) -> None:
    if not isinstance(answer, np.ndarray) or answer.dtype is not dtype or answer.shape != (length,):
        shown = f"{answer.dtype}{answer.shape}" if isinstance(answer, np.ndarray) else type(answer).__name__
        raise PluginFault(plugin.name, f"returned {shown}; expected {dtype}({length},)")


def _raised(error: Exception) -> str:
    return f"raised {type(error).__name__}: {error}"
