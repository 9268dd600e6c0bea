"""What every container is made of, whoever makes it: pure, but for a look at what is to be mounted."""

from __future__ import annotations

import os
import re

from msgspec.structs import replace

from mandor.engines.base import Launch, Mount
from mandor.errors import Invalid
from mandor.model.record import FIRST_NAMESPACE_USER
from mandor.model.user_range import mapped_user

PERIOD_MICROSECONDS = 100_000
QUOTA_LEAST = 1000
"""The kernel gives no less than a hundredth of a processor."""
HOSTNAME_MOST = 63
TMP = "/tmp"  # noqa: S108 - a path inside the container
TMP_BYTES = 64 * 1024 * 1024
"""Size of the memory at /tmp of a task with a read-only root; it counts towards the memory limit of the task."""


def image_of(launch: Launch) -> str:
    if not launch.image:
        raise Invalid("this engine runs images, and the task names none", hint="`image:` says which one")
    return launch.image


def user_of(launch: Launch) -> str:
    """The user for a container, empty: the image's own. A user of a namespace has a group of the same number: without
    one, engines take the group 0."""
    if launch.user is None:
        return ""
    user = str(launch.user)
    return f"{user}:{user}" if user.isdecimal() and int(user) >= FIRST_NAMESPACE_USER else user


def with_mapped_user(launch: Launch) -> Launch:
    """The launch for an engine that knows 65536 users: a user of a namespace becomes one of these."""
    if not isinstance(launch.user, int) or launch.user < FIRST_NAMESPACE_USER:
        return launch
    user = mapped_user(launch.user)
    return replace(launch, user=f"{user}:{user}")


def with_writable_tmp(launch: Launch) -> Launch:
    """The launch with memory at /tmp, where the level made its root read-only and it mounts nothing there."""
    taken = any(each.path.rstrip("/") == TMP for each in launch.mounts)
    if launch.level != "restricted" or not launch.security.read_only_root or taken:
        return launch
    return replace(launch, mounts=(*launch.mounts, Mount(path=TMP, size_bytes=TMP_BYTES)))


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
