"""Whether anybody traces it: the same is decided, step by step, whatever comes; and each trace is whole."""

from __future__ import annotations

import asyncio
import random
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.model.decision import DecisionRecord
from mandor.store.traced import TracedStore
from mandor.telemetry.otlp import encode
from mandor.telemetry.span import within
from mandor.telemetry.tracer import Tracer, span_queue
from tests.components.trace_receiver import check_whole, read
from tests.scenarios.make import make_workload
from tests.scenarios.world import World

PASSED = {"Queue", "Reserve", "Permit", "PreBind", "Bind"}
"""By every attempt that ends well; a gang's members are filtered and scored together, for one of them."""


async def play(seed: int, tracer: Tracer | None) -> list[Any]:
    """Return the decisions after each of some random steps."""
    dice = random.Random(seed)
    world = World(seed=str(seed))
    around: Any = nullcontext()
    if tracer is not None:
        world.controller_store = TracedStore(world.store, "memory", world.clock.now)
        world.scheduler_options = {"tracer": tracer}
        around = within(tracer.begin("everything"))
    story: list[Any] = []
    with around as span:
        async with world:
            await world.add_nodes("n1", "n2", "n3", cpu=3)
            for _ in range(6):
                name = dice.choice(["a", "b", "c"])
                if dice.randrange(4):
                    gang: dict[str, Any] = {"priority": dice.randrange(3), "gang": {}}
                    count, cpu = dice.randrange(5), dice.choice(["500m", "1", "2"])
                    await world.apply(
                        make_workload(name, replicas=count, cpu=cpu, **(gang if dice.randrange(4) == 0 else {}))
                    )
                else:
                    await world.change_node(dice.choice(["n1", "n2"]), cordoned=dice.random() < 0.5)
                await world.run(3)
                told = [(each.meta.name, each.spec.node, each.spec.message) for each in world.all(DecisionRecord)]
                story.append((world.phases(), sorted(told)))
    if tracer is not None:
        tracer.end(span)
    return story


@pytest.mark.req("S2-43")
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_traced_scheduler_decides_as_any_other(seed: int) -> None:
    tracer = Tracer(queue=span_queue(most_items=1_000_000))
    assert asyncio.run(play(seed, tracer)) == asyncio.run(play(seed, None))
    spans = read(encode(tracer.take(1_000_000), {"service.name": "tested"}))
    check_whole(spans)
    for each in spans:
        if each.name == "schedule" and each.status == 0:
            below = {other.name for other in spans if other.parent_id == each.span_id}
            assert below >= PASSED
