"""The profile `baremetal`, which places claims for virtual machines: the fullest machine that has room is best."""

from mandor.lib.yaml12 import Map, load_all
from mandor.model.claim import CLAIM_PROFILE

# A best-fit as one writes it down: of the machines with room the fullest, of several the first.
_TEXT = f"""
schedulerName: {CLAIM_PROFILE}
ties: first
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
    - name: VMQuota
    - name: BestFit
      weight: 100
    - name: DefaultBinder
  score:
    disabled: [{{name: NodeResourcesFit}}, {{name: VMQuota}}]
"""


def claim_profile_source() -> Map:
    """As somebody would write it into a configuration; a profile of this name there replaces it."""
    found = load_all(_TEXT)[0].value
    assert isinstance(found, Map)
    return found
