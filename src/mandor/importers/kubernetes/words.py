"""Names of Kubernetes and their counterparts: node labels, profiles, priorities, devices."""

from collections.abc import Mapping
from typing import Any

from mandor.model.kubernetes_names import FACTS, fact

PROFILES = {"default-scheduler": "default"}

SYSTEM_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}
"""Priority classes that every Kubernetes cluster has."""

ENGINES = ("docker", "podman", "cri")
"""Engines that run images of Kubernetes files."""


def renamed(labels: Mapping[str, Any]) -> dict[str, str]:
    """Return labels with Mandor's names for the well-known ones; the host name label is left out."""
    return {fact(key): str(value) for key, value in labels.items() if FACTS.get(key) != "node"}


def plain_name(text: str) -> str:
    """Return a qualified name with valid characters."""
    return text.replace("/", "-").lower()
