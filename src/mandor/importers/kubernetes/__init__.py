"""Converts Kubernetes objects into manifests."""

from mandor.importers.kubernetes.importer import KubernetesImporter

__all__ = ["KubernetesImporter"]
