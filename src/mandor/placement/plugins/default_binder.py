"""DefaultBinder: writes the placement to the store, in one batch with others."""

from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.handle import DETACHED, Handle
from mandor.placement.framework.points import BindPlugin
from mandor.placement.framework.request import PlacementRequest


class DefaultBinder(BindPlugin):
    """The last Bind plugin; it binds every instance that the others left."""

    name = "DefaultBinder"

    def __init__(self, handle: Handle = DETACHED) -> None:
        self._handle = handle

    async def bind(self, state: CycleState, request: PlacementRequest, node: str) -> bool:
        await self._handle.bind(request, node)
        return True
