"""Verification for receivers of webhooks: whether a message is from the cluster that shares the secret, and is new."""

import time
from collections.abc import Mapping

from mandor.lib import signing


def verify(
    secret: str | bytes,
    body: bytes,
    headers: Mapping[str, str],
    *,
    now: float | None = None,
    window_seconds: float = signing.AGE_SECONDS_MOST,
) -> bool:
    """Return whether the body was signed with the secret within the time window.

    Call it before the body is parsed as JSON. The window stops replays of old messages; repeats within it are
    recognised by the message's `id`.
    """
    key = secret.encode() if isinstance(secret, str) else secret
    return signing.verify(key.strip(), body, headers, time.time() if now is None else now, most=window_seconds)
