"""Times at which agents renew the credentials and certificates of their nodes."""

import random

from mandor.api.parts import ApiParts
from mandor.model.record import RENEWAL_SHARE, Token

SPREAD = 0.1
"""Share by which renewals are spread, so that nodes that joined together do not renew together."""


def renew_seconds(parts: ApiParts, token: Token) -> float | None:
    """Return the seconds until the agent renews its credential by itself; None: only on request."""
    now, age_most = parts.clock.now(), parts.settings.credential_age_seconds
    left = seconds_left(token, now, age_most, chance=random.random())
    return left if left < float("inf") else None


def certificate_seconds(lasts_seconds: float) -> float:
    """Return the seconds until an agent requests its next certificate: about two thirds of its lifetime."""
    return RENEWAL_SHARE * lasts_seconds * (1 - SPREAD * random.random())


def seconds_left(token: Token, now: float, age_seconds_most: float, *, chance: float) -> float:
    """Return the seconds until a credential reaches its maximum age or most of its lifetime.

    `chance`: random number in 0..1 that spreads the renewals.
    """
    made = token.meta.created_at or now  # 0: it is being made
    keep = min(age_seconds_most, RENEWAL_SHARE * (token.ends_at - made))
    return max(0.0, made + keep * (1 - SPREAD * chance) - now)
