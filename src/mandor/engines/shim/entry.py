"""Turns a process into the task: cgroups, user, environment, working directory, program."""

import fcntl
import os

from mandor.engines.shim import confine, groups, kernel, mounts
from mandor.engines.shim.light import close_from, read, signal, try_write_kernel
from mandor.engines.shim.task_user import Refused, TaskUser, find_task_user
from mandor.engines.shim.view import Namespaces

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

_TIOCSCTTY = 0x540E
_SIGNALS = range(1, 65)


def read_launch(folder: str) -> "dict[str, Any] | None":
    """Read the launch of the unit in `folder`; a note there may name the file in memory with the launch."""
    note = read(f"{folder}/launch.json")
    if note is None:
        return None
    found: dict[str, Any] | None = read(note["record"]) if "record" in note else note
    return found


def find_folder(launch: "dict[str, Any]") -> str:
    """Return the working directory: the unit's own folder, one inside it, or a folder of the node."""
    return str(launch["cwd"] or os.path.join(launch["work"], launch["below"]))


def enter(
    launch: "dict[str, Any]",
    task_user: "TaskUser | None",
    argv: "Sequence[str]",
    parent: int,
    namespaces: "Namespaces | None" = None,
) -> "NoReturn":
    """Execute `argv` with the cgroups, user and namespaces of the unit; `Refused`: that is not possible. The process
    ends with `parent`.

    `namespaces`: existing namespaces of the task. Everything that needs a file, a name or a library of the node is done
    before they are entered, because files in the task's view belong to the tenant."""
    groups.join([group["path"] for group in launch["groups"]])
    _reset()
    env = _environment(launch, task_user)
    confined = launch.get("confined")
    rules = confine.prepare(confined)
    if namespaces is not None:
        namespaces.join()
    elif launch["mounts"]:
        mounts.leave_node()
        mounts.make_all(launch["mounts"], mounts.MountPoints("/", [os.path.realpath(launch["work"])], task_user))
    if launch["mounts"] and task_user is not None and task_user.uid != 0:
        kernel.gain_no_privileges()  # a set-user-id program must not read files that the tenant mounted
    if not launch["cwd"]:
        # Entered before the user changes: only the agent can pass some folders above it.
        _change_folder(find_folder(launch))
    confine.give_up(confined, task_user, rules)
    kernel.die_with_parent()  # after the change of the user, which resets it
    if os.getppid() != parent:
        os._exit(0)
    if launch["cwd"]:
        _change_folder(launch["cwd"])
    _execute(argv, env)


def _reset() -> None:
    """Reset signals, umask and OOM score to their defaults."""
    for number in _SIGNALS:
        try:
            if signal.getsignal(number) is not signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # KILL, STOP and signals of the C library.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o022)
    try_write_kernel("/proc/self/oom_score_adj", "0")


def _environment(launch: "dict[str, Any]", task_user: "TaskUser | None") -> dict[str, str]:
    home = launch["work"]
    if task_user is not None and not launch.get("view") and os.path.isdir(task_user.home):
        home = task_user.home
    name = task_user.name if task_user is not None else launch["runner"]
    return {"HOME": home, "USER": name, "LOGNAME": name, **launch["env"]}


def _change_folder(path: str) -> None:
    try:
        os.chdir(path)
    except FileNotFoundError:
        raise Refused(f"the working directory {path} does not exist") from None
    except OSError as error:
        raise Refused(f"cannot change to the working directory {path}: {error.strerror}") from None


def _execute(argv: "Sequence[str]", env: "dict[str, str]") -> "NoReturn":
    program, search = argv[0], env.get("PATH", "/usr/bin:/bin")
    places = [program] if "/" in program else [f"{folder}/{program}" for folder in search.split(":") if folder]
    denied = False
    for place in places:
        try:
            os.execve(place, list(argv), env)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            if os.path.exists(place):
                raise Refused(f"the interpreter of {place} does not exist") from None
        except PermissionError:
            denied = True
        except (OSError, ValueError) as error:
            raise Refused(f"{place} cannot be executed: {getattr(error, 'strerror', None) or error}") from None
    if denied:
        raise Refused(f"this user may not execute {program}")
    raise Refused(f"there is no program `{program}`" + ("" if "/" in program else f" in {search}"))


def run_inside(folder: str, supervisor: int, argv: "Sequence[str]") -> "NoReturn":
    """Run a command beside the task of a unit; errors go to standard error, with exit codes as in a shell."""
    parent = os.getppid()
    close_from(3)
    try:
        launch, running = read_launch(folder), read(f"{folder}/running.json")
        if launch is None or running is None:
            raise Refused("the task does not run any more")
        task_user = find_task_user(launch["user"])
        if launch.get("view"):
            _run_in_view(launch, task_user, argv, parent, _open_namespaces(running["init"], supervisor))
        _take_terminal()
        found = _open_namespaces(running["pid"], supervisor, ("mnt",)) if launch["mounts"] else None
        enter(launch, task_user, argv, parent, found)
    except (Refused, OSError) as error:
        os.write(2, f"mandor: {error}\n".encode())
        os._exit(126 if "execute" in str(error) else 127)


def _open_namespaces(pid: int, supervisor: int, names: "Sequence[str]" = ()) -> Namespaces:
    """Open the namespaces of a child of the supervisor; a reused process id is refused."""
    found = Namespaces(pid, names)
    with open(f"/proc/{pid}/stat", "rb") as file:
        parent = int(file.read().rpartition(b") ")[2].split()[1])
    if parent != supervisor:
        raise Refused("the task does not run any more")
    return found


def _run_in_view(
    launch: "dict[str, Any]", task_user: "TaskUser | None", argv: "Sequence[str]", parent: int, found: Namespaces
) -> "NoReturn":
    """Run the command as a child in the task's process namespace, and exit with its exit code."""
    kernel.die_with_parent()
    if os.getppid() != parent:
        os._exit(0)
    found.join_users()
    found.join_pids()
    pid = os.fork()
    if pid == 0:
        if os.isatty(0):
            os.setsid()
            _take_terminal()
        enter(launch, task_user, argv, 0, found)
    for number in range(3):
        os.close(number)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    os._exit(code if code >= 0 else 128 - code)


def _take_terminal() -> None:
    if os.isatty(0):
        fcntl.ioctl(0, _TIOCSCTTY, 0)
