"""A share of something: a number of instances, or so many percent of them."""

from typing import Annotated

from msgspec import Meta as Bounds

Share = Annotated[int, Bounds(ge=0, le=100_000)] | str
"""`3`, or `25%`."""


def check_share(share: Share | None, name: str) -> None:
    if isinstance(share, str) and not (share.endswith("%") and share[:-1].isdecimal() and int(share[:-1]) <= 100):
        raise ValueError(f"{name} {share[:20]!r} is neither a number nor a percentage: 0%…100%")


def share_of(share: Share, whole: int, *, up: bool) -> int:
    """Of so many; `up`: a part of an instance counts as one, else as none."""
    if isinstance(share, int):
        return share
    percent = int(share[:-1])
    return -(-whole * percent // 100) if up else whole * percent // 100


def is_none(share: Share | None) -> bool:
    """Somebody wrote 0, or 0 %."""
    return share is not None and share_of(share, 100, up=True) == 0
