"""Renders Kustomization folders of plain YAML into the objects that Kubernetes would get."""

from mandor.importers.kustomize.render import FILE_NAMES, Kustomizer, is_kustomization

__all__ = ["FILE_NAMES", "Kustomizer", "is_kustomization"]
