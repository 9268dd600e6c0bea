"""Signed messages: HMAC-SHA256 over time and body, so that a receiver can verify the sender and reject replays."""

import hmac
from collections.abc import Mapping
from hashlib import sha256

TIMESTAMP, SIGNATURE = "X-Mandor-Timestamp", "X-Mandor-Signature"
VERSION = "v1"
AGE_SECONDS_MOST = 300.0
"""Maximum difference between a message's time and the receiver's clock."""


def sign(secret: bytes, body: bytes, now: float) -> dict[str, str]:
    """Return the signature headers for the body."""
    stamp = str(int(now))
    return {TIMESTAMP: stamp, SIGNATURE: f"{VERSION}={_digest(secret, stamp, body)}"}


def verify(
    secret: bytes, body: bytes, headers: Mapping[str, str], now: float, *, most: float = AGE_SECONDS_MOST
) -> bool:
    """Return whether this body was recently signed with the secret. Several signatures are separated by spaces."""
    lower = {name.lower(): value for name, value in headers.items()}
    stamp, given = lower.get(TIMESTAMP.lower(), ""), lower.get(SIGNATURE.lower(), "")
    if not stamp.isdecimal() or not stamp.isascii() or len(stamp) > 12 or abs(now - int(stamp)) > most:
        return False
    wanted = f"{VERSION}={_digest(secret, stamp, body)}".encode()
    return any(hmac.compare_digest(wanted, each.encode()) for each in given.split()[:8])


def _digest(secret: bytes, stamp: str, body: bytes) -> str:
    if not secret:
        raise ValueError("an empty secret signs nothing")
    return hmac.new(secret, stamp.encode() + b"." + body, sha256).hexdigest()
