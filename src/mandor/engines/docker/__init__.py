"""The docker engine."""

from mandor.engines.docker.engine import DockerEngine

__all__ = ["DockerEngine"]
