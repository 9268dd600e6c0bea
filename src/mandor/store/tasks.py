"""A task and the claim that holds room for it change together, in one commit."""

from collections.abc import Awaitable, Callable

from mandor.errors import Conflict, NotFound
from mandor.model.audit import Audit
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.record import Event
from mandor.model.vm_task import VmTask
from mandor.store.base import Check, Delete, Put, Store, Write

TRIES = 20


def task_key(name: str, namespace: str = "default") -> Key:
    return Key(VmTask.kind, namespace, name)


async def read_task(store: Store, key: Key) -> VmTask:
    found = await store.get(key)
    if not isinstance(found, VmTask):
        raise NotFound(f"there is no task {key.name}", hint="`mandor get tasks` shows them all", key=key)
    return found


Recording = Callable[[VmTask, VmTask], Awaitable[Audit]]
"""Makes the audit record of a change, from the task before and after it."""
Telling = Callable[[VmTask], Awaitable[Event | None]]
"""What is raised of a task as it will be."""


async def change_task(
    store: Store,
    key: Key,
    change: Callable[[VmTask], VmTask],
    *,
    free: bool = False,
    first: VmTask | None = None,
    tell: Telling | None = None,
    record: Recording | None = None,
) -> VmTask:
    """Write what `change` makes of the task as it is; one that it gives back as it is stays so. `free`: the room that
    is held for it is given back in the same commit. `first`: as somebody has just read it. `tell` and
    `record`: written in the same commit, too."""
    for _ in range(TRIES):
        task = first if first is not None else await read_task(store, key)
        first = None
        after = change(task)
        if after is task:
            return task
        writes: list[Write] = [Put(after)]
        if free:
            claim = await store.get(task.claim_key)
            writes.append(_without(task, claim if isinstance(claim, Instance) else None))
        event = await tell(after) if tell is not None else None
        if event is not None:
            writes.append(Put(event))
        if record is not None:
            writes.append(Put(await record(task, after)))
        try:
            revision = await store.commit(*writes)
        except Conflict:
            continue
        return after.stamped(version=revision)
    raise Conflict(f"{key} keeps changing", hint="try again", key=key)


def _without(task: VmTask, claim: Instance | None) -> Write:
    """Also if there is none yet: whoever makes one at the same time must not be overlooked."""
    return Check(task.claim_key, 0) if claim is None else Delete(claim.key, claim.meta.version)
