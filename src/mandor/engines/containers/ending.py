"""Why something ended, from its exit code: pure."""

from __future__ import annotations

SIGNAL_BASE, SIGNALS = 128, 64


def reason_of(code: int, *, out_of_memory: bool) -> str:
    if code == 0:
        return "Completed"  # A child of it may have been killed for its memory; it went on without.
    if out_of_memory:
        return "OOMKilled"
    return "Signalled" if SIGNAL_BASE < code <= SIGNAL_BASE + SIGNALS else "Error"
