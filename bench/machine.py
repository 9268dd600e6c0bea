"""Description of the machine of a result."""

from __future__ import annotations

from mandor.bench.machine import machine

__all__ = ["machine"]
