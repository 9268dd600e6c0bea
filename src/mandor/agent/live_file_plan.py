"""Decides where live files are on the node and which running tasks have outdated ones: pure."""

from collections.abc import Iterable, Mapping
from zlib import crc32

from mandor.agent.order import Memory, Order
from mandor.engines.base import Observed, UnitPhase
from mandor.model.secret import secret_of

CLOSED, OPEN = "containers", "processes"
"""Folders for tasks with an image and for tasks without one: users of the node can pass through the second."""
SPREAD_SECONDS = 2.0
"""Nodes spread their reads of a changed secret over this time."""


def live_folder(base: str, uid: str, task: str, *, image: bool) -> str:
    """Return the folder of a task's live files; it has a numbered folder for each of the task's live folders."""
    return f"{base}/{CLOSED if image else OPEN}/{uid}.{task}"


def file_secrets(order: Order, task: str) -> dict[str, str]:
    """Return the content ids, by name, of the secrets in the task's live files, as last read."""
    return {name: order.secret_ids[name] for name in _names(order, task) if name in order.secret_ids}


def outdated_tasks(order: Order, memory: Memory, units: Iterable[Observed]) -> list[str]:
    """Return the running tasks that have to get other live files, or still have to get the signal after that."""
    wanted = order.instance.spec.secrets
    if order.template is None or order.instance.spec.stop is not None or memory.ending is not None:
        return []
    running = {each.unit for each in units if each.phase is UnitPhase.RUNNING}
    tasks = [name for name in memory.tasks if any((each.task, each.attempt) == _unit(memory, name) for each in running)]
    return [
        name
        for name in tasks
        if memory.task(name).signal_due or outdated_secrets(memory.task(name).file_secrets, wanted, _names(order, name))
    ]


def outdated_secrets(given: Mapping[str, str], wanted: Mapping[str, str] | None, names: Iterable[str]) -> list[str]:
    """Return those of the named secrets whose wanted content id is later than the given one."""
    return sorted(name for name in names if wanted and name in wanted and _later(wanted[name], given.get(name, "")))


def spread_seconds(uid: str) -> float:
    """Return the pause of an instance before it reads a changed secret, 0 to `SPREAD_SECONDS`."""
    return SPREAD_SECONDS * (crc32(uid.encode()) % 1000) / 1000


def _later(wanted: str, given: str) -> bool:
    """A content id is `UID.CHANGES`: of one secret, the higher number is later; another uid is another secret."""
    uid, _, changes = given.rpartition(".")
    wanted_uid, _, wanted_changes = wanted.rpartition(".")
    if uid != wanted_uid or not (changes.isdecimal() and wanted_changes.isdecimal()):
        return wanted != given
    return int(wanted_changes) > int(changes)


def _names(order: Order, task: str) -> set[str]:
    assert order.template is not None
    found = order.template.tasks.get(task)
    return {secret_of(each) for each in found.signal_references} if found is not None else set()


def _unit(memory: Memory, task: str) -> tuple[str, int]:
    return task, memory.task(task).attempt
