"""Containers of a CRI runtime: containerd, CRI-O."""

from mandor.engines.cri.engine import CriEngine

__all__ = ["CriEngine"]
