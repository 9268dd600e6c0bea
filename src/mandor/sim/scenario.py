"""Scenarios: the nodes, the work, what happens when, the strategies to compare, and what is expected of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.errors import Invalid
from mandor.lib.quantity import Cpu, Seconds, Size
from mandor.lib.words import did_you_mean
from mandor.lib.yaml12 import List, Malformed, Map, load_all
from mandor.model.codec import KINDS
from mandor.model.meta import InvalidField, check_labels, check_name
from mandor.model.node import Taint
from mandor.model.placement import Strength
from mandor.model.reading import FAILED, Mistake, Reader
from mandor.model.resources import Resources
from mandor.model.volume import HOST_PATHS, may_be_allowed
from mandor.sim.disturbance import Jump, Messages, Part
from mandor.sim.expectation import Expectation
from mandor.sim.usage_rule import USUAL, UsageRule

NODES_MOST = 5000
SEEDS_MOST = 10_000
END_MOST = 365 * 86_400


class Amounts(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    cpu: Cpu = Cpu(0)
    memory: Size = Size(0)
    disk: Size = Size(0)

    @property
    def resources(self) -> Resources:
        return Resources(int(self.cpu), int(self.memory), int(self.disk))


class NodeLine(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One node, or `count` nodes; `{n}` in the name is replaced by their number, which else is appended."""

    name: str
    count: Annotated[int, Bounds(ge=1, le=NODES_MOST)] = 1
    cpu: Cpu = Cpu(4000)
    memory: Size = Size(8 << 30)
    disk: Size = Size(100 << 30)
    overhead: Amounts = Amounts()
    """Usage of the kernel, its caches and the engine."""
    reserved: Amounts = Amounts()
    """Resources that are not allocatable to instances."""
    labels: dict[str, str] = {}
    facts: dict[str, str] = {}
    pool: str = "default"
    taints: tuple[Taint, ...] = ()
    engines: tuple[str, ...] = ()
    """Engines of the node; absent: those that the workloads need."""
    host_paths: tuple[str, ...] | None = None
    """Host paths that tasks may use; absent: those that the workloads name."""
    devices: dict[str, Annotated[int, Bounds(ge=0)]] = {}
    """Number of devices by kind, such as `gpu: 4`."""
    off: bool = False
    """The node has no power until the timeline sets `up`."""

    def __post_init__(self) -> None:
        for name in self.names:
            check_name(name, "node name")
        check_labels(self.labels)
        if HOST_PATHS in self.facts:
            raise ValueError(f"`host_paths` says which folders may be used, not the fact `{HOST_PATHS}`")
        for path in self.host_paths or ():
            if not may_be_allowed(path):
                raise ValueError(f"{path!r} is not an absolute path")

    @property
    def names(self) -> list[str]:
        if self.count == 1 and "{n}" not in self.name:
            return [self.name]
        pattern = self.name if "{n}" in self.name else self.name + "-{n}"
        return [pattern.replace("{n}", str(number)) for number in range(self.count)]


class Traffic(
    Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True, rename={"source": "from"}
):
    """Network traffic between two workloads."""

    source: str
    to: str
    weight: Annotated[float, Bounds(gt=0)] = 1.0


