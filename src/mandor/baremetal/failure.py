"""The event of a failed request, which is committed together with the failure."""

from mandor.model.record import Event
from mandor.model.vm_request import VmRequest
from mandor.store.recorder import Recorder


async def failure_of(recorder: Recorder, request: VmRequest) -> Event | None:
    """Return the event, or None if the request has not failed."""
    status = request.status
    if status.state != "Failed":
        return None
    why = status.history[-1].why
    message = status.error if why == status.error else f"{status.error}: {why}"
    return await recorder.event(request, "TaskFailed", message, "warning")
