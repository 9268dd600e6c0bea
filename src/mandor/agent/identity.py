"""Identity tokens of tasks on this node: one directory per task, the token replaced before it expires.

The directory is mounted into the task, not the file, so that a rename inside it is visible there. It is in memory
(`/run`) if the agent is root, and readable only by root and the user of the task.
"""

import contextlib
import logging
import os
import pwd
import shutil
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from mandor.agent.journal import Blocking
from mandor.agent.launch import token_path
from mandor.agent.link import Link
from mandor.agent.order import Order
from mandor.errors import MandorError
from mandor.lib.clock import Clock
from mandor.model.task import Task

log = logging.getLogger(__name__)

RENEW_SHARE = 2 / 3
"""Share of its life after which a token is replaced."""
RETRY_SECONDS = 10.0
LOOK_SECONDS = 5.0
CLOSED, OPEN = "containers", "processes"


@dataclass(slots=True)
class _Held:
    """One token: when it is replaced and when it ends, on the agent's monotonic clock."""

    renew_at: float
    ends_at: float


class IdentityKeeper:
    """Gets tokens for tasks that start, and renews those of running tasks."""

    def __init__(
        self, data: Path, node: str, link: Link, clock: Clock, blocking: Blocking, orders: Callable[[], Iterable[Order]]
    ) -> None:
        """`orders`: returns the orders of instances on this node that have not ended."""
        self._folder = memory_folder(node) or data / "identity"
        self._link, self._clock, self._blocking, self._orders = link, clock, blocking, orders
        self._held: dict[tuple[str, str], _Held] = {}

    async def ready(self, order: Order) -> dict[str, str]:
        """Return the directory of each task with an identity, with a valid token in it; raise if none is issued."""
        assert order.template is not None
        found = {}
        for name, task in order.template.tasks.items():
            if task.identity is not None:
                held = self._held.get((order.uid, name))
                if held is None or self._clock.monotonic() >= held.renew_at:
                    try:
                        await self._renew(order, name, task)
                    except (MandorError, OSError):
                        if held is None or self._clock.monotonic() >= held.ends_at:
                            raise
                found[name] = str(self._place(order.uid, name, task))
        return found

    async def give(self, order: Order, name: str, user: str | int | None) -> None:
        """Let the user that the task is about to run as read its token."""
        assert order.template is not None
        task = order.template.tasks[name]
        if task.identity is not None:
            await self._blocking(give_token, self._place(order.uid, name, task), user, task.image is not None)

    async def run(self) -> None:
        """Replace tokens of running tasks; an agent that was restarted replaces all of them once."""
        failed: dict[tuple[str, str], float] = {}
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            now = self._clock.monotonic()
            for order, name, task in _with_identity(self._orders()):
                key = (order.uid, name)
                held = self._held.get(key)
                due = held is not None and now >= held.renew_at
                if held is None and self._place(order.uid, name, task).is_dir():
                    due = True  # written by an earlier agent process
                if not due or now - failed.get(key, float("-inf")) < RETRY_SECONDS:
                    continue
                try:
                    await self._renew(order, name, task)
                    failed.pop(key, None)
                except (MandorError, OSError) as error:
                    failed[key] = now
                    log.warning("cannot renew the identity token of instance %s: %s; retrying", order.name, error)

    async def forget(self, uid: str) -> None:
        """Delete the tokens of an instance that has ended."""
        for key in [each for each in self._held if each[0] == uid]:
            del self._held[key]
        await self._blocking(_delete, self._folder, uid)

    async def _renew(self, order: Order, name: str, task: Task) -> None:
        assert task.identity is not None
        token, seconds = await self._link.identity(order.instance, name)
        place = self._place(order.uid, name, task)
        await self._blocking(write_token, place, Path(token_path(task.identity, links=False)).name, token)
        now = self._clock.monotonic()
        self._held[order.uid, name] = _Held(now + RENEW_SHARE * seconds, now + seconds)

    def _place(self, uid: str, name: str, task: Task) -> Path:
        """Return the directory of a task's token; those of containers are closed to other users of the node."""
        return self._folder / (CLOSED if task.image is not None else OPEN) / f"{uid}.{name}"


def _with_identity(orders: Iterable[Order]) -> list[tuple[Order, str, Task]]:
    return [
        (order, name, task)
        for order in orders
        if order.template is not None
        for name, task in order.template.tasks.items()
        if task.identity is not None
    ]


def memory_folder(node: str) -> Path | None:
    """Return a directory in memory for this node; None: the agent is not root, or `/run` is not a tmpfs."""
    if os.geteuid() != 0:
        return None
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    kinds = {parts[1]: parts[2] for line in mounts if len(parts := line.split()) > 2}
    return Path("/run/mandor") / node / "identity" if kinds.get("/run") == "tmpfs" else None


def write_token(folder: Path, name: str, token: str) -> None:
    """Put the token in place in one step: readers see the old one or the new one, whole, with the same owner."""
    # Tasks without an image pass through `OPEN` to their own directory: passing is allowed, listing is not.
    folder.parent.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    folder.parent.mkdir(mode=0o700 if folder.parent.name == CLOSED else 0o711, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=folder, prefix=".")
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.write(token)
        as_before = folder.stat()
        if os.geteuid() == 0:
            os.chown(draft, as_before.st_uid, -1)
        os.chmod(draft, 0o444 if as_before.st_mode & 0o005 else 0o400)
        os.replace(draft, folder / name)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def give_token(folder: Path, user: str | int | None, image: bool) -> None:
    """Make the folder and its token the user's, 0500 and 0400.

    A user that an image names by name, or not at all, is known only inside: all users may then read the token.
    """
    owner = _owner(user)
    shared = image and owner is None
    for path in (*folder.iterdir(), folder):
        if owner is not None and os.geteuid() == 0:
            os.chown(path, owner, -1)
        if path == folder:
            os.chmod(path, 0o755 if shared else 0o700)
        else:
            os.chmod(path, 0o444 if shared else 0o400)


def _owner(user: str | int | None) -> int | None:
    """Return the id of a user; None: not known on this node."""
    if user is None:
        return None
    text = str(user).partition(":")[0]
    if text.isdecimal():
        return int(text)
    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        return None


def _delete(folder: Path, uid: str) -> None:
    for place in folder.glob(f"*/{uid}.*"):
        shutil.rmtree(place, ignore_errors=True)
