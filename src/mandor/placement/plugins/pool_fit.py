"""PoolFit: a group that names a pool stays in it."""

from mandor.placement.framework.ask import Ask
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import NODES, SKIP, FilterPlugin, PreFilterPlugin, Skip
from mandor.placement.framework.snapshot import Snapshot


class PoolFit(PreFilterPlugin, FilterPlugin):
    name = "PoolFit"
    retry_on = NODES
    by_class = True

    def pre_filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Skip | None:
        return SKIP if ask.shape.pool is None else None

    def filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Mask:
        wanted = ask.shape.pool
        return nodes.pools.where((self.name, wanted), lambda pool: pool == wanted)

    def why(self, ask: Ask, nodes: Snapshot, refused: Mask) -> str:
        return f"not in the pool {ask.shape.pool}"
