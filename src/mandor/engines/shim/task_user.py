"""Resolves the user of a task to numbers, before the supervisor enters the task's namespaces."""

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

ID_MAX = 2**32 - 1
"""Upper bound of user and group ids."""


class Refused(Exception):
    """The task can never start; the text is shown to users."""


class TaskUser:
    """A user with the data of the node's user database."""

    def __init__(self, uid: int, gid: int, name: str, home: str, groups: "Sequence[int]" = ()) -> None:
        self.uid = uid
        self.gid = gid
        self.name = name
        self.home = home
        self.groups = list(groups) or [gid]
        """Supplementary groups."""


def find_task_user(wanted: "str | None") -> "TaskUser | None":
    """Resolve `NAME` or `NUMBER`, either with `:GROUP`; None: the user of this process.

    The name service may load libraries, so this must run before any mount or namespace of the task exists."""
    import pwd

    if wanted is None:
        return None
    user, _, group = wanted.partition(":")
    known = True
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
        task_user = TaskUser(entry.pw_uid, entry.pw_gid, entry.pw_name, entry.pw_dir)
    except (KeyError, OverflowError):
        if not _is_number(user):
            raise Refused(f"there is no user `{user}` on this node") from None
        task_user, known = TaskUser(int(user), int(user), user, "/"), False
    if group:
        task_user.gid = _find_group(group)
    if os.geteuid() not in {0, task_user.uid}:
        raise Refused(f"only root may run a task as `{user}`; this agent runs as uid {os.geteuid()}")
    task_user.groups = os.getgrouplist(task_user.name, task_user.gid) if known else [task_user.gid]
    return task_user


def _is_number(text: str) -> bool:
    return text.isdecimal() and int(text) < ID_MAX


def _find_group(wanted: str) -> int:
    import grp

    try:
        return int(wanted) if _is_number(wanted) else grp.getgrnam(wanted).gr_gid
    except KeyError:
        raise Refused(f"there is no group `{wanted}` on this node") from None


def become(task_user: TaskUser) -> None:
    """Change to the user, by numbers only."""
    if os.geteuid() == 0:
        os.setgroups(task_user.groups)
        os.setresgid(task_user.gid, task_user.gid, task_user.gid)
        os.setresuid(task_user.uid, task_user.uid, task_user.uid)
    elif os.getegid() != task_user.gid:
        raise Refused(f"only root may run a task in another group than its own ({os.getegid()})")
