"""Trace context (W3C): the trace and the span that a piece of work belongs to."""

import random
import re
from dataclasses import dataclass

_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_random = random.Random()
_RATIO_BITS = 56
"""Random bits of a trace id by its standard; sampling by these bits selects the same traces everywhere."""


@dataclass(frozen=True, slots=True)
class SpanContext:
    trace_id: str
    span_id: str
    sampled: bool = True
    """False: neither this span nor its children are recorded."""

    @property
    def header(self) -> str:
        """Return the value of the header `traceparent`."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def parse_header(text: str | None) -> SpanContext | None:
    """Parse `traceparent`; return None for a missing or invalid one, which starts a new trace."""
    found = _HEADER.fullmatch(text.strip().lower()) if text else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return SpanContext(trace_id, span_id, bool(int(flags, 16) & 1))


def new_trace_id() -> str:
    return f"{_random.getrandbits(128) or 1:032x}"


def new_span_id() -> str:
    return f"{_random.getrandbits(64) or 1:016x}"


def chosen(trace_id: str, ratio: float) -> bool:
    """Return whether a trace that starts here is recorded; equal ratios select the same traces in every process."""
    return int(trace_id, 16) & ((1 << _RATIO_BITS) - 1) < int(ratio * (1 << _RATIO_BITS))
