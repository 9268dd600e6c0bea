"""Traces of failed attempts have a reason and a limit; bursts are placed in batches."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from mandor.model.node import Node
from mandor.model.resources import Resources
from mandor.placement.fast import FEW_NODES
from mandor.scheduler import tracing
from mandor.store.base import Put
from mandor.store.traced import TracedStore
from mandor.telemetry.span import Span, within
from mandor.telemetry.tracer import Tracer
from tests.scenarios.make import make_workload
from tests.scenarios.world import World


async def play(tracer: Tracer, *, tries: int, nodes: int = 2) -> tuple[list[Span], World]:
    """A workload that fits nowhere, for so many tries, and then somewhere."""
    world = World()
    world.controller_store = TracedStore(world.store, "memory", world.clock.now)
    world.scheduler_options = {"tracer": tracer}
    with within(tracer.begin("everything")):
        async with world:
            names = [f"n{number}" for number in range(1, nodes + 1)]
            await world.add_nodes(*names, cpu=4)
            for name in names:
                await world.change_node(name, cordoned=True)
            await world.apply(make_workload("web", replicas=1))
            await world.run(2)
            for number in range(tries - 1):
                await world.change_node("n1", cordoned=True, reserved=Resources(number + 1))
                await world.run(15)
            closed = [each for each in world.all(Node) if each.spec.cordoned]
            await world.store.commit(*(Put(each.changed(spec=replace(each.spec, cordoned=False))) for each in closed))
            await world.until(lambda: world.serving_count("web") == 1)
    return tracer.take(100_000), world


@pytest.mark.req("S2-43")
async def test_a_refusal_is_an_attempt_with_its_reason() -> None:
    spans, world = await play(Tracer(), tries=1)
    attempts = [each for each in spans if each.name == "schedule"]
    first, *_, last = attempts
    assert first.attributes["error.type"] == "Unschedulable"
    assert "NodeUnschedulable" in (first.failure or "")
    assert last.failure is None
    assert last.attributes["mandor.node"] == world.instance("web-0").node
    below = [each.name for each in spans if each.parent_id == last.context.span_id]
    assert {"PreFilter", "Filter", "PreScore", "Score", "Bind"} <= set(below)
    assert world.instance("web-0").meta.trace is not None


async def test_the_number_of_traced_refusals_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "ATTEMPTS_MOST", 1)
    spans, _ = await play(Tracer(), tries=4)
    attempts = [each for each in spans if each.name == "schedule"]
    assert [each.failure is None for each in attempts] == [False, True]
    ids = {each.context.span_id for each in attempts}
    assert all(each.parent_id in ids for each in spans if each.name == "Filter"), "what is not told of leaves nothing"


async def test_what_is_over_the_budget_is_placed_the_quick_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "NODES_EACH_SECOND", 0)
    spans, world = await play(Tracer(), tries=1, nodes=FEW_NODES + 1)
    last = [each for each in spans if each.name == "schedule"][-1]
    assert last.attributes["mandor.step_by_step"] is False
    assert last.attributes["mandor.node"] == world.instance("web-0").node
