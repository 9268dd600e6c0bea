"""The profiles that come with the package."""

from mandor.placement.framework.profile import Enabled, Profile
from mandor.placement.plugins.avoid import Avoid
from mandor.placement.plugins.engine_fit import EngineFit
from mandor.placement.plugins.node_affinity import NodeAffinity
from mandor.placement.plugins.node_ports import NodePorts
from mandor.placement.plugins.node_resources_fit import NodeResourcesFit
from mandor.placement.plugins.node_unschedulable import NodeUnschedulable
from mandor.placement.plugins.pool_fit import PoolFit
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.placement.plugins.taint_toleration import TaintToleration


def default_profile() -> Profile:
    """Kubernetes' order and weights for the plugins that exist there; cheap questions first."""
    return Profile(
        "default",
        (
            Enabled(PrioritySort()),
            Enabled(NodeUnschedulable()),
            Enabled(PoolFit()),
            Enabled(EngineFit()),
            Enabled(TaintToleration(), weight=3),
            Enabled(NodeAffinity(), weight=2),
            Enabled(NodePorts()),
            Enabled(NodeResourcesFit()),
            Enabled(Avoid()),
        ),
    )
