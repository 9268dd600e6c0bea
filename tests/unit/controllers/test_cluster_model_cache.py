"""The kept board is made, and brought up to date, in steps between which others have their turn."""

from __future__ import annotations

from itertools import pairwise

from mandor.controllers.cluster_model_cache import ClusterModelCache
from mandor.model.node import Node
from mandor.placement.cluster_model import STEP
from mandor.store.base import Change, Put
from mandor.store.memory import MemoryStore
from mandor.store.mirror import Mirror
from tests.scenarios.make import make_node


def sizes(kept: ClusterModelCache, mirror: Mirror) -> list[int]:
    """How many nodes the board has at each turn of the others, and in the end."""
    found = [len(kept.board.nodes) if kept.board is not None else 0]
    for _ in kept.catch_up({Node.kind: mirror}):
        assert kept.board is not None
        found.append(len(kept.board.nodes))
    assert kept.board is not None
    return [*found, len(kept.board.nodes)]


async def test_others_have_their_turn_after_every_few_objects_from_the_first_board_on() -> None:
    nodes = [make_node(f"n{number}", version=0) for number in range(4 * STEP + 3)]
    async with MemoryStore() as store, Mirror(store, Node.kind) as mirror:
        await mirror.synced()
        revision = await store.commit(*(Put(each) for each in nodes[: 3 * STEP]))
        await mirror.reached(revision)
        kept = ClusterModelCache([Node.kind])
        first = sizes(kept, mirror)
        assert first[-1] == 3 * STEP
        assert max(after - before for before, after in pairwise(first)) == STEP
        revision = await store.commit(*(Put(each) for each in nodes[3 * STEP :]))
        await mirror.reached(revision)
        kept.see([Change(revision, None, each) for each in nodes[3 * STEP :]])
        later = sizes(kept, mirror)
        assert later[-1] == len(nodes)
        assert max(after - before for before, after in pairwise(later)) == STEP
