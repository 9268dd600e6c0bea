"""Gang: instances that belong together are placed together or not at all."""

from mandor.model.meta import Key
from mandor.placement.framework.ask import Ask, Membership
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.handle import DETACHED, Handle
from mandor.placement.framework.points import (
    ANYTHING,
    GangPlugin,
    PermitPlugin,
    PostBindPlugin,
    ReservePlugin,
    Together,
    Wait,
)


class Gang(GangPlugin, ReservePlugin, PermitPlugin, PostBindPlugin):
    """The members that make a gang whole go through in one cycle and are bound together. A late one, that is decided
    while these are on their way, waits for them: it follows when they are bound, and is refused when they are not."""

    name = "Gang"
    retry_on = ANYTHING

    def __init__(self, handle: Handle = DETACHED) -> None:
        self._handle = handle
        self._late: dict[tuple[str, str, str], set[Key]] = {}

    def reserve(self, state: CycleState, ask: Ask, node: str) -> None:
        """Nothing: its room is counted already."""

    def unreserve(self, state: CycleState, ask: Ask, node: str) -> None:
        if ask.member is None:
            return
        late = self._late.get(ask.member.gang, set())
        if ask.key in late:
            self._forget(ask.member, ask.key)
        else:
            self._end(ask.member, whole=False)

    def permit(self, state: CycleState, ask: Ask, node: str) -> Wait | str | None:
        if ask.member is None or state.find(self.name, Together) is not None:
            return None
        muster = self._handle.muster(ask)
        if muster is None or muster.bound >= muster.needed:
            return None
        self._late.setdefault(ask.member.gang, set()).add(ask.key)
        return Wait(ask.member.seconds)

    def post_bind(self, state: CycleState, ask: Ask, node: str) -> None:
        together = state.find(self.name, Together)
        if together is None:
            return
        together.left -= 1
        if not together.left and ask.member is not None and ask.member.gang in self._late:
            muster = self._handle.muster(ask)
            self._end(ask.member, whole=muster is None or muster.bound >= muster.needed)

    def _end(self, member: Membership, *, whole: bool) -> None:
        for key in self._late.pop(member.gang, ()):
            if whole:
                self._handle.approve(key, self.name)
            else:
                self._handle.reject(key, self.name, "the others of its gang could not be bound")

    def _forget(self, member: Membership, key: Key) -> None:
        late = self._late[member.gang]
        late.discard(key)
        if not late:
            del self._late[member.gang]
