"""The API groups of the kinds that can be imported: a kind of the same name in another group is a different kind."""

from mandor.importers.part import Part
from mandor.lib.words import mistyped

_CORE, _APPS, _BATCH = ("v1",), ("v1", "v1beta2", "v1beta1"), ("v1", "v1beta1", "v2alpha1")
VERSIONS: dict[str, tuple[str, ...]] = {
    "": _CORE,
    "apps": _APPS,
    "batch": _BATCH,
    "extensions": ("v1beta1",),
    "policy": ("v1", "v1beta1"),
    "autoscaling": ("v2", "v1", "v2beta2", "v2beta1"),
    "scheduling.k8s.io": ("v1", "v1beta1", "v1alpha1"),
    "apps.openshift.io": ("v1",),
    "discovery.k8s.io": ("v1", "v1beta1"),
    "networking.k8s.io": ("v1", "v1beta1"),
    "gateway.networking.k8s.io": ("v1", "v1beta1", "v1alpha3", "v1alpha2"),
}
"""Versions that can be read, by API group."""
_APIS: dict[str, tuple[str, ...]] = {
    "": (
        "Pod", "ReplicationController", "Service", "ConfigMap", "Secret", "PersistentVolumeClaim", "ResourceQuota",
        "LimitRange", "Namespace", "Endpoints",
    ),
    "apps": ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"),
    "extensions": ("Deployment", "ReplicaSet", "DaemonSet", "Ingress"),
    "batch": ("Job", "CronJob"),
    "policy": ("PodDisruptionBudget",),
    "autoscaling": ("HorizontalPodAutoscaler",),
    "scheduling.k8s.io": ("PriorityClass",),
    "apps.openshift.io": ("DeploymentConfig",),
    "discovery.k8s.io": ("EndpointSlice",),
    "networking.k8s.io": ("Ingress", "NetworkPolicy"),
    "gateway.networking.k8s.io": ("Gateway", "HTTPRoute", "GRPCRoute", "TCPRoute"),
}  # fmt: skip
_KINDS = {kind: [api for api, held in _APIS.items() if kind in held] for kinds in _APIS.values() for kind in kinds}


def meant(part: Part, kind: str) -> str:
    """Return a hint if the API group has a kind with a similar name."""
    return mistyped(kind, _APIS.get(str(part.peek("apiVersion")).rpartition("/")[0], ()))


def known_api(part: Part, kind: str) -> bool:
    """Return whether the kind is known in its API group; raise `Invalid` for an unknown version."""
    given = part.peek("apiVersion")
    if kind not in _KINDS or given is None:
        return True
    group, _, version = str(given).rpartition("/")
    if group not in _KINDS[kind]:
        return False
    if version not in VERSIONS[group]:
        known = ", ".join(f"{group}/{each}" if group else each for each in VERSIONS[group])
        raise part.wrong("apiVersion", f"{str(given)[:60]!r} is not a known version", f"known: {known}")
    return True
