"""The last line of defence: what does not fit into the node is not begun."""

from dataclasses import dataclass

from mandor.model.resources import Resources


@dataclass(frozen=True, slots=True)
class AdmissionResult:
    """Both empty: come in."""

    refusal: str = ""
    wait: str = ""


class ResourceAdmission:
    """Who holds how much of this node; a stopping instance holds its share until it is over."""

    def __init__(self, allocatable: Resources) -> None:
        self.allocatable = allocatable
        self._claims: dict[str, Resources] = {}
        self._leaving: set[str] = set()

    def __contains__(self, uid: str) -> bool:
        return uid in self._claims

    @property
    def claimed(self) -> Resources:
        return sum(self._claims.values(), Resources())

    def keep(self, uid: str, request: Resources) -> None:
        """It runs already: it is counted, whether it fits or not."""
        self._claims[uid] = request

    def ask(self, uid: str, request: Resources) -> AdmissionResult:
        """A claim for something new; asking twice changes nothing."""
        if uid in self._claims:
            return AdmissionResult()
        if self._fits(request, self.claimed):
            self._claims[uid] = request
            return AdmissionResult()
        if not request.fits(self.allocatable):
            return AdmissionResult(refusal=f"it asks for {request}; this node has {self.allocatable} for instances")
        staying = sum((share for who, share in self._claims.items() if who not in self._leaving), Resources())
        if self._fits(request, staying):
            return AdmissionResult(wait="its room is still held by an instance that is stopping")
        free = self.allocatable - self.claimed
        return AdmissionResult(refusal=f"it asks for {request}; {free} is left of {self.allocatable}")

    def _fits(self, request: Resources, taken: Resources) -> bool:
        """Where nothing is asked for, it does not matter that there is too little."""
        room = self.allocatable - taken
        return (
            (not request.cpu_milli or request.cpu_milli <= room.cpu_milli)
            and (not request.memory_bytes or request.memory_bytes <= room.memory_bytes)
            and (not request.disk_bytes or request.disk_bytes <= room.disk_bytes)
            and all(count <= room.devices.get(kind, 0) for kind, count in request.devices.items())
        )

    def leave(self, uid: str) -> None:
        """It is stopping: its room will be free soon."""
        self._leaving.add(uid)

    def free(self, uid: str) -> bool:
        """It is over; True: that made room."""
        self._leaving.discard(uid)
        return self._claims.pop(uid, None) is not None
