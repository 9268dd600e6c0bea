"""The profile `baremetal`, which places claims for virtual machines by best fit: the fullest machine that has room."""

from mandor.lib.yaml12 import Map, load_all
from mandor.model.claim import CLAIM_PROFILE

# Best fit: the fullest of the machines with room; of equals, the first by name.
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
    """Return the profile as configuration text; a configured profile of the same name replaces it."""
    found = load_all(_TEXT)[0].value
    assert isinstance(found, Map)
    return found
