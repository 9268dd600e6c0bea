"""What the two tools call the same thing: facts of nodes, profiles, priorities."""

from collections.abc import Mapping
from typing import Any

FACTS = {
    "kubernetes.io/hostname": "node",
    "metadata.name": "node",
    "topology.kubernetes.io/zone": "zone",
    "failure-domain.beta.kubernetes.io/zone": "zone",
    "topology.kubernetes.io/region": "region",
    "failure-domain.beta.kubernetes.io/region": "region",
    "kubernetes.io/os": "os",
    "beta.kubernetes.io/os": "os",
    "kubernetes.io/arch": "arch",
    "beta.kubernetes.io/arch": "arch",
}
"""Labels of Kubernetes' nodes that are facts here."""

VENDORS = {"nvidia.com": "nvidia", "amd.com": "amd", "intel.com": "intel", "gpu.intel.com": "intel"}
"""What vendors of devices are called here, and in other tools' files."""

PROFILES = {"default-scheduler": "default"}

SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""Classes that every Kubernetes has."""

ENGINES = ("docker", "podman", "cri")
"""Those that run Kubernetes' images."""

_PRIORITY_KEPT = 100_000
"""Kubernetes' priorities are larger than ours: those above this are brought closer together, in their order."""


def fact(key: str) -> str:
    return FACTS.get(key, key)


def device(name: str) -> str:
    """`nvidia.com/gpu` is `nvidia/gpu`, which agents are told of."""
    vendor, slash, kind = name.rpartition("/")
    return f"{VENDORS.get(vendor, vendor)}{slash}{kind}"


def renamed(labels: Mapping[str, Any]) -> dict[str, str]:
    """Under the names that Mandor has for the usual facts; a node knows its own name."""
    return {fact(key): str(value) for key, value in labels.items() if FACTS.get(key) != "node"}


def closer(priority: int) -> int:
    """A priority within Mandor's bounds, in the same order as before."""
    if abs(priority) <= _PRIORITY_KEPT:
        return priority
    beyond = (abs(priority) - _PRIORITY_KEPT) // 10_000
    return (_PRIORITY_KEPT + beyond) * (1 if priority > 0 else -1)


def plain_name(text: str) -> str:
    """A qualified name in the letters that names have here."""
    return text.replace("/", "-").lower()
