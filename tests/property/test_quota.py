"""Quotas hold, whatever comes and goes; and what they leave room for is not refused because of them."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.model.meta import Key
from mandor.placement.cycle import decide
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.quotas import Quota
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import GI, make_node, make_template

SHAPES = [Shape.of(make_template(cpu=cpu, memory=f"{memory}Gi")) for cpu, memory in (("1", 0), ("2", 1), ("500m", 2))]
CLASSES = ["", "low", "high"]
PLACE, END = "place", "end"
STEPS = st.lists(
    st.tuples(st.sampled_from([PLACE, PLACE, END]), st.integers(0, 2), st.integers(0, 2), st.booleans()), max_size=40
)
AMOUNTS = {"cpu": st.integers(0, 8000), "memory": st.integers(0, 8 * GI), "instances": st.integers(0, 8)}
LIMITS = st.fixed_dictionaries({}, optional=AMOUNTS)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, whole=LIMITS, low=LIMITS)
def test_no_quota_is_ever_exceeded_and_none_refuses_what_it_has_room_for(
    steps: list[tuple[str, int, int, bool]], whole: dict[str, int], low: dict[str, int]
) -> None:
    table, profile = Table(), default_profile()
    table.set_node(make_node("n1", cpu=64, memory=64 * GI))
    table.set_quota("own", Quota("whole", whole))
    table.set_quota("own", Quota("low", low, "low"))
    placed: list[PlacementRequest] = []
    for number, (step, shape, priority_class, own) in enumerate(steps):
        if step == END:
            if placed:
                table.drop_allocation(placed.pop(0).key)
            continue
        namespace = "own" if own else "other"
        identity = Identity(namespace, f"w{shape}{priority_class}", "main", {}, CLASSES[priority_class])
        request = PlacementRequest(Key("instance", namespace, f"i{number}"), SHAPES[shape], identity=identity)
        decision = decide(profile, request, table.snapshot())
        wanted = {**dict(request.shape.wanted), "instances": 1}
        held = [whole, *([low] if identity.priority_class == "low" else [])] if own else []
        used = [_used(placed, ""), _used(placed, "low")]
        fits = all(
            counted.get(resource, 0) + amount <= most[resource]
            for most, counted in zip(held, used, strict=False)
            for resource, amount in wanted.items()
            if resource in most
        )
        assert bool(decision.node) == fits, decision.message
        if decision.node:
            table.set_allocation(request.key, decision.node, request.shape, request.identity)
            placed.append(request)


def _used(placed: list[PlacementRequest], priority_class: str) -> dict[str, int]:
    used: dict[str, int] = {}
    for request in placed:
        if request.key.namespace == "own" and priority_class in {"", request.identity.priority_class}:
            for resource, amount in {**dict(request.shape.wanted), "instances": 1}.items():
                used[resource] = used.get(resource, 0) + amount
    return used
