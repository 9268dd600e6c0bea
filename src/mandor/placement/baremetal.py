"""The profile `baremetal`, which places claims for virtual machines: the fullest machine that has room is best."""

from mandor.lib.yaml12 import Map, load_all
from mandor.model.claim import BAREMETAL

# A hundredth of fullness outweighs the whole of the quota, which so decides between machines that are equally full:
# otherwise a machine is left with room for nothing, and fewer find one.
_TEXT = f"""
schedulerName: {BAREMETAL}
plugins:
  multiPoint:
    disabled: [{{name: "*"}}]
    enabled:
    - name: SchedulingGates
    - name: PrioritySort
    - name: NodeUnschedulable
    - name: NodeName
    - name: Quota
    - name: Reservation
    - name: PoolFit
    - name: ControlPlane
      weight: 1000
    - name: TaintToleration
      weight: 30
    - name: NodeAffinity
    - name: NodeResourcesFit
      weight: 101
    - name: VMQuota
    - name: DefaultBinder
pluginConfig:
- name: NodeResourcesFit
  args:
    scoringStrategy:
      type: MostAllocated
      resources:
      - {{name: cpu, weight: 1}}
      - {{name: memory, weight: 1}}
"""


def baremetal_source() -> Map:
    """As somebody would write it into a configuration; a profile of this name there replaces it."""
    found = load_all(_TEXT)[0].value
    assert isinstance(found, Map)
    return found
