"""For receivers of webhooks: whether a message comes from the cluster whose secret one shares, and is new."""

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
    """True: this very body was signed with the secret, within the window. Call it before the body is read as JSON.

    The window ends replays of old messages; those within it, and repeats, are told apart by the message's `id`.
    """
    key = secret.encode() if isinstance(secret, str) else secret
    return signing.verify(key.strip(), body, headers, time.time() if now is None else now, most=window_seconds)
