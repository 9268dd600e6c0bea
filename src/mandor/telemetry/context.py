"""Which trace something belongs to, and under which span of it: W3C trace context."""

import random
import re
from dataclasses import dataclass

_HEADER = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_random = random.Random()
_RATIO_BITS = 56
"""Of a trace's id so many bits are random by its standard: whoever goes by them keeps or leaves out the same traces."""


@dataclass(frozen=True, slots=True)
class SpanContext:
    trace_id: str
    span_id: str
    sampled: bool = True
    """False: nobody records it, nor what comes of it."""

    @property
    def header(self) -> str:
        """As `traceparent` says it."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def parse_header(text: str | None) -> SpanContext | None:
    """None: there is none, or it is not to be trusted; then a trace begins anew, as the standard says."""
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
    """Whether a trace that begins here is one of those that are kept; all who use the same ratio agree about it."""
    return int(trace_id, 16) & ((1 << _RATIO_BITS) - 1) < int(ratio * (1 << _RATIO_BITS))
