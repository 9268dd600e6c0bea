"""The public API for authors of scheduler plugins.

A plugin is a class that serves one or more extension points of the scheduling framework. Subclass the class of each
point (`FilterPlugin`, `ScorePlugin`, ...), set `name`, and define the method of the point:

    from mandor.plugin import CycleState, FilterPlugin, NodeView, PlacementRequest

    class OnlyMarked(FilterPlugin):
        name = "OnlyMarked"

        def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
            return "mark" in view.facts

A plugin receives the request (`PlacementRequest`) and a read-only view of all nodes (`Snapshot`, or `NodeView` for a
single one). A PostFilter also receives a `DryRun`, in which it can try changes. The `make_*` functions build nodes and
requests for tests; `decide` runs one scheduling cycle with a plugin. Other modules of mandor may change in any release.
"""

from collections.abc import Iterable, Mapping

from mandor.model.codec import from_plain
from mandor.model.group import GroupTemplate
from mandor.model.meta import Key, Meta
from mandor.model.node import Capabilities, Node, NodePhase, NodeSpec, NodeStatus, Taint
from mandor.model.resources import Resources
from mandor.placement.cycle import decide as _decide
from mandor.placement.decision import Decision
from mandor.placement.framework.column import Column, Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.dry_run import DryRun
from mandor.placement.framework.handle import Handle, Waiting
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.occupancy import PlacedInstance
from mandor.placement.framework.points import (
    ALL_EVENTS,
    CAPACITY_EVENTS,
    NODE_EVENTS,
    SCORE_MOST,
    SKIP,
    BindPlugin,
    ClusterChange,
    ClusterEvent,
    FilterPlugin,
    Hint,
    Nomination,
    Only,
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
    Skip,
    Wait,
    scaled,
    tally,
)
from mandor.placement.framework.profile import Enabled, Profile
from mandor.placement.framework.request import CPU, DISK, MEMORY, PlacementRequest, Shape
from mandor.placement.framework.snapshot import NodeView, Snapshot
from mandor.placement.plugins.default_binder import DefaultBinder
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.placement.table import Table

__all__ = [
    "ALL_EVENTS",
    "CAPACITY_EVENTS",
    "CPU",
    "DISK",
    "MEMORY",
    "NODE_EVENTS",
    "SCORE_MOST",
    "SKIP",
    "BindPlugin",
    "ClusterChange",
    "ClusterEvent",
    "Column",
    "CycleState",
    "Decision",
    "DryRun",
    "FilterPlugin",
    "Handle",
    "Hint",
    "Identity",
    "Key",
    "Mask",
    "Node",
    "NodeView",
    "Nomination",
    "Only",
    "PermitPlugin",
    "PlacedInstance",
    "PlacementRequest",
    "Plugin",
    "PostBindPlugin",
    "PostFilterPlugin",
    "PreBindPlugin",
    "PreEnqueuePlugin",
    "PreFilterPlugin",
    "PreScorePlugin",
    "QueueSortPlugin",
    "ReservePlugin",
    "ScorePlugin",
    "Scores",
    "Shape",
    "Skip",
    "Snapshot",
    "Wait",
    "Waiting",
    "decide",
    "make_node",
    "make_request",
    "make_snapshot",
    "scaled",
    "tally",
]

GIB = 1024**3


def make_node(
    name: str,
    *,
    cpu: float = 4,
    memory_bytes: int = 8 * GIB,
    disk_bytes: int = 100 * GIB,
    devices: Mapping[str, int] | None = None,
    labels: Mapping[str, str] | None = None,
    facts: Mapping[str, str] | None = None,
    pool: str = "default",
    taints: tuple[Taint, ...] = (),
    cordoned: bool = False,
) -> Node:
    """Return a ready node with the process engine, for a test. `cpu` is in cores."""
    return Node(
        meta=Meta(name=name, labels=dict(labels or {})),
        spec=NodeSpec(pool=pool, cordoned=cordoned, taints=taints),
        status=NodeStatus(
            phase=NodePhase.READY,
            capacity=Resources(int(cpu * 1000), memory_bytes, disk_bytes, dict(devices or {})),
            engines={"process": Capabilities(version="1")},
            facts=dict(facts or {}),
        ),
    )


def make_request(
    name: str = "web-0",
    *,
    namespace: str = "default",
    workload: str = "web",
    labels: Mapping[str, str] | None = None,
    priority: int = 0,
    cpu: float = 1,
    memory_bytes: int = GIB,
    group: Mapping[str, object] | None = None,
) -> PlacementRequest:
    """Return the request of an instance with one task, for a test. `cpu` is in cores.

    `group`: further fields of the group as in a manifest (`placement`, `ports`, `volumes`, ...).
    """
    task = {"command": ["run"], "resources": {"cpu": cpu, "memory": memory_bytes}}
    template = from_plain({"tasks": {"main": task}, **(group or {})}, GroupTemplate)
    identity = Identity(namespace, workload, "main", labels)
    return PlacementRequest(Key("instance", namespace, name), Shape.of(template), priority, identity=identity)


def make_snapshot(nodes: Iterable[Node], placed: Iterable[tuple[str, PlacementRequest]] = ()) -> Snapshot:
    """Return the read-only view of some nodes, for a test. `placed`: names of nodes with requests placed on them."""
    table = Table()
    for node in nodes:
        table.set_node(node)
    for name, request in placed:
        table.set_allocation(request.key, name, request.shape, request.identity)
    return table.snapshot()


def decide(plugin: Plugin, request: PlacementRequest, nodes: Iterable[Node] | Snapshot, *others: Plugin) -> Decision:
    """Run one scheduling cycle with a plugin and no others than those given, and return the decision.

    `Decision.node` is the chosen node, `message` the reason why no node fits, `fault` the name of a plugin that failed.
    """
    snapshot = nodes if isinstance(nodes, Snapshot) else make_snapshot(nodes)
    plugins = [plugin, *others]
    for point, default in ((QueueSortPlugin, PrioritySort), (BindPlugin, DefaultBinder)):
        if not any(isinstance(each, point) for each in plugins):
            plugins.append(default())
    return _decide(Profile("test", [Enabled(each) for each in plugins]), request, snapshot)