class Strategy(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Changes to the manifests and the control plane, to compare."""

    strength: Strength | None = None
    """Strength of every placement rule of every workload."""
    strengths: dict[str, Strength] = {}
    """Strength of every placement rule, by workload."""
    priorities: dict[str, int | str] = {}
    """Priority by workload: a number or a class."""
    profile: str = ""
    """A scheduler configuration file; absent: the built-in configuration."""
    restore: bool = True
    """Whether instances move back when a relaxed rule can be kept again."""


class Spike(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Temporary usage of each instance of a workload: `300%` of its request, or an amount."""

    workload: str
    cpu: str | None = None
    memory: str | None = None
    disk: str | None = None
    duration: Seconds = field(default=Seconds(600), name="for")

    def over(self, usual: UsageRule) -> UsageRule:
        wants = {"cpu": self.cpu, "memory": self.memory, "disk": self.disk}
        return msgspec.structs.replace(usual, **{key: each for key, each in wants.items() if each is not None})

    def __post_init__(self) -> None:
        self.over(USUAL)


class Pressure(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Usage of other programs on a node."""

    node: str
    memory: Size = Size(0)
    disk: Size = Size(0)
    cpu: Cpu = Cpu(0)
    duration: Seconds = field(default=Seconds(600), name="for")


class Ending(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """End of a program without an order to stop."""

    after: Seconds
    exit_code: int = 0


class Slow(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Slow starts and stops on a node, until the timeline sets `up`."""

    node: str
    times: Annotated[float, Bounds(ge=1, le=1000)] = 10.0
    """Factor for the time that starts and stops take."""


class Scale(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Changes the number of instances of a workload."""

    workload: str
    replicas: Annotated[int, Bounds(ge=0, le=100_000)]


class Limit(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Changes the capacity of a node; absent keys stay as they are."""

    node: str
    cpu: Cpu | None = None
    memory: Size | None = None
    disk: Size | None = None


class Rollout(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Starts a roll-out of a workload, by its update rules."""

    workload: str
    image: str | None = None
    """The new image; absent: all instances are restarted."""


NODE_KEYS = (
    *("down", "up", "partition", "mute", "deaf", "engine_down", "restart_agent"),
    *("cordon", "uncordon", "drain"),
)


class TimelineEntry(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Actions at one time. `phase` starts a new phase of the report."""

    at: Seconds
    phase: str = ""
    submit: tuple[dict[str, Any], ...] = ()
    """Manifests, or `file:` with the path of a file or folder of manifests."""
    delete: tuple[str, ...] = ()
    """Objects to delete: `NAME` or `NAMESPACE/NAME` of a workload, `KIND NAME` or `KIND NAMESPACE/NAME` of another."""
    down: tuple[str, ...] = ()
    """Nodes that lose power."""
    up: tuple[str, ...] = ()
    """Nodes that get power again; their connection, engines and speed are repaired."""
    partition: tuple[str, ...] = ()
    """Nodes that are cut off; their instances keep running."""
    mute: tuple[str, ...] = ()
    """Nodes whose messages do not arrive, but that still receive."""
    deaf: tuple[str, ...] = ()
    """Nodes whose messages arrive, but that receive nothing."""
    engine_down: tuple[str, ...] = ()
    """Nodes whose engines do not answer; their instances keep running."""
    restart_agent: tuple[str, ...] = ()
    """Nodes whose agent is restarted; their instances keep running."""
    restart: tuple[Part, ...] = ()
    """Parts of the control plane that are killed and started again."""
    messages: tuple[Messages, ...] = ()
    clock: tuple[Jump, ...] = ()
    crash: tuple[str, ...] = ()
    """Workloads of which one instance is killed."""
    slow: tuple[Slow, ...] = ()
    pressure: tuple[Pressure, ...] = ()
    spike: tuple[Spike, ...] = ()
    usage: dict[str, UsageRule] = {}
    """Usage of instances from this time on, by workload."""
    limit: tuple[Limit, ...] = ()
    scale: tuple[Scale, ...] = ()
    rollout: tuple[Rollout, ...] = ()
    cordon: tuple[str, ...] = ()
    """Nodes on which no new instance is placed."""
    uncordon: tuple[str, ...] = ()
    """Nodes that accept instances again; a drain is cancelled, too."""
    drain: tuple[str, ...] = ()
    """Nodes whose instances move away, and on which no new instance is placed."""

    def __post_init__(self) -> None:
        for text in self.delete:
            kind = text.rpartition(" ")[0]
            if kind and kind not in KINDS:
                raise ValueError(f"`delete: {text}`: there is no kind {kind!r}; {did_you_mean(kind, KINDS)}")

    @property
    def nodes(self) -> Iterator[tuple[str, str]]:
        """Yield the key and name of each node that the entry names."""
        for key in NODE_KEYS:
            yield from ((key, name) for name in getattr(self, key))
        for key in ("slow", "pressure", "limit", "messages", "clock"):
            yield from ((key, each.node) for each in getattr(self, key) if each.node)

    @property
    def workloads(self) -> Iterator[tuple[str, str]]:
        yield from (("delete", name) for name in self.delete if " " not in name)
        for key in ("crash", "usage"):
            yield from ((key, name) for name in getattr(self, key))
        for key in ("spike", "scale", "rollout"):
            yield from ((key, each.workload) for each in getattr(self, key))


class Arrival(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Order and time in which workloads arrive at the start."""

    shuffle: bool = True
    """Whether workloads arrive in random order; seed 0 keeps the order of the file."""
    within: Seconds = Seconds(60)


class Scenario(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    name: str
    description: str = ""
    seeds: Annotated[int, Bounds(ge=1, le=SEEDS_MOST)] = 1
    """Runs of each strategy, unless `--seeds` is given."""
    nodes: tuple[NodeLine, ...]
    workloads: tuple[dict[str, Any], ...]
    """Manifests, or `file:` with the path of a file or folder of manifests."""
    stored: bool = False
    """Whether the manifests are objects of a server, which has admitted and completed them; they are stored as they
    are."""
    usage: dict[str, UsageRule] = {}
    """Usage of instances by workload; `default` applies to the others."""
    endings: dict[str, tuple[Ending, ...]] = {}
    """Ends of programs by workload or instance, one entry per start; the last entry applies to all later starts. Other
    programs run until they are stopped."""
    suspect_after: Seconds = Seconds(20)
    """Time without heartbeats after which no new instance is placed on a node."""
    lost_after: Seconds = Seconds(60)
    """Time without heartbeats after which the instances of a node are replaced."""
    arrival: Arrival = Arrival()
    traffic: tuple[Traffic, ...] = ()
    strategies: dict[str, Strategy] = {}
    timeline: tuple[TimelineEntry, ...] = ()
    end: Seconds
    expect: tuple[Expectation, ...] = ()

    def __post_init__(self) -> None:
        if not self.nodes:
            raise InvalidField("a scenario has at least one node", "nodes")
        if not self.workloads and not any(each.submit for each in self.timeline):
            raise InvalidField("the scenario has no workloads", "workloads", hint="list manifests, or `- file: FILE`")
        if not 0 < self.end <= END_MOST:
            raise InvalidField(f"`end` is {self.end}", "end", hint="more than 0s, at most 365d")
        self._check_nodes()
        self._check_timeline()
        self._check_expectations()

    @property
    def node_names(self) -> list[str]:
        return [name for line in self.nodes for name in line.names]

    @property
    def phases(self) -> list[tuple[str, float, float]]:
        """Return name, start and end of each phase; the first one always exists."""
        begins = [(each.phase, float(each.at)) for each in sorted(self.timeline, key=_at) if each.phase]
        if not begins or begins[0][1] > 0:
            begins.insert(0, ("start", 0.0))
        ends = [at for _, at in begins[1:]] + [float(self.end)]
        return [(name, begin, end) for (name, begin), end in zip(begins, ends, strict=True)]

    @property
    def plans(self) -> dict[str, Strategy]:
        return self.strategies or {"as written": Strategy()}

    def _check_nodes(self) -> None:
        names = self.node_names
        if len(names) > NODES_MOST:
            raise InvalidField(f"{len(names)} nodes; at most {NODES_MOST} are possible", "nodes")
        for number, line in enumerate(self.nodes):
            if any(names.count(name) > 1 for name in line.names):
                raise InvalidField(f"two nodes are called {line.names[0]}", "nodes", str(number), "name")

    def _check_timeline(self) -> None:
        known = self.node_names
        last = 0.0
        for number, each in enumerate(self.timeline):
            here = ("timeline", str(number))
            if each.at < last:
                raise InvalidField(
                    f"{each.at} comes after {Seconds(last)} in the list", *here, "at", hint="in order of time"
                )
            last = each.at
            if each.at >= self.end:
                raise InvalidField(f"{each.at} is not before the end, {self.end}", *here, "at")
            for key, node in each.nodes:
                if node not in known:
                    raise InvalidField(f"there is no node {node!r}", *here, key, hint=did_you_mean(node, known))
        names = [name for name, _, _ in self.phases]
        for name in names:
            if names.count(name) > 1:
                raise InvalidField(f"two phases are called {name!r}", "timeline")

    def _check_expectations(self) -> None:
        phases = [name for name, _, _ in self.phases]
        for number, each in enumerate(self.expect):
            for key, given, known in (
                ("phase", each.phase, phases),
                ("strategy", each.strategy, list(self.plans)),
                ("nodes", each.nodes, self.node_names),
                ("empty", each.empty, self.node_names),
            ):
                for name in given:
                    if name not in known:
                        raise InvalidField(
                            f"there is no {NOUNS.get(key, key)} {name!r}",
                            *("expect", str(number), key),
                            hint=did_you_mean(name, known),
                        )


def _at(entry: TimelineEntry) -> float:
    return entry.at


LISTS = frozenset(TimelineEntry.__struct_fields__) - {"at", "phase", "usage"}
"""Keys of the timeline under which one thing need not be a list."""
WORDS = frozenset({"phase", "strategy", "nodes", "running", "any_running", "apart", "empty", "evicted"})
NOUNS = {"nodes": "node", "empty": "node"}


def read_scenario(text: str | bytes, filename: str) -> tuple[Scenario, Map]:
    """The scenario, and its source with lines; `Invalid` tells every mistake with its line."""
    try:
        documents = load_all(text)
    except Malformed as error:
        raise _invalid([Mistake(error.line, "", error.message, error.hint)], filename) from None
    if len(documents) != 1 or not isinstance(documents[0].value, Map):
        raise _invalid([Mistake(1, "", "a scenario is one mapping", "it begins with `name:`")], filename)
    source = documents[0].value
    _listed(source.get("timeline"), LISTS)
    _listed(source.get("expect"), WORDS)
    reader = Reader()
    found = reader.read(source, Scenario, "", documents[0].line)
    if found is FAILED or reader.mistakes:
        raise _invalid(sorted(reader.mistakes, key=lambda each: each.line), filename)
    assert isinstance(found, Scenario)
    return found, source


def _listed(items: Any, keys: frozenset[str]) -> None:
    """One need not be a list."""
    for each in items if isinstance(items, list) else ():
        for key in keys & each.keys() if isinstance(each, Map) else ():
            if not isinstance(each[key], list) and each[key] is not None:
                made = List(each.lines.get(key, each.line))
                made.add(each[key], made.line, each.texts.get(key))
                each[key] = made


def _invalid(mistakes: list[Mistake], filename: str) -> Invalid:
    first = mistakes[0]
    errors = [
        {"file": filename, "line": each.line, "path": each.path, "message": each.message, "hint": each.hint}
        for each in mistakes
    ]
    return Invalid(first.message, hint=first.hint, file=filename, line=first.line, path=first.path, errors=errors)


def read_file(path: Path) -> tuple[Scenario, Map]:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise Invalid(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
    return read_scenario(text, str(path))
