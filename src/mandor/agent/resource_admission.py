"""Admission by resources: an instance whose request exceeds what is left of the node is not started."""

from dataclasses import dataclass

from mandor.model.resources import Resources


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """Whether an instance may start: yes if both fields are empty."""

    refusal: str = ""
    """Why it can never start here."""
    wait: str = ""
    """Why it cannot start yet."""


class ResourceAdmission:
    """Requests of the instances on this node; a stopping instance keeps its share until it has ended."""

    def __init__(self, allocatable: Resources) -> None:
        self.allocatable = allocatable
        self._requests: dict[str, Resources] = {}
        self._stopping: set[str] = set()

    def __contains__(self, uid: str) -> bool:
        return uid in self._requests

    @property
    def allocated(self) -> Resources:
        return sum(self._requests.values(), Resources())

    def add_running(self, uid: str, request: Resources) -> None:
        """Count an instance that runs already, whether it fits or not."""
        self._requests[uid] = request

    def admit(self, uid: str, request: Resources) -> AdmissionResult:
        """Admit an instance that has not started; repeating the call changes nothing."""
        if uid in self._requests:
            return AdmissionResult()
        if self._fits(request, self.allocated):
            self._requests[uid] = request
            return AdmissionResult()
        if not request.fits(self.allocatable):
            return AdmissionResult(
                refusal=f"it requests {request}, but this node has only {self.allocatable} for instances"
            )
        staying = sum((each for owner, each in self._requests.items() if owner not in self._stopping), Resources())
        if self._fits(request, staying):
            return AdmissionResult(wait="an instance that is stopping still holds the resources that it requests")
        free = self.allocatable - self.allocated
        return AdmissionResult(
            refusal=f"it requests {request}, but only {free} of this node's {self.allocatable} is free"
        )

    def _fits(self, request: Resources, taken: Resources) -> bool:
        """Return whether the request fits into what is left; a resource that is not requested is ignored."""
        free = self.allocatable - taken
        return (
            (not request.cpu_milli or request.cpu_milli <= free.cpu_milli)
            and (not request.memory_bytes or request.memory_bytes <= free.memory_bytes)
            and (not request.disk_bytes or request.disk_bytes <= free.disk_bytes)
            and all(count <= free.devices.get(kind, 0) for kind, count in request.devices.items())
        )

    def mark_stopping(self, uid: str) -> None:
        """Record that the instance is stopping: its resources become free soon."""
        self._stopping.add(uid)

    def release(self, uid: str) -> bool:
        """Free the resources of an instance that has ended; return whether it held any."""
        self._stopping.discard(uid)
        return self._requests.pop(uid, None) is not None
