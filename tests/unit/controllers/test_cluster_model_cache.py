"""The cluster model cache is built and updated in small steps."""

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
    """The number of nodes in the model at each step, and at the end."""
    found = [len(kept.board.nodes) if kept.board is not None else 0]
    for _ in kept.catch_up({Node.kind: mirror}):
        assert kept.board is not None
        found.append(len(kept.board.nodes))
    assert kept.board is not None
    return [*found, len(kept.board.nodes)]


async def test_the_model_is_built_and_updated_in_small_steps() -> None:
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
