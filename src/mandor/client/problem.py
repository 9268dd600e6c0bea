"""Errors from the problem documents of servers, and limits of their answers."""

from collections.abc import Mapping
from typing import Any

from mandor.errors import BY_CODE, MandorError, Unavailable

_FIXED = frozenset({"type", "title", "status", "code", "detail", "hint", "message", "self"})
"""Members of a problem document that are not facts, or that clash with an error's own fields."""

STALL_SECONDS = 5.0
"""Seconds without data after which a started response counts as lost: responses are complete before they are sent."""
STALLED = "the response stalled"


def error_of(problem: Mapping[str, Any], status: int = 500) -> MandorError:
    """Return the error of a problem document; `status` is the HTTP status, for documents without a code."""
    kind = BY_CODE.get(str(problem.get("code", "")))
    if kind is None:
        kind = Unavailable if status in {502, 503, 504} else MandorError
    message = problem.get("detail") or problem.get("title") or f"the server responded with status {status}"
    facts = {str(name): value for name, value in problem.items() if name not in _FIXED}
    return kind(str(message), hint=problem.get("hint") or None, **facts)
