"""The errors that a server answers, made of the problem documents that tell of them; when to ask again, and whom."""

import random
from collections.abc import Mapping
from typing import Any

from mandor.errors import BY_CODE, MandorError, TooMany, Unavailable

_FIXED = frozenset({"type", "title", "status", "code", "detail", "hint", "message", "self"})
"""Members of a problem that are no facts, or could not be told apart from an error's own parts."""

DOUBT_SECONDS = 2.5
"""Who knows several servers asks one that has not answered for so long whether it lives, again and again."""
LIFE_SECONDS = 3.0
"""One that does not say so within that time hangs, and is passed over; one that does may take as long as it likes."""
STALL_SECONDS = 5.0
"""An answer is made before it is sent: one that has begun and does not go on for so long is not coming."""
STALLED = "it stopped in the middle of its answer"
LIFE_PATH = "/healthz"
TRIES = 4
"""So often a request is sent that a server which has too much to do turned away."""
PAUSE_SECONDS_MOST = 10.0
"""Who is to come again later than that is told so."""


def pause_before(tries: int, error: MandorError) -> float | None:
    """How long to wait before a request is sent again that was turned away, which means that nothing was done about
    it; None: it is not. Many that were turned away together do not come back together."""
    seconds = error.facts.get("seconds") if isinstance(error, TooMany) else None
    if not isinstance(seconds, int | float) or seconds > PAUSE_SECONDS_MOST or tries >= TRIES:
        return None
    return max(0.1, seconds) * (1 + random.random())


def error_of(problem: Mapping[str, Any], status: int = 500) -> MandorError:
    """The error a problem document tells of; `status`: what it came with, should it not say what it is."""
    kind = BY_CODE.get(str(problem.get("code", "")))
    if kind is None:
        kind = Unavailable if status in {502, 503, 504} else MandorError
    message = problem.get("detail") or problem.get("title") or f"the server answered {status}"
    facts = {str(name): value for name, value in problem.items() if name not in _FIXED}
    return kind(str(message), hint=problem.get("hint") or None, **facts)
