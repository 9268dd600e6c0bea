"""Labels of Kubernetes nodes, and the node facts with the same meaning."""

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


def fact(key: str) -> str:
    """Return the fact for a label key of a Kubernetes node; other keys stay as they are."""
    return FACTS.get(key, key)
