"""The plugins that come with the package, and those of them that are on unless a profile says otherwise."""

from mandor.placement.framework.points import Plugin
from mandor.placement.plugins.avoid import Avoid
from mandor.placement.plugins.default_binder import DefaultBinder
from mandor.placement.plugins.engine_fit import EngineFit
from mandor.placement.plugins.node_affinity import NodeAffinity
from mandor.placement.plugins.node_ports import NodePorts
from mandor.placement.plugins.node_resources_fit import NodeResourcesFit
from mandor.placement.plugins.node_unschedulable import NodeUnschedulable
from mandor.placement.plugins.pool_fit import PoolFit
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.placement.plugins.scheduling_gates import SchedulingGates
from mandor.placement.plugins.taint_toleration import TaintToleration

DEFAULTS: tuple[tuple[type[Plugin], int], ...] = (
    (SchedulingGates, 1),
    (PrioritySort, 1),
    (NodeUnschedulable, 1),
    (PoolFit, 1),
    (EngineFit, 1),
    (TaintToleration, 3),
    (NodeAffinity, 2),
    (NodePorts, 1),
    (NodeResourcesFit, 1),
    (Avoid, 1),
    (DefaultBinder, 1),
)
"""With their weights, in Kubernetes' order for the plugins that exist there; cheap questions first."""

OPTIONAL: tuple[type[Plugin], ...] = ()
"""A profile may enable them."""

BUILT_IN: dict[str, type[Plugin]] = {each.name: each for each in (*(cls for cls, _ in DEFAULTS), *OPTIONAL)}
