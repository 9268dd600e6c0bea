"""What every container is made of, whoever makes it: pure, but for a look at what is to be mounted."""

from __future__ import annotations

import os
import re

from mandor.engines.base import Launch, Mount
from mandor.errors import Invalid

PERIOD_MICROSECONDS = 100_000
QUOTA_LEAST = 1000
"""The kernel gives no less than a hundredth of a processor."""
HOSTNAME_MOST = 63


def image_of(launch: Launch) -> str:
    if not launch.image:
        raise Invalid("this engine runs images, and the task names none", hint="`image:` says which one")
    return launch.image


def check_working_dir(launch: Launch) -> None:
    if launch.working_dir and not launch.working_dir.startswith("/"):
        raise Invalid(f"the working directory {launch.working_dir} is not absolute")


def check_mount(mount: Mount) -> None:
    """A source that is not there is refused: the engine must not make one."""
    if not mount.path.startswith("/"):
        raise Invalid(f"the volume at {mount.path}: in a container a mount has an absolute path")
    if mount.source is not None and not os.path.exists(mount.source):
        raise Invalid(f"the volume at {mount.path}: there is no {mount.source} on this node")


def cpu_quota(milli: int) -> int:
    """Microseconds of each period."""
    return max(QUOTA_LEAST, -(-milli * PERIOD_MICROSECONDS // 1000))


def hostname(name: str) -> str:
    """`shop-web-0/app` is on the machine `shop-web-0`."""
    first = name.partition("/")[0].lower()
    return re.sub(r"[^a-z0-9-]", "-", first)[:HOSTNAME_MOST].strip("-") or "unit"
