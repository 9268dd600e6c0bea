"""System containers and virtual machines of Incus."""

from mandor.engines.incus.engine import IncusEngine

__all__ = ["IncusEngine"]
