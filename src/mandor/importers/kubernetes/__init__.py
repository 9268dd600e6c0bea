"""Kubernetes' objects as manifests."""

from mandor.importers.kubernetes.importer import KubernetesImporter

__all__ = ["KubernetesImporter"]
