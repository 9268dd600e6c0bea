"""A share of a group's instances: a number or a percentage."""

from typing import Annotated

from msgspec import Meta as Bounds

Share = Annotated[int, Bounds(ge=0, le=100_000)] | str
"""A number such as `3`, or a percentage such as `25%`."""


def check_share(share: Share | None, name: str) -> None:
    if isinstance(share, str) and not (share.endswith("%") and share[:-1].isdecimal() and int(share[:-1]) <= 100):
        raise ValueError(f"{name} {share[:20]!r} is not valid; write a number or 0% to 100%")


def share_of(share: Share, whole: int, *, up: bool) -> int:
    """Return the share as a number of instances; fractions are rounded up if `up`, else down."""
    if isinstance(share, int):
        return share
    percent = int(share[:-1])
    return -(-whole * percent // 100) if up else whole * percent // 100


def is_none(share: Share | None) -> bool:
    """Return whether the share is set to 0 or 0%."""
    return share is not None and share_of(share, 100, up=True) == 0
