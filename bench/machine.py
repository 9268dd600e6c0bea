"""What a result was measured on."""

from __future__ import annotations

from mandor.bench.machine import machine

__all__ = ["machine"]
