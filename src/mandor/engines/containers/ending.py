"""Derives the reason of an end from the exit code: pure."""

from __future__ import annotations

SIGNAL_BASE, SIGNALS = 128, 64


def reason_of(code: int, *, out_of_memory: bool) -> str:
    if code == 0:
        return "Completed"  # Only a child of it was killed for lack of memory.
    if out_of_memory:
        return "OOMKilled"
    return "Signalled" if SIGNAL_BASE < code <= SIGNAL_BASE + SIGNALS else "Error"
