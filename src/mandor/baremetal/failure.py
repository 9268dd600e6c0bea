"""A task that fails says so in the very commit that fails it: whoever dies then has told it, or has not failed it."""

from mandor.model.record import Event
from mandor.model.vm_task import VmTask
from mandor.store.recorder import Recorder


async def failure_of(recorder: Recorder, task: VmTask) -> Event | None:
    """None: it has not failed."""
    status = task.status
    if status.state != "Failed":
        return None
    why = status.history[-1].why
    told = status.error if why == status.error else f"{status.error}: {why}"
    return await recorder.event(task, "TaskFailed", told, "warning")
