"""The view of a confined task: its own process, mount, IPC and UTS namespaces, and a minimal root file system.

The first process of the process namespace is a fork of the supervisor that makes the view and then only reaps. The task
and commands beside it join its namespaces. When it ends, the kernel kills all processes in them.
"""

import os

from mandor.engines.shim import confine, kernel, mounts
from mandor.engines.shim.light import close_from, signal
from mandor.engines.shim.task_user import Refused, TaskUser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

_CLOSED = kernel.NO_SUID | kernel.NO_DEVICES
_JOINED = (
    ("user", kernel.NEW_USERS),
    ("net", kernel.NEW_NET),
    ("ipc", kernel.NEW_IPC),
    ("uts", kernel.NEW_UTS),
    ("mnt", kernel.NEW_MOUNTS),
)
ROOT_DATA = "mode=0755,size=1m"


def leave_users() -> None:
    """Enter a user namespace with the same user and group, where a supervisor that is not root may mount."""
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(kernel.NEW_USERS)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        file = os.open(f"/proc/self/{name}", os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(file, text.encode())
        finally:
            os.close(file)


def start(launch: "dict[str, Any]", task_user: "TaskUser | None") -> int:
    """Start the first process of the task's namespaces; return its process id when the view is ready.

    Children that this process starts later are in the same process namespace."""
    if os.geteuid() != 0:
        leave_users()
    kernel.unshare(kernel.NEW_PIDS)
    trouble, trouble_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        _begin(launch, task_user, trouble_end)
    os.close(trouble_end)
    message = b""
    while part := os.read(trouble, 4096):
        message += part
    os.close(trouble)
    if message != b".":
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise Refused(message.decode(errors="replace") or "the first process of its namespaces was killed")
    return pid


def _begin(launch: "dict[str, Any]", task_user: "TaskUser | None", trouble: int) -> "NoReturn":
    """In the child: make the view, drop all rights, and reap until the end."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        _make(launch, task_user)
        confine.give_up(launch["confined"], task_user, None)
        kernel.die_with_parent()  # after the change of the user, which resets it
        if os.getppid() != 0:
            os._exit(0)  # the supervisor, which is outside of the namespace, has ended
        os.dup2(trouble, 0)
        close_from(1)
        os.write(0, b".")
        os.close(0)
    except BaseException as error:
        os.write(trouble, str(error).encode() or repr(error).encode())
        os._exit(1)
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except OSError:
            pass  # no children now
        signal.sigwait([signal.SIGCHLD])


def _make(launch: "dict[str, Any]", task_user: "TaskUser | None") -> None:
    view = launch["view"]
    root = view["root"]
    kernel.unshare(kernel.NEW_IPC | kernel.NEW_UTS)
    mounts.leave_node()
    kernel.mount(b"tmpfs", root.encode(), b"tmpfs", _CLOSED, ROOT_DATA.encode())
    mount_points = mounts.MountPoints(root, [launch["work"]], task_user, private=True)
    for kind, source, target in view["steps"]:
        try:
            _step(kind, source, target, mount_points, root)
        except (OSError, Refused) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise Refused(f"the task's view cannot be made: {kind} {target}: {reason}") from None
    mounts.make_all(launch["mounts"], mount_points, _CLOSED)
    os.chdir(root)
    kernel.pivot_root(b".", b".")
    kernel.detach(b".")
    os.chdir("/")
    kernel.mount(None, b"/", None, kernel.REMOUNT | kernel.BIND | kernel.READ_ONLY | _CLOSED)


def _step(kind: str, source: str, target: str, mount_points: mounts.MountPoints, root: str) -> None:
    if kind == "show":
        # Without root, mounts below must be included: the kernel keeps them together.
        mounts.bind(source, mount_points, target, kernel.READ_ONLY | _CLOSED, recursive=os.geteuid() != 0)
    elif kind == "own":
        mounts.bind(source, mount_points, target, _CLOSED, recursive=False)
    elif kind == "device":
        mounts.bind(source, mount_points, target, kernel.NO_SUID | kernel.NO_EXEC, recursive=False)
    elif kind == "link":
        os.symlink(source, root + target)
    elif kind == "folder":
        os.close(mount_points.open(target))
    elif kind == "proc":
        mounts.mount_new(b"proc", mount_points, target, _CLOSED | kernel.NO_EXEC)
    elif kind == "terminals":
        mounts.mount_new(b"devpts", mount_points, target, kernel.NO_SUID | kernel.NO_EXEC, source)
    elif kind == "memory":
        mounts.mount_new(b"tmpfs", mount_points, target, _CLOSED | kernel.NO_EXEC, source)
    else:
        raise Refused(f"unknown step {kind!r} of a view")


class Namespaces:
    """Open namespaces of a running view, which a child joins."""

    def __init__(self, pid: int, names: "Sequence[str]" = ()) -> None:
        """`pid`: a process in the namespaces; `names`: open only these."""
        self._files = []
        self._pids = -1
        for name, flag in _JOINED:
            if names and name not in names:
                continue
            file = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
            if os.fstat(file).st_ino == os.stat(f"/proc/self/ns/{name}").st_ino:
                os.close(file)  # the same one: not entered again
            else:
                self._files.append((file, flag))
        if not names:
            self._pids = os.open(f"/proc/{pid}/ns/pid", os.O_RDONLY | os.O_CLOEXEC)

    def join(self) -> None:
        """Enter all but the process namespace, which applies to children only."""
        for file, flag in self._files:
            kernel.join(file, flag)

    def join_users(self) -> None:
        """Enter the user namespace, if there is one: the others need it."""
        for file, flag in self._files:
            if flag == kernel.NEW_USERS:
                kernel.join(file, flag)
        self._files = [each for each in self._files if each[1] != kernel.NEW_USERS]

    def join_pids(self) -> None:
        """Start later children of this process in the process namespace."""
        kernel.join(self._pids, kernel.NEW_PIDS)


def can_make() -> bool:
    """Return whether this process can create namespaces with a /proc; the attempt changes the process."""
    try:
        if os.geteuid() != 0:
            leave_users()
        kernel.unshare(kernel.NEW_PIDS | kernel.NEW_IPC | kernel.NEW_UTS)
        pid = os.fork()
        if pid == 0:
            try:
                mounts.leave_node()
                kernel.mount(b"proc", b"/proc", b"proc", _CLOSED)
                kernel.mount(b"tmpfs", b"/tmp", b"tmpfs", _CLOSED)
                os._exit(0)
            finally:
                os._exit(1)
        return os.waitpid(pid, 0)[1] == 0
    except OSError:
        return False
