"""A recording as a scenario: its machines as they came and went, its work as it was submitted, under any profile."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from mandor.errors import Invalid
from mandor.lib.quantity import Seconds
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import Node, NodeSpec
from mandor.model.volume import Volume
from mandor.model.workload import Workload
from mandor.placement.config import SchedulerConfig, read_config
from mandor.placement.plugin_source import Registry
from mandor.scheduler.reload import ConfigSource
from mandor.sim.recorded import Recorded, RecordedChange, read_recorded
from mandor.sim.recorded_nodes import BEGIN_SECONDS, node_line, node_outages, trimmed
from mandor.sim.run import LoadedScenario
from mandor.sim.scenario import Arrival, Ending, Limit, Scenario, Strategy, TimelineEntry
from mandor.sim.usage_rule import UsageRule

RECORDED = "as recorded"
SETTLE_SECONDS = 60.0
"""Seconds in which the first objects are placed, before the timeline starts."""
CHANGE_SHARE = 0.1
"""Share by which usage must change to be replayed."""
PHASES_MOST = 12


class TextSource(ConfigSource):
    """A scheduler configuration from a text."""

    def __init__(self, text: str, name: str, plugins: Path | None) -> None:
        super().__init__(None, plugins)
        self._text, self._name = text, name

    def _config(self, registry: Registry) -> SchedulerConfig:
        return read_config(self._text.encode(), registry, filename=self._name)


@dataclass(slots=True)
class _Moment:
    """Timeline entry under construction."""

    objects: list[Object] = field(default_factory=list)
    delete: list[str] = field(default_factory=list)
    down: list[str] = field(default_factory=list)
    up: list[str] = field(default_factory=list)
    partition: list[str] = field(default_factory=list)
    usage: dict[str, UsageRule] = field(default_factory=dict)
    limit: list[Limit] = field(default_factory=list)
    phase: str = ""


def load_replay(path: Path, profile: Path | None = None, plugins: Path | None = None) -> LoadedScenario:
    """Load a recording as a scenario with the recorded configuration and, if given, another one."""
    found = read_recorded(path)
    shift = SETTLE_SECONDS if any(isinstance(each, Workload) for each in found.first) else 0.0
    moments = _Timeline(found, shift).moments
    times = sorted(moments)
    sources: dict[str, ConfigSource] = {RECORDED: _recorded_source(found, plugins)}
    strategies = {RECORDED: Strategy()}
    if profile is not None:
        name = profile.name if profile.name != RECORDED else f"{profile.name} (new)"
        sources[name], strategies[name] = ConfigSource(profile, plugins), Strategy()
    for source in sources.values():
        source.read()  # A mistake in it is told before anything runs.
    scenario = Scenario(
        name=path.name,
        description=_description(found),
        nodes=tuple(node_line(each, found) for each in _node_names(found)),
        workloads=({"file": str(path)},),
        stored=True,
        usage=_first_usage(found),
        endings=_endings(found),
        suspect_after=Seconds(found.suspect_seconds),
        lost_after=Seconds(found.lost_seconds),
        arrival=Arrival(within=Seconds(SETTLE_SECONDS / 6)),
        strategies=strategies,
        timeline=tuple(_timeline_entry(at, moments[at]) for at in times),
        end=Seconds(round(shift + max(found.seconds, 1.0) + 1.0, 3)),
    )
    found.stays = [
        msgspec.structs.replace(each, begin=each.begin + shift, end=each.end + shift)
        for each in trimmed(found.stays, found)
    ]
    return LoadedScenario(
        scenario,
        path,
        _in_order(found),
        [moments[at].objects for at in times],
        recorded=found,
        sources=sources,
        again=partial(load_replay, path, profile, plugins),
    )


def _recorded_source(found: Recorded, plugins: Path | None) -> ConfigSource:
    return (
        TextSource(found.profiles, f"{found.path.name} (its profiles)", plugins)
        if found.profiles
        else ConfigSource(None, plugins)
    )


def _description(found: Recorded) -> str:
    return f"replay of {Seconds(round(found.seconds))} that were recorded"


def _node_names(found: Recorded) -> list[str]:
    seen = [each for each in found.first if isinstance(each, Node)]
    seen += [each.after for each in found.changes if isinstance(each.after, Node)]
    names = list(dict.fromkeys(each.meta.name for each in seen))
    if not names:
        raise Invalid("there is no node in this recording", file=str(found.path))
    return names


# Work.


def _in_order(found: Recorded) -> list[Object]:
    """Return the first objects in order of creation, nodes first."""
    named = _named_volumes(found)
    kept = [made for each in found.first if (made := _bound(each) or _replayed(each, named)) is not None]
    return sorted(kept, key=lambda each: (not isinstance(each, Node), each.meta.created_at, each.meta.name))


def _bound(value: Object) -> Object | None:
    """Return a volume that has its data on a node, as it is; None for any other object."""
    return value if isinstance(value, Volume) and value.status.node else None


def _replayed(value: Object, volumes: Collection[str]) -> Object | None:
    """Return the object to submit; None: controllers create it."""
    meta = Meta(
        name=value.meta.name,
        namespace=value.meta.namespace,
        labels=value.meta.labels,
        created_at=value.meta.created_at,
    )
    if isinstance(value, Workload):
        if value.spec.schedule is not None:
            return None  # Its runs are recorded, each at its time.
        groups = value.spec.groups
        if not value.spec.per_node:
            groups = {
                name: msgspec.structs.replace(group, autoscale=None, replicas=group.count)
                for name, group in groups.items()
            }
        return Workload(meta=meta, spec=msgspec.structs.replace(value.spec, run_of="", groups=groups))
    if isinstance(value, Node):
        return Node(meta=meta, spec=value.spec) if value.spec != NodeSpec() else None
    if isinstance(value, Volume) and value.meta.name not in volumes:
        return None
    return type(value)(meta=meta, spec=value.spec)  # type: ignore[call-arg]


def _endings(found: Recorded) -> dict[str, tuple[Ending, ...]]:
    """Return the ends of batch instances by start; instances without a recorded end use the median."""
    batches = {
        each.meta.name
        for each in (*found.first, *(change.after for change in found.changes))
        if isinstance(each, Workload) and each.spec.type == "batch"
    }
    ends: dict[str, list[Ending]] = {}
    good: dict[str, list[float]] = {}
    for each in found.finishes:
        if each.workload not in batches:
            continue
        ends.setdefault(each.instance, []).append(
            Ending(after=Seconds(round(each.seconds, 3)), exit_code=each.exit_code)
        )
        if each.exit_code == 0:
            good.setdefault(each.workload, []).append(each.seconds)
    usual = {name: (Ending(after=Seconds(round(sorted(all_)[len(all_) // 2], 3))),) for name, all_ in good.items()}
    return usual | {name: tuple(all_) for name, all_ in ends.items()}


# Usage.


def _usage_rule(cpu_milli: int, memory_bytes: int) -> UsageRule:
    return UsageRule(cpu=f"{cpu_milli}m", memory=str(memory_bytes))


def _first_usage(found: Recorded) -> dict[str, UsageRule]:
    """Return the first recorded usage of each workload."""
    usage: dict[str, UsageRule] = {}
    for _, workloads in found.used:
        for name, amounts in workloads.items():
            usage.setdefault(_bare(name), _usage_rule(*amounts))
    return usage


def _usage_moments(found: Recorded) -> Iterable[tuple[float, dict[str, UsageRule]]]:
    told: dict[str, tuple[int, int]] = {}
    for at, workloads in found.used:
        news = {name: now for name, now in workloads.items() if name not in told or _differs(told[name], now)}
        fresh = {_bare(name): _usage_rule(*now) for name, now in news.items() if name in told}
        told |= news
        if fresh:
            yield at, fresh


def _differs(before: tuple[int, int], now: tuple[int, int]) -> bool:
    return any(abs(a - b) > CHANGE_SHARE * max(a, b) for a, b in zip(before, now, strict=True))


def _bare(name: str) -> str:
    return name.rpartition("/")[2]


# The timeline.


class _Timeline:
    def __init__(self, found: Recorded, shift: float) -> None:
        self.moments: dict[float, _Moment] = {}
        self._shift = shift
        self._named = _named_volumes(found)
        self._restarts: dict[Key, int] = {}
        """Number of roll-outs by workload whose cause the recording omits."""
        for change in found.changes:
            self._apply_change(change)
        self._machines(found)
        for time, usage in _usage_moments(found):
            self._at(time).usage |= usage

    def _at(self, time: float) -> _Moment:
        return self.moments.setdefault(round(time + self._shift, 3), _Moment())

    def _apply_change(self, change: RecordedChange) -> None:
        before, after = change.before, change.after
        if after is None:
            if before is not None and _replayed(before, self._named) is not None and not isinstance(before, Node):
                path = f"{before.meta.namespace}/{before.meta.name}".lstrip("/")
                kind = "" if isinstance(before, Workload) else f"{before.kind} "
                self._at(change.at).delete.append(kind + path)
            return
        made = _replayed(after, self._named)
        if isinstance(after, Node):
            known = isinstance(before, Node) and (before.spec, before.meta.labels) != (after.spec, after.meta.labels)
            made = Node(meta=Meta(name=after.meta.name, labels=after.meta.labels), spec=after.spec) if known else None
        if isinstance(made, Workload):
            self._restarts[made.key] = self._restarts.get(made.key, 0) + change.hidden
            restarted = made.spec.restarted + self._restarts[made.key]
            made = made.changed(spec=msgspec.structs.replace(made.spec, restarted=restarted))
        if made is not None:
            self._at(change.at).objects.append(made)

    def _machines(self, found: Recorded) -> None:
        phases = 0
        for each in sorted(node_outages(found), key=lambda each: each.at):
            moment = self._at(each.at)
            getattr(moment, each.kind).append(each.what)
            if each.phase and not moment.phase and phases < PHASES_MOST and each.at > BEGIN_SECONDS:
                phases += 1
                moment.phase = f"{phases}. {each.phase}"


def _named_volumes(found: Recorded) -> frozenset[str]:
    """Return the volumes that users created; others are created with their instances."""
    workloads = [
        each for each in (*found.first, *(change.after for change in found.changes)) if isinstance(each, Workload)
    ]
    groups = [group for each in workloads for group in each.spec.groups.values()]
    return frozenset(each.volume for group in groups for each in group.volumes.values() if each.volume is not None)


def _timeline_entry(at: float, moment: _Moment) -> TimelineEntry:
    return TimelineEntry(
        at=Seconds(at),
        phase=moment.phase,
        delete=tuple(moment.delete),
        down=tuple(moment.down),
        up=tuple(moment.up),
        partition=tuple(moment.partition),
        usage=moment.usage,
        limit=tuple(moment.limit),
    )
