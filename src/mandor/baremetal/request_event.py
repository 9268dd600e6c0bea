"""The event of a placed or failed request, which is committed together with the change of the request."""

from mandor.model.record import Event
from mandor.model.vm_request import VmRequest
from mandor.store.recorder import Recorder


async def event_of(recorder: Recorder, request: VmRequest) -> Event | None:
    """Return the event; None in other states."""
    status = request.status
    if status.state == "Placed":
        where = f"{status.node} ({status.address})" if status.address else status.node
        return await recorder.event(request, "TaskPlaced", f"placed on {where}")
    if status.state == "Failed":
        why = status.history[-1].why
        message = status.error if why == status.error else f"{status.error}: {why}"
        return await recorder.event(request, "TaskFailed", message, "warning")
    return None
