"""Becoming the task: its groups, its user, its environment, its working directory, its program."""

import fcntl
import os

from mandor.engines.shim import groups, mounts
from mandor.engines.shim.light import close_from, die_with_parent, gain_no_privileges, signal, try_tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

_TIOCSCTTY = 0x540E
_SIGNALS = range(1, 65)
ID_MAX = 2**32 - 1
"""Users and groups have smaller numbers."""


class Refused(Exception):
    """It can never start like this; the text is for people."""


class Person:
    """A user to run as, looked up."""

    def __init__(self, uid: int, gid: int, name: str, home: str) -> None:
        self.uid = uid
        self.gid = gid
        self.name = name
        self.home = home


def find_person(wanted: "str | None") -> "Person | None":
    """`NAME`, `NUMBER`, either with `:GROUP`; None: whoever runs this."""
    import pwd

    if wanted is None:
        return None
    user, _, group = wanted.partition(":")
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
        person = Person(entry.pw_uid, entry.pw_gid, entry.pw_name, entry.pw_dir)
    except (KeyError, OverflowError):
        if not _is_number(user):
            raise Refused(f"there is no user `{user}` on this machine") from None
        person = Person(int(user), int(user), user, "/")
    if group:
        person.gid = _find_group(group)
    if os.geteuid() not in {0, person.uid}:
        raise Refused(f"only root may run a task as `{user}`; this agent runs as uid {os.geteuid()}")
    return person


def _is_number(text: str) -> bool:
    return text.isdecimal() and int(text) < ID_MAX


def _find_group(wanted: str) -> int:
    import grp

    try:
        return int(wanted) if _is_number(wanted) else grp.getgrnam(wanted).gr_gid
    except KeyError:
        raise Refused(f"there is no group `{wanted}` on this machine") from None


def find_folder(launch: "dict[str, Any]") -> str:
    """The working directory: the unit's own, a folder in it, or one of the machine's."""
    return str(launch["cwd"] or os.path.join(launch["work"], launch["below"]))


def enter(
    launch: "dict[str, Any]", person: "Person | None", argv: "Sequence[str]", parent: int, beside: int = 0
) -> "NoReturn":
    """Become `argv` in the unit's surroundings, for as long as `parent` lives; `Refused` if that cannot be.

    `beside`: the task that made them; 0: this is the task."""
    groups.join([group["path"] for group in launch["groups"]])
    if launch["mounts"]:
        mounts.join(beside) if beside else mounts.make_own(launch["mounts"])
        if person is not None and person.uid != 0:
            # What it finds at a path may be its own: a program that runs as root must not be deceived by that.
            gain_no_privileges()
    _reset()
    env = _environment(launch, person)
    if not launch["cwd"]:
        # Entered before the user changes: the way there may lead through folders that are the agent's alone.
        _change_folder(find_folder(launch))
    if person is not None:
        _become(person)
    die_with_parent()  # Not before: the kernel forgets it when the user changes.
    if os.getppid() != parent:
        os._exit(0)
    if launch["cwd"]:
        _change_folder(launch["cwd"])
    _execute(argv, env)


def _reset() -> None:
    """Give back what the agent or this interpreter changed for itself."""
    for number in _SIGNALS:
        try:
            if signal.getsignal(number) is not signal.SIG_DFL:
                signal.signal(number, signal.SIG_DFL)
        except (OSError, ValueError):
            continue  # KILL, STOP and the C library's own.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.umask(0o022)
    try_tell("/proc/self/oom_score_adj", "0")


def _environment(launch: "dict[str, Any]", person: "Person | None") -> dict[str, str]:
    home = person.home if person is not None and os.path.isdir(person.home) else launch["work"]
    name = person.name if person is not None else launch["runner"]
    return {"HOME": home, "USER": name, "LOGNAME": name, **launch["env"]}


def _change_folder(path: str) -> None:
    try:
        os.chdir(path)
    except FileNotFoundError:
        raise Refused(f"the working directory {path} does not exist") from None
    except OSError as error:
        raise Refused(f"the working directory {path} cannot be entered: {error.strerror}") from None


def _become(person: Person) -> None:
    if os.geteuid() == 0:
        known = not person.name.isdecimal()
        os.setgroups(os.getgrouplist(person.name, person.gid) if known else [person.gid])
        os.setgid(person.gid)
        os.setuid(person.uid)
    elif os.getegid() != person.gid:
        raise Refused(f"only root may run a task in another group than its own ({os.getegid()})")


def _execute(argv: "Sequence[str]", env: "dict[str, str]") -> "NoReturn":
    program, search = argv[0], env.get("PATH", "/usr/bin:/bin")
    places = [program] if "/" in program else [f"{folder}/{program}" for folder in search.split(":") if folder]
    denied = False
    for place in places:
        try:
            os.execve(place, list(argv), env)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            if os.path.exists(place):
                raise Refused(f"{place} names an interpreter that does not exist") from None
        except PermissionError:
            denied = True
        except (OSError, ValueError) as error:
            raise Refused(f"{place} cannot be executed: {getattr(error, 'strerror', None) or error}") from None
    if denied:
        raise Refused(f"{program} may not be executed by this user")
    raise Refused(f"there is no program `{program}`" + ("" if "/" in program else f" in {search}"))


def run_inside(launch: "dict[str, Any]", task: int, argv: "Sequence[str]") -> "NoReturn":
    """Run a command beside the task of that number; its troubles go to standard error, with a shell's exit codes."""
    parent = os.getppid()
    close_from(3)
    try:
        if os.isatty(0):
            fcntl.ioctl(0, _TIOCSCTTY, 0)
        enter(launch, find_person(launch["user"]), argv, parent, beside=task)
    except (Refused, OSError) as error:
        os.write(2, f"mandor: {error}\n".encode())
        os._exit(126 if "executed" in str(error) else 127)
