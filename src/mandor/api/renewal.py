"""When a node is to have another credential."""

import random

from mandor.api.parts import ApiParts
from mandor.model.record import RENEWAL_SHARE, Token

SPREAD = 0.1
"""Nodes that joined together do not all come together: up to this share earlier."""


def renew_seconds(parts: ApiParts, token: Token) -> float | None:
    """For how long its agent may keep it; None: until it is told to renew it."""
    now, age_most = parts.clock.now(), parts.settings.credential_age_seconds
    left = seconds_left(token, now, age_most, chance=random.random())
    return left if left < float("inf") else None


def certificate_seconds(lasts_seconds: float) -> float:
    """After how long an agent asks for its next certificate: at two thirds of its life, spread over nodes."""
    return RENEWAL_SHARE * lasts_seconds * (1 - SPREAD * random.random())


def seconds_left(token: Token, now: float, age_seconds_most: float, *, chance: float) -> float:
    """Until it has the greatest age, or has lived for most of its life; `chance`: 0..1."""
    made = token.meta.created_at or now  # 0: it is being made
    keep = min(age_seconds_most, RENEWAL_SHARE * (token.ends_at - made))
    return max(0.0, made + keep * (1 - SPREAD * chance) - now)
