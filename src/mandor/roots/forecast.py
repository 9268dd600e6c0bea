"""Wires forecasts of the API: the scheduler's configuration, its watchdog, the controllers' plans."""

from collections.abc import Callable, Sequence, Set

from mandor.api.scheduling import Inquire, Scheduling
from mandor.controllers.replicas import ClusterView
from mandor.controllers.workload_plan import WorkloadInputs, plan
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.workload import Release, Workload
from mandor.placement.daemon_nodes import DaemonNodes
from mandor.scheduler.last_config import LastConfig
from mandor.scheduler.reload import ConfigSource
from mandor.scheduler.watchdog import Watchdog
from mandor.store.base import Put


def make_scheduling(source: ConfigSource, inquire: Inquire) -> Scheduling:
    return Scheduling(read=LastConfig(source).read, controls=controls, guard=Watchdog, inquire=inquire)


def controls(
    workload: Workload | None,
    releases: Sequence[Release],
    instances: Sequence[Instance],
    *,
    now: float,
    ready_nodes: Set[str],
    taken: Callable[[str], bool],
    site: Callable[[Release, str], DaemonNodes],
) -> Sequence[Object | Key]:
    world = ClusterView(now=now, ready_nodes=ready_nodes, taken=taken, site=site, rehearsed=True)
    draft = plan(WorkloadInputs(workload, releases, instances), world)
    return [each.value if isinstance(each, Put) else each.key for each in (*draft.writes, *draft.rest)]
