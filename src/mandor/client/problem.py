"""Errors from the problem documents of servers, and limits of their answers."""

from collections.abc import Mapping
from typing import Any

from mandor.errors import BY_CODE, MandorError, Unavailable

_FIXED = frozenset({"type", "title", "status", "code", "detail", "hint", "message", "self"})
"""Members of a problem that are no facts, or could not be told apart from an error's own parts."""

STALL_SECONDS = 5.0
"""An answer is made before it is sent: one that has begun and does not go on for so long is not coming."""
STALLED = "it stopped in the middle of its answer"


def error_of(problem: Mapping[str, Any], status: int = 500) -> MandorError:
    """The error a problem document tells of; `status`: what it came with, should it not say what it is."""
    kind = BY_CODE.get(str(problem.get("code", "")))
    if kind is None:
        kind = Unavailable if status in {502, 503, 504} else MandorError
    message = problem.get("detail") or problem.get("title") or f"the server answered {status}"
    facts = {str(name): value for name, value in problem.items() if name not in _FIXED}
    return kind(str(message), hint=problem.get("hint") or None, **facts)
