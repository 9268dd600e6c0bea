"""The podman engine."""

from mandor.engines.podman.engine import PodmanEngine

__all__ = ["PodmanEngine"]
