"""The built-in plugins, and those that are enabled by default."""

from mandor.placement.framework.points import Plugin
from mandor.placement.plugins.avoid import Avoid
from mandor.placement.plugins.best_fit import BestFit
from mandor.placement.plugins.bin_pack import BinPack
from mandor.placement.plugins.control_plane import ControlPlane
from mandor.placement.plugins.default_binder import DefaultBinder
from mandor.placement.plugins.default_preemption import DefaultPreemption
from mandor.placement.plugins.engine_fit import EngineFit
from mandor.placement.plugins.fragmentation import Fragmentation
from mandor.placement.plugins.gang import Gang
from mandor.placement.plugins.image_locality import ImageLocality
from mandor.placement.plugins.instance_limit import InstanceLimit
from mandor.placement.plugins.inter_pod_affinity import InterPodAffinity
from mandor.placement.plugins.load_aware import LoadAware
from mandor.placement.plugins.node_affinity import NodeAffinity
from mandor.placement.plugins.node_name import NodeName
from mandor.placement.plugins.node_ports import NodePorts
from mandor.placement.plugins.node_resources_balanced_allocation import NodeResourcesBalancedAllocation
from mandor.placement.plugins.node_resources_fit import NodeResourcesFit
from mandor.placement.plugins.node_unschedulable import NodeUnschedulable
from mandor.placement.plugins.pod_topology_spread import PodTopologySpread
from mandor.placement.plugins.pool_fit import PoolFit
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.placement.plugins.proximity import Proximity
from mandor.placement.plugins.quota import Quota
from mandor.placement.plugins.reservation import Reservation
from mandor.placement.plugins.round_robin import RoundRobin
from mandor.placement.plugins.scheduling_gates import SchedulingGates
from mandor.placement.plugins.taint_toleration import TaintToleration
from mandor.placement.plugins.vm_quota import VMQuota
from mandor.placement.plugins.volume_binding import VolumeBinding

DEFAULTS: tuple[tuple[type[Plugin], int], ...] = (
    (SchedulingGates, 1),
    (PrioritySort, 1),
    (NodeUnschedulable, 1),
    (NodeName, 1),
    (Quota, 1),
    (Reservation, 10),
    (PoolFit, 1),
    (EngineFit, 1),
    (TaintToleration, 3),
    (NodeAffinity, 2),
    (NodePorts, 1),
    (NodeResourcesFit, 1),
    (InstanceLimit, 1),
    (VolumeBinding, 1),
    (PodTopologySpread, 2),
    (InterPodAffinity, 2),
    (NodeResourcesBalancedAllocation, 1),
    (ImageLocality, 1),
    (Avoid, 1),
    (DefaultPreemption, 1),
    (Gang, 1),
    (DefaultBinder, 1),
)
"""Default plugins with their weights, in Kubernetes' order where they exist there; cheap ones first."""

OPTIONAL: tuple[type[Plugin], ...] = (
    BestFit,
    BinPack,
    ControlPlane,
    Fragmentation,
    LoadAware,
    Proximity,
    RoundRobin,
    VMQuota,
)
"""Built-in plugins that are not enabled by default."""

BUILT_IN: dict[str, type[Plugin]] = {each.name: each for each in (*(cls for cls, _ in DEFAULTS), *OPTIONAL)}
