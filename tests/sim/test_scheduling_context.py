"""Both cycles with plugins at every point: who is called when, what undoes what, and what runs beside what."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import NodePhase
from mandor.model.phase import Phase
from mandor.placement.built_in import DEFAULTS
from mandor.placement.decision import Decision
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.handle import Handle
from mandor.placement.framework.points import (
    BindPlugin,
    ClusterChange,
    ClusterEvent,
    FilterPlugin,
    Hint,
    PermitPlugin,
    Plugin,
    PostBindPlugin,
    PostFilterPlugin,
    PreBindPlugin,
    PreEnqueuePlugin,
    PreFilterPlugin,
    ReservePlugin,
    Wait,
)
from mandor.placement.framework.profile import Enabled, Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.snapshot import NodeView, Snapshot
from mandor.placement.plugins import default_preemption
from mandor.scheduler import deciding
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.deciding import Deciding, DecisionInProgress
from mandor.scheduler.watchdog import Watchdog
from mandor.store.base import Delete, Put
from tests.scenarios.make import make_workload
from tests.scenarios.world import World
from tests.sim.plugged import profiles


class Log:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, what: str, request: PlacementRequest) -> None:
        self.lines.append(f"{what} {request.key.name}")

    def of(self, name: str) -> list[str]:
        return [line.removesuffix(f" {name}") for line in self.lines if line.endswith(f" {name}")]


class Everywhere(ReservePlugin, PermitPlugin, PreBindPlugin, PostBindPlugin):
    """One object for four points, which it counts by itself."""

    def __init__(self, name: str = "Everywhere", log: Log | None = None, *, answer: Wait | str | None = None) -> None:
        self.name = name  # type: ignore[misc]
        self.log = log or Log()
        self.answer = answer
        self.fail_at: str = ""
        self.fail_times = 1_000_000

    def _do(self, what: str, state: CycleState, request: PlacementRequest) -> None:
        self.log.note(f"{self.name}.{what}", request)
        if self.fail_at == what and self.fail_times > 0:
            self.fail_times -= 1
            raise RuntimeError(f"no {what}")

    def reserve(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        state.write(self.name, node)
        self._do("reserve", state, request)

    def unreserve(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        self._do("unreserve", state, request)

    def permit(self, state: CycleState, request: PlacementRequest, node: str) -> Wait | str | None:
        assert state.read(self.name, str) == node, "one state for both cycles"
        self._do("permit", state, request)
        return self.answer

    async def pre_bind(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        assert state.read(self.name, str) == node
        self._do("pre_bind", state, request)

    def post_bind(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        assert state.read(self.name, str) == node
        self._do("post_bind", state, request)


def web(world: World, index: int = 0) -> Instance:
    return world.instance(f"web-{index}")


async def with_web(make_world: Any, *plugins: Plugin) -> World:
    """One node, and one workload of one instance."""
    world: World = await make_world(*plugins)
    await world.add_nodes("n1")
    await world.apply(make_workload("web"))
    return world


def key(name: str) -> Key:
    return Key(Instance.kind, "default", name)


@pytest.mark.req("S1-2", "S1-3", "S1-4", "S1-17", "S1-25", "S1-27")
async def test_one_object_serves_all_its_points_in_order_and_receives_the_end_once(make_world: Any) -> None:
    plugin = Everywhere()
    world = await make_world(plugin)
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("web", replicas=3))
    await world.until(lambda: world.serving_count("web") == 3)
    for index in range(3):
        assert plugin.log.of(f"web-{index}") == [
            f"Everywhere.{what}" for what in ("reserve", "permit", "pre_bind", "post_bind")
        ]


@pytest.mark.req("S1-7", "S1-36", "S1-26")
async def test_a_reserve_that_fails_is_undone_by_all_in_reverse_order_and_tried_again(make_world: Any) -> None:
    log = Log()
    first, second = Everywhere("First", log), Everywhere("Second", log)
    second.fail_at, second.fail_times = "reserve", 1
    world = await make_world(first, second)
    await world.add_nodes("n1")
    await world.run(2)
    await world.apply(make_workload("web"))
    await world.run(0.5)
    assert log.of("web-0") == ["First.reserve", "Second.reserve", "Second.unreserve", "First.unreserve"]
    assert web(world).status.reason == "PluginFault"
    assert web(world).status.message == "the plugin Second raised RuntimeError: no reserve"
    assert world.scheduler is not None
    assert world.scheduler.view.table.allocations == {}, "its room is free again"

    await world.until(lambda: world.serving_count("web") == 1, seconds=20)
    assert log.of("web-0")[-1] == "Second.post_bind"


@pytest.mark.req("S1-7", "S1-23")
async def test_a_pre_bind_that_fails_rejects_the_placement(make_world: Any) -> None:
    plugin = Everywhere()
    plugin.fail_at, plugin.fail_times = "pre_bind", 2
    world = await with_web(make_world, plugin)
    await world.until(lambda: world.serving_count("web") == 1, seconds=20)
    once = ["Everywhere.reserve", "Everywhere.permit", "Everywhere.pre_bind"]
    assert plugin.log.of("web-0") == [*once, "Everywhere.unreserve"] * 2 + [*once, "Everywhere.post_bind"]


@pytest.mark.req("S1-19")
async def test_a_denied_permit_gives_the_node_back_and_waits_for_what_the_plugin_cares_for(make_world: Any) -> None:
    plugin = Everywhere(answer="not today")
    world = await with_web(make_world, plugin)
    await world.run(2)
    assert plugin.log.of("web-0")[:3] == ["Everywhere.reserve", "Everywhere.permit", "Everywhere.unreserve"]
    assert web(world).status.message == "Everywhere does not permit it: not today"
    assert not web(world).node

    plugin.answer = None
    await world.add_nodes("n2")
    await world.until(lambda: world.serving_count("web") == 1, seconds=30)


@pytest.mark.req("S1-18", "S1-20", "S1-22")
async def test_an_instance_waiting_for_a_permit_is_listed_holds_its_room_and_continues(make_world: Any) -> None:
    handles: list[Handle] = []
    plugin = Everywhere(answer=Wait(60))

    def making(handle: Handle) -> list[Plugin]:
        handles.append(handle)
        return [plugin]

    world = await make_world(making=making)
    await world.add_nodes("n1", cpu=2)
    await world.apply(make_workload("web", replicas=2, cpu="1"))
    await world.run(3)
    (handle,) = handles
    assert [(each.key.name, each.node, each.plugins) for each in handle.waiting()] == [
        ("web-0", "n1", ("Everywhere",)),
        ("web-1", "n1", ("Everywhere",)),
    ]
    assert handle.snapshot().free[0].tolist() == [0], "counted while they wait"
    assert not handle.approve(key("web-0"), "Somebody"), "who has not told it to wait cannot approve"
    assert not handle.approve(key("web-7"), "Everywhere")
    assert handle.approve(key("web-0"), "Everywhere")
    assert handle.reject(key("web-1"), "Everywhere", "enough")
    assert not handle.reject(key("web-1"), "Everywhere"), "once is enough"
    await world.run(0.5)
    assert web(world, 0).node == "n1"
    assert web(world, 1).status.message == "Everywhere does not permit it: enough"
    assert plugin.log.of("web-1")[:3] == ["Everywhere.reserve", "Everywhere.permit", "Everywhere.unreserve"]


@pytest.mark.req("S1-21")
async def test_a_wait_that_runs_out_is_a_denial(make_world: Any) -> None:
    plugin = Everywhere(answer=Wait(5))
    world = await with_web(make_world, plugin)
    await world.run(4)
    assert plugin.log.of("web-0") == ["Everywhere.reserve", "Everywhere.permit"]
    await world.run(3)
    assert plugin.log.of("web-0")[2] == "Everywhere.unreserve"
    assert web(world).status.message == "Everywhere does not permit it: not approved in time"


@pytest.mark.req("S1-20", "S1-26")
async def test_an_instance_that_is_stopped_while_it_waits_for_a_permit_is_released(make_world: Any) -> None:
    plugin = Everywhere(answer=Wait(600))
    world = await with_web(make_world, plugin)
    await world.run(2)
    await world.apply(make_workload("web", replicas=0))
    await world.run(5)
    assert world.scheduler is not None
    assert world.scheduler.handle.waiting() == []
    assert plugin.log.of("web-0") == ["Everywhere.reserve", "Everywhere.permit", "Everywhere.unreserve"]
    assert world.scheduler.view.table.allocations == {}


class Crowd(PreFilterPlugin, FilterPlugin, PreBindPlugin):
    """Finds scheduling cycles that overlap, and counts the binding cycles that run at the same time."""

    name = "Crowd"

    def __init__(self) -> None:
        self.current = ""
        """The instance whose scheduling cycle has started and not ended."""
        self.overlaps: list[str] = []
        self.turn = self.first_turn = 0
        self.most_turns = 0
        """Turns of the event loop from the start of a scheduling cycle to its last call, at most."""
        self.binding = self.most_binding = 0
        self.open = asyncio.Event()

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)

    def ended(self, name: str) -> None:
        """Note that the decision about an instance was made."""
        if self.current not in {"", name}:
            self.overlaps.append(f"{name} ends in the cycle of {self.current}")
        self.current = ""

    def _called(self, name: str) -> None:
        if not self.current:
            self.current, self.first_turn = name, self.turn
        if name != self.current and not name.startswith("low"):  # A cycle also tries other nodes for its victims.
            self.overlaps.append(f"{name} is decided in the cycle of {self.current}")
        self.most_turns = max(self.most_turns, self.turn - self.first_turn)

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> None:
        self._called(request.key.name)

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        self._called(request.key.name)
        return nodes.pools.where(self.name, lambda pool: True)

    async def pre_bind(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        self.binding += 1
        self.most_binding = max(self.most_binding, self.binding)
        await self.open.wait()
        self.binding -= 1


@pytest.mark.req("S1-5")
async def test_no_scheduling_cycle_starts_while_another_one_takes_several_turns(
    make_world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(default_preemption, "PLAYED", 1)
    monkeypatch.setattr(deciding, "TURN", 1)
    crowd, record, finish = Crowd(), Deciding.record, Deciding.finish

    def recorded(self: Deciding, attempt: Attempt, *given: Any) -> None:
        crowd.ended(attempt.key.name)
        record(self, attempt, *given)

    async def finished(self: Deciding, running: DecisionInProgress) -> Decision | None:
        try:
            return await finish(self, running)
        finally:
            crowd.ended(running.attempt.key.name)

    monkeypatch.setattr(Deciding, "record", recorded)
    monkeypatch.setattr(Deciding, "finish", finished)
    crowd.open.set()
    world = await make_world(crowd)
    names = [f"n{number}" for number in range(4)]
    await world.add_nodes(*names, cpu=4)
    await world.apply(make_workload("low", replicas=16, cpu="1", priority=1))
    await world.until(lambda: world.serving_count("low") == 16)
    counting = asyncio.create_task(crowd.count_turns())
    for number in range(3):
        await world.apply(make_workload(f"high{number}", cpu="2", priority=10 + number))
    assert crowd.overlaps == []
    await world.until(lambda: all(world.serving_count(f"high{number}") == 1 for number in range(3)))
    counting.cancel()
    assert crowd.most_turns > 2, "no cycle was interrupted: the test shows nothing"
    assert crowd.overlaps == []


@pytest.mark.req("S1-6", "S1-16")
async def test_binding_cycles_run_at_the_same_time_and_their_room_is_counted(make_world: Any) -> None:
    crowd = Crowd()
    world = await make_world(crowd)
    await world.add_nodes("n1", cpu=4)
    await world.run(2)
    await world.apply(make_workload("web", replicas=6, cpu="1"))
    await world.run(3)
    assert crowd.most_binding == 4
    assert world.serving_count("web") == 0
    assert sum(not each.node for each in world.instances()) == 6, "four are being bound, two have no room"
    waiting = [each.meta.name for each in world.instances() if each.status.reason == "Unschedulable"]
    assert len(waiting) == 2, "an instance that is being bound takes its room"
    crowd.open.set()
    await world.until(lambda: world.serving_count("web") == 4)


class OwnBinder(BindPlugin):
    """Takes those of one workload, and writes them itself."""

    name = "OwnBinder"

    def __init__(self, world: list[World], *, lie: bool = False) -> None:
        self._world = world
        self.lie = lie
        self.asked: list[str] = []

    async def bind(self, state: CycleState, request: PlacementRequest, node: str) -> bool:
        self.asked.append(request.key.name)
        if not request.key.name.startswith("mine"):
            return False
        if not self.lie:
            world = self._world[0]
            await world.store.commit(Put(world.instance(request.key.name).bound(node, at=world.clock.now())))
        return True


@pytest.mark.req("S1-24")
async def test_binders_are_asked_in_order_and_the_first_that_takes_it_ends_the_chain(make_world: Any) -> None:
    worlds: list[World] = []
    binder, plugin = OwnBinder(worlds), Everywhere()
    world = await make_world(binder, plugin, first=True)
    worlds.append(world)
    await world.add_nodes("n1")
    await world.apply(make_workload("mine"))
    await world.apply(make_workload("web"))
    await world.until(lambda: world.serving_count("web") == 1 and world.serving_count("mine") == 1)
    assert sorted(binder.asked) == ["mine-0", "web-0"]
    assert plugin.log.of("mine-0")[-1] == plugin.log.of("web-0")[-1] == "Everywhere.post_bind"


async def test_a_binder_that_only_reports_it_binds_nothing(make_world: Any) -> None:
    worlds: list[World] = []
    binder, plugin = OwnBinder(worlds, lie=True), Everywhere()
    world = await make_world(binder, plugin, first=True)
    worlds.append(world)
    await world.add_nodes("n1")
    await world.apply(make_workload("mine"))
    await world.run(2)
    assert world.instance("mine-0").status.message == (
        "the plugin OwnBinder reported a bind to n1, but the instance is not bound there"
    )
    assert plugin.log.of("mine-0")[3] == "Everywhere.unreserve"


class Declines(BindPlugin):
    name = "Declines"

    async def bind(self, state: CycleState, request: PlacementRequest, node: str) -> bool:
        return False


async def test_when_no_binder_takes_it_the_placement_is_rejected(make_world: Any) -> None:
    world = await make_world()
    await world.kill("scheduler")
    usual = [Enabled(cls(), weight) for cls, weight in DEFAULTS if cls.name != "DefaultBinder"]
    world.scheduler_options = {"profiles": {"default": Profile("default", [*usual, Enabled(Declines())])}}
    world.start_scheduler()
    await world.add_nodes("n1")
    await world.apply(make_workload("web"))
    await world.run(2)
    assert web(world).status.message == "the plugin Declines would not bind it"


class Gate(PreEnqueuePlugin):
    name = "Gate"
    retry_on = frozenset({ClusterEvent.NODE_ADDED})

    def __init__(self) -> None:
        self.closed = True

    def pre_enqueue(self, request: PlacementRequest) -> str | None:
        return "the gate is closed" if self.closed else None


@pytest.mark.req("S1-32")
async def test_a_gated_instance_waits_outside_the_queue_until_its_gate_opens(make_world: Any) -> None:
    gate, plugin = Gate(), Everywhere()
    world = await with_web(make_world, gate, plugin)
    await world.run(400, step=20)
    assert plugin.log.lines == [], "never tried, not even after five minutes"
    assert (web(world).status.reason, web(world).status.message) == ("Gated", "the gate is closed")
    gate.closed = False
    await world.add_nodes("n2")
    await world.until(lambda: world.serving_count("web") == 1, seconds=10)


@pytest.mark.req("S1-32")
async def test_a_workload_with_gates_is_let_in_when_they_are_taken_away(make_world: Any) -> None:
    world = await make_world()
    await world.add_nodes("n1")
    await world.apply(make_workload("web", gates=["audit", "licence"]))
    await world.run(10)
    assert web(world).status.message == "waits for audit, licence"
    release = web(world).spec.release
    await world.apply(make_workload("web", gates=["licence"]))
    await world.run(3)
    assert web(world).status.message == "waits for licence"
    await world.apply(make_workload("web"))
    await world.until(lambda: world.serving_count("web") == 1, seconds=10)
    assert web(world).spec.release == release, "a gate is no part of the release"


class MakesRoom(PostFilterPlugin):
    """Stands for preemption: nominates a node, and makes room there by itself."""

    def __init__(self, name: str, node: str | None) -> None:
        self.name = name  # type: ignore[misc]
        self.node = node
        self.asked: list[str] = []

    def post_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> str | None:
        self.asked.append(request.key.name)
        return self.node


@pytest.mark.req("S1-35")
async def test_when_nothing_fits_the_first_that_nominates_a_node_ends_it_and_the_instance_goes_there(
    make_world: Any,
) -> None:
    none, room, late = MakesRoom("None", None), MakesRoom("Room", "n1"), MakesRoom("Late", "n2")
    world = await make_world(none, room, late)
    await world.add_nodes("n1", "n2", cpu=1)
    await world.until(lambda: {world.node_phase(name) for name in ("n1", "n2")} == {NodePhase.READY})
    await world.apply(make_workload("old", replicas=2, cpu="1"))
    await world.until(lambda: world.serving_count("old") == 2)
    assert none.asked == [], "asked only when nothing fits"

    await world.apply(make_workload("new", cpu="1"))
    await world.run(2)
    assert (none.asked[0], room.asked[0], late.asked) == ("new-0", "new-0", [])
    assert "there will be room on n1" in world.instance("new-0").status.message

    await world.apply(make_workload("old", replicas=0, cpu="1"))  # room on both
    await world.until(lambda: world.serving_count("new") == 1, seconds=30)
    assert world.instance("new-0").node == "n1", "what was nominated is remembered"


class OnlyMarked(FilterPlugin):
    """Wants a mark, and knows that a new node without it changes nothing."""

    name = "OnlyMarked"
    retry_on = frozenset({ClusterEvent.NODE_ADDED})

    def __init__(self) -> None:
        self.tries = 0
        self.hints: list[str] = []

    def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
        self.tries += 1
        return "mark" in view.facts

    def hint(self, request: PlacementRequest, change: ClusterChange) -> Hint:
        assert change.node is not None
        self.hints.append(change.node.meta.name)
        return Hint.QUEUE if "mark" in change.node.meta.labels else Hint.SKIP


@pytest.mark.req("S1-33", "S1-34")
async def test_a_hint_saves_a_try_that_is_not_worthwhile(make_world: Any) -> None:
    plugin = OnlyMarked()
    world = await with_web(make_world, plugin)
    await world.run(15)
    before = plugin.tries
    await world.add_nodes("n2")
    await world.run(15)
    assert (plugin.hints, plugin.tries) == (["n2"], before)
    await world.add_nodes("n3", labels={"mark": "yes"})
    await world.until(lambda: web(world).node == "n3", seconds=15)


class Loops(FilterPlugin):
    """Never ends for one of them."""

    name = "Loops"

    def filter_node(self, state: CycleState, request: PlacementRequest, view: NodeView) -> bool:
        while request.key.name == "bad-0":
            try:
                pass
            except Exception:
                continue
        return True


@pytest.mark.req("S1-7")
async def test_a_loop_that_never_ends_is_broken_off_and_costs_only_its_instance(make_world: Any) -> None:
    world = await make_world(Loops(), watchdog=Watchdog(cpu_seconds=0.2, wall_seconds=5))
    await world.add_nodes("n1")
    await world.apply(make_workload("bad"))
    await world.apply(make_workload("web"))
    await world.until(lambda: world.serving_count("web") == 1)
    await world.run(1)
    bad = world.instance("bad-0")
    assert bad.status.message == "the plugin Loops exceeded its time limit and was interrupted"
    assert bad.phase is Phase.PENDING
    assert world.scheduler is not None
    assert world.scheduler.watchdog.spent["Filter", "Loops"].seconds > 0.1


@pytest.mark.req("S1-30", "S1-40")
async def test_each_workload_chooses_its_profile_and_all_share_one_queue(make_world: Any) -> None:
    world = await make_world()
    await world.kill("scheduler")
    special = Everywhere()

    def two(handle: Handle) -> dict[str, Profile]:
        return {**profiles(lambda handle: [])(handle), **profiles(lambda handle: [special], "special")(handle)}

    world.scheduler_options = {"profiles": two}
    world.start_scheduler()
    await world.add_nodes("n1")
    await world.apply(make_workload("web"))
    await world.apply(make_workload("vip", profile="special"))
    await world.until(lambda: world.serving_count("web") == 1 and world.serving_count("vip") == 1)
    assert {line.split()[1] for line in special.log.lines} == {"vip-0"}


@pytest.mark.req("S1-17")
async def test_when_the_scheduler_ends_plugins_unreserve_instances_that_are_not_bound(make_world: Any) -> None:
    plugin = Everywhere(answer=Wait(600))
    world = await with_web(make_world, plugin)
    await world.run(2)
    await world.kill("scheduler")
    assert plugin.log.of("web-0") == ["Everywhere.reserve", "Everywhere.permit", "Everywhere.unreserve"]


async def test_an_instance_that_vanishes_in_its_binding_cycle_is_unreserved(make_world: Any) -> None:
    crowd, plugin = Crowd(), Everywhere()
    world = await with_web(make_world, plugin, crowd)
    await world.run(2)
    await world.kill("controllers")
    await world.store.commit(Delete(key("web-0"), web(world).meta.version))
    crowd.open.set()
    world.checks = [world.check_capacity]
    await world.run(2)
    assert plugin.log.of("web-0")[-1] == "Everywhere.unreserve"
    assert plugin.log.of("web-0").count("Everywhere.unreserve") == 1
