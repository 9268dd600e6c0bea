"""Names that are never used twice."""

import secrets
from collections.abc import Callable

NewId = Callable[[], str]


def new_uid() -> str:
    """A uid: 20 hexadecimal digits, random."""
    return secrets.token_hex(10)
