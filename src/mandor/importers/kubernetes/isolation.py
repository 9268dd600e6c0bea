"""Network policies: refused, because nothing here keeps pods from each other's networks."""

from typing import Any

from mandor.importers.base import Options, check_isolation
from mandor.importers.part import Part

ISOLATION = frozenset(
    {
        *("NetworkPolicy", "AdminNetworkPolicy", "BaselineAdminNetworkPolicy", "ClusterNetworkPolicy"),
        *("CiliumNetworkPolicy", "CiliumClusterwideNetworkPolicy", "GlobalNetworkPolicy"),
    }
)
"""Kinds that restrict the traffic of pods."""
_WHY = "traffic between instances is not restricted, so the pods would be open to others"
_HINT = "restrict it on the nodes"


def check_policy(part: Part, options: Options) -> None:
    """Raise `Invalid` for a network policy; one that allows all traffic, or with `unisolated`, is dropped."""
    if part.peek("kind") == "NetworkPolicy" and _allows_all(part.peek("spec")):
        part.drop_all("kind", "it allows all traffic, as without it")
    else:
        check_isolation(part, "kind", options, _WHY, _HINT)
        part.drop_all("kind", _WHY, _HINT)


def _allows_all(spec: Any) -> bool:
    """Return whether each direction that the policy is about has a rule without conditions."""
    if not isinstance(spec, dict):
        return False
    types = spec.get("policyTypes")
    named = types if isinstance(types, list) else ["Ingress", *(["Egress"] if "egress" in spec else [])]
    rules = [spec.get(str(each).lower()) for each in named]
    return all(isinstance(each, list) and {} in each for each in rules)
