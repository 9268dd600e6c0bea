"""Gang: the members of a gang are placed together or not at all."""

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
    """The members of a complete gang go through one cycle and are bound together. A member that is decided while they
    are being bound waits for them; it is bound after them, and denied if their bind fails."""

    name = "Gang"
    retry_on = CAPACITY_EVENTS

    def __init__(self, handle: Handle = DETACHED) -> None:
        self._handle = handle
        self._late: dict[tuple[str, str, str], set[Key]] = {}

    def reserve(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        """Do nothing; the table has counted the allocation."""

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
