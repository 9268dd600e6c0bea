"""Parts of a launch in the form that all container engines use; the sources of mounts are checked on disk."""

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
"""Least CPU quota that the kernel accepts, in microseconds per period."""
HOSTNAME_MOST = 63
TMP = "/tmp"  # noqa: S108 - a path inside the container
TMP_BYTES = 64 * 1024 * 1024
"""Size of the memory at /tmp of a task with a read-only root; it counts towards the memory limit of the task."""


def image_of(launch: Launch) -> str:
    if not launch.image:
        raise Invalid("this engine runs images, and the task has no `image`", hint="add `image: NAME` to the task")
    return launch.image


def user_of(launch: Launch) -> str:
    """Return the user for a container; empty: that of the image. A user of a namespace gets a group of the same number,
    because engines default to group 0."""
    if launch.user is None:
        return ""
    user = str(launch.user)
    return f"{user}:{user}" if user.isdecimal() and int(user) >= FIRST_NAMESPACE_USER else user


def with_mapped_user(launch: Launch) -> Launch:
    """Return the launch for an engine with 65,536 users: the user of a namespace is mapped to one of them."""
    if not isinstance(launch.user, int) or launch.user < FIRST_NAMESPACE_USER:
        return launch
    user = mapped_user(launch.user)
    return replace(launch, user=f"{user}:{user}")


def with_writable_tmp(launch: Launch) -> Launch:
    """Return the launch with a tmpfs at /tmp if the level made its root read-only and nothing is mounted there."""
    taken = any(each.path.rstrip("/") == TMP for each in launch.mounts)
    if launch.level != "restricted" or not launch.security.read_only_root or taken:
        return launch
    return replace(launch, mounts=(*launch.mounts, Mount(path=TMP, size_bytes=TMP_BYTES)))


def check_working_dir(launch: Launch) -> None:
    if launch.working_dir and not launch.working_dir.startswith("/"):
        raise Invalid(f"the working directory {launch.working_dir} is not absolute")


def check_mount(mount: Mount) -> None:
    """Refuse a relative path, and a source that does not exist: engines would create it."""
    if not mount.path.startswith("/"):
        raise Invalid(f"the mount {mount.path} needs an absolute path, because the task runs in a container")
    if mount.source is not None and not os.path.exists(mount.source):
        raise Invalid(f"the mount {mount.path}: its source {mount.source} does not exist on this node")


def cpu_quota(milli: int) -> int:
    """Return the CPU quota in microseconds per period."""
    return max(QUOTA_LEAST, -(-milli * PERIOD_MICROSECONDS // 1000))


def hostname(name: str) -> str:
    """Return the host name for a launch: `shop-web-0` for `shop-web-0/app`."""
    first = name.partition("/")[0].lower()
    return re.sub(r"[^a-z0-9-]", "-", first)[:HOSTNAME_MOST].strip("-") or "unit"
