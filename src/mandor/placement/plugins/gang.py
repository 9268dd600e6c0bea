"""Gang: instances that belong together are placed together or not at all."""

from mandor.model.meta import Key
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.handle import DETACHED, Handle
from mandor.placement.framework.points import (
    CAPACITY_EVENTS,
    GangBinding,
    GangPlugin,
    PermitPlugin,
    PostBindPlugin,
    ReservePlugin,
    Wait,
)
from mandor.placement.framework.request import GangMembership, PlacementRequest


class Gang(GangPlugin, ReservePlugin, PermitPlugin, PostBindPlugin):
    """The members that make a gang whole go through in one cycle and are bound together. A late one, that is decided
    while these are on their way, waits for them: it follows when they are bound, and is refused when they are not."""

    name = "Gang"
    retry_on = CAPACITY_EVENTS

    def __init__(self, handle: Handle = DETACHED) -> None:
        self._handle = handle
        self._late: dict[tuple[str, str, str], set[Key]] = {}

    def reserve(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        """Nothing: its room is counted already."""

    def unreserve(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        if request.member is None:
            return
        late = self._late.get(request.member.gang, set())
        if request.key in late:
            self._forget(request.member, request.key)
        else:
            self._end(request.member, whole=False)

    def permit(self, state: CycleState, request: PlacementRequest, node: str) -> Wait | str | None:
        if request.member is None or state.find(self.name, GangBinding) is not None:
            return None
        gang_members = self._handle.gang_members(request)
        if gang_members is None or gang_members.bound >= gang_members.needed:
            return None
        self._late.setdefault(request.member.gang, set()).add(request.key)
        return Wait(request.member.seconds)

    def post_bind(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        together = state.find(self.name, GangBinding)
        if together is None:
            return
        together.left -= 1
        if not together.left and request.member is not None and request.member.gang in self._late:
            gang_members = self._handle.gang_members(request)
            self._end(request.member, whole=gang_members is None or gang_members.bound >= gang_members.needed)

    def _end(self, member: GangMembership, *, whole: bool) -> None:
        for key in self._late.pop(member.gang, ()):
            if whole:
                self._handle.approve(key, self.name)
            else:
                self._handle.reject(key, self.name, "the others of its gang could not be bound")

    def _forget(self, member: GangMembership, key: Key) -> None:
        late = self._late[member.gang]
        late.discard(key)
        if not late:
            del self._late[member.gang]
