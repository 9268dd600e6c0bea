"""Controllers and scheduler together, on a clock that is turned by hand."""

from __future__ import annotations

import ast
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import mandor
from mandor.controllers.node_plan import NodeTimes
from mandor.model.instance import InstanceStatus
from mandor.model.node import Node, NodePhase
from mandor.model.phase import Phase
from mandor.model.workload import Release, Workload
from tests.scenarios.make import make_workload
from tests.scenarios.world import World


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        made.checks = [made.check_capacity, made.check_count]
        yield made


@pytest.mark.req("S0-5", "S0-9", "S0-10", "S0-11", "S2-2", "S2-13", "S2-16")
async def test_a_service_is_placed_and_runs(world: World) -> None:
    await world.add_nodes("n1", "n2", "n3")
    await world.apply(make_workload("web", replicas=3, cpu="1", memory="1Gi"))
    await world.until(lambda: world.serving_count("web") == 3)

    assert {each.node for each in world.instances()} == {"n1", "n2", "n3"}
    await world.run(2)
    status = world.workload("web").status
    assert (status.phase, status.release, status.wanted, status.ready) == ("Running", "web.1", 3, 3)


@pytest.mark.req("S0-11", "S0-12")
async def test_the_control_plane_gives_orders_and_carries_none_out(world: World) -> None:
    await world.add_nodes("n1")
    world.nodes["n1"].idle = True
    await world.apply(make_workload("web", replicas=2))
    await world.run(30)
    assert [each.phase for each in world.instances()] == [Phase.RESERVED, Phase.RESERVED]

    await world.apply(make_workload("web", replicas=1))
    await world.run(30)
    stopping = [each for each in world.instances() if each.spec.stop is not None]
    assert [each.phase for each in stopping] == [Phase.RESERVED], "ordered to stop, and nobody stopped it"

    world.nodes["n1"].idle = False
    await world.until(lambda: world.serving_count("web") == len(world.instances()) == 1)


@pytest.mark.req("S0-12")
def test_no_code_of_the_control_plane_can_start_a_process_or_reach_a_node() -> None:
    forbidden = {
        "subprocess",
        "socket",
        "os",
        "shutil",
        "aiohttp",
        "http",
        "websockets",
        "mandor.engines",
        "mandor.agent",
    }
    source = Path(mandor.__file__).parent
    files = [path for part in ("controllers", "scheduler", "placement") for path in (source / part).rglob("*.py")]
    assert len(files) > 30
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found = {name for name in names if name in forbidden or name.rpartition(".")[0] in forbidden}
            assert not found, f"{path.name} imports {found}"


@pytest.mark.req("S2-18")
async def test_replicas_go_up_and_down(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("web", replicas=2))
    await world.until(lambda: world.serving_count("web") == 2)
    await world.apply(make_workload("web", replicas=5))
    await world.until(lambda: world.serving_count("web") == 5)
    survivors = {each.meta.uid for each in world.instances() if each.spec.index < 2}

    await world.apply(make_workload("web", replicas=2))
    await world.until(lambda: len(world.instances()) == 2)

    assert {each.meta.uid for each in world.instances()} == survivors, "the newest go first"


@pytest.mark.req("S2-17", "S2-49")
async def test_a_failed_instance_is_replaced_elsewhere_after_a_pause(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("web", replicas=1, reschedule={"delay": "30s"}))
    await world.until(lambda: world.serving_count("web") == 1)
    first = world.instance("web-0")
    world.nodes[first.node].behave = lambda each: InstanceStatus(
        phase=Phase.FAILED, reason="CrashLoop", exit_code=1, since=world.clock.now()
    )
    await world.until(lambda: world.instance("web-0").phase is Phase.FAILED)
    await world.run(20)
    assert world.instance("web-0").phase is Phase.FAILED, "it waits for its delay"

    await world.until(lambda: world.serving_count("web") == 1)

    second = world.instance("web-0")
    assert second.meta.uid != first.meta.uid
    assert second.node != first.node
    assert (second.spec.attempt, second.spec.avoid) == (1, (first.node,))
    await world.run(2)
    assert "CrashLoop" in world.events("Replaced")[0].spec.message


@pytest.mark.req("S0-24", "S2-19", "S2-50")
async def test_a_node_that_goes_down_is_replaced_by_another(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("web", replicas=2, cpu="1"))
    await world.until(lambda: world.serving_count("web") == 2)
    world.nodes["n1"].alive = False
    await world.until(lambda: world.node_phase("n1") is NodePhase.SUSPECT)
    assert world.serving_count("web") == 2, "a suspect node keeps what it runs"

    await world.until(lambda: {each.node for each in world.instances()} == {"n2"})

    assert world.node_phase("n1") is NodePhase.DOWN
    await world.until(lambda: world.serving_count("web") == 2)
    await world.run(2)
    assert world.events("NodeDown")


@pytest.mark.req("S0-24")
async def test_a_suspect_node_gets_nothing_new(world: World) -> None:
    await world.add_nodes("n1", "n2")
    world.nodes["n1"].alive = False
    await world.run(25)
    assert world.node_phase("n1") is NodePhase.SUSPECT

    await world.apply(make_workload("web", replicas=4))
    await world.until(lambda: world.serving_count("web") == 4)

    assert {each.node for each in world.instances()} == {"n2"}


@pytest.mark.req("S2-50")
async def test_a_returning_node_stops_replaced_instances(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("web", replicas=2, cpu="1"))
    await world.until(lambda: world.serving_count("web") == 2)
    world.nodes["n1"].alive = False
    await world.until(lambda: {each.node for each in world.instances()} == {"n2"} and world.serving_count("web") == 2)
    assert world.nodes["n1"].running, "it goes on while it is cut off"

    world.nodes["n1"].alive = True
    await world.until(lambda: world.node_phase("n1") is NodePhase.READY)
    await world.run(2)

    assert not world.nodes["n1"].running
    assert world.serving_count("web") == 2


async def test_what_is_lost_and_not_replaced_goes_on_when_its_node_comes_back(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("db", replicas=1, disconnect={"replace": False}))
    await world.until(lambda: world.serving_count("db") == 1)
    first = world.instance("db-0")
    world.nodes[first.node].alive = False
    await world.until(lambda: world.instance("db-0").phase is Phase.LOST)
    await world.run(120)

    world.nodes[first.node].alive = True
    await world.until(lambda: world.serving_count("db") == 1)

    assert world.instance("db-0").meta.uid == first.meta.uid


async def test_nothing_is_replaced_while_there_is_no_node_to_go_to(world: World) -> None:
    await world.add_nodes("n1")
    await world.apply(make_workload("web", replicas=1))
    await world.until(lambda: world.serving_count("web") == 1)
    uid = world.instance("web-0").meta.uid
    world.nodes["n1"].alive = False
    await world.until(lambda: world.instance("web-0").phase is Phase.LOST)
    await world.run(60)
    assert world.instance("web-0").meta.uid == uid

    world.nodes["n1"].alive = True
    await world.until(lambda: world.serving_count("web") == 1)

    assert world.instance("web-0").meta.uid == uid, "it never stopped running, so it was not started again"


async def test_lost_instances_move_as_soon_as_a_node_appears(world: World) -> None:
    await world.add_nodes("n1")
    await world.apply(make_workload("web", replicas=1))
    await world.until(lambda: world.serving_count("web") == 1)
    world.nodes["n1"].alive = False
    await world.until(lambda: world.instance("web-0").phase is Phase.LOST)

    await world.add_nodes("n2")
    await world.until(lambda: world.serving_count("web") == 1)

    assert world.instance("web-0").node == "n2"


async def test_a_workload_decides_how_long_its_node_may_be_silent(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("quick", disconnect={"lost_after": "25s"}, where=[{"rule": "node == n1"}]))
    await world.apply(make_workload("patient", disconnect={"lost_after": "5m"}, where=[{"rule": "node == n1"}]))
    await world.until(lambda: world.serving_count("quick") == 1 and world.serving_count("patient") == 1)
    world.nodes["n1"].alive = False
    await world.run(40)
    assert world.instance("quick-0").phase is Phase.PENDING, "replaced, and bound to wait for n1"
    assert world.instance("patient-0").phase is Phase.RUNNING

    await world.run(240)
    assert world.instance("patient-0").phase is Phase.RUNNING
    await world.run(60)
    assert world.instance("patient-0").phase is Phase.PENDING


async def test_after_an_outage_of_the_control_plane_everyone_gets_a_fresh_grace(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("web", replicas=2))
    await world.until(lambda: world.serving_count("web") == 2)
    uids = {each.meta.uid for each in world.instances()}

    world.serving = False
    await world.run(600, step=5)
    assert {world.node_phase("n1"), world.node_phase("n2")} == {NodePhase.READY}
    world.serving = True
    await world.run(30)

    assert {each.meta.uid for each in world.instances()} == uids
    assert world.serving_count("web") == 2


async def test_a_controller_that_was_paused_marks_no_node_silent(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("web", replicas=2))
    await world.until(lambda: world.serving_count("web") == 2)
    await world.kill("controllers")
    world.nodes["n1"].alive = False
    await world.run(300, step=5)

    world.start_controllers()
    await world.run(10)
    assert world.node_phase("n1") is NodePhase.READY, "its silence counts from now"
    await world.run(60)
    assert world.node_phase("n1") is NodePhase.DOWN


async def test_mass_silence_is_answered_one_node_at_a_time() -> None:
    async with World(times=NodeTimes(trickle_seconds=100)) as world:
        await world.add_nodes("n1", "n2", "n3", "n4", "n5")
        await world.apply(make_workload("web", replicas=5, cpu="2"))
        await world.until(lambda: world.serving_count("web") == 5)
        for name in ("n1", "n2", "n3"):
            world.nodes[name].alive = False

        await world.run(90)

        down = [name for name in world.nodes if world.node_phase(name) is NodePhase.DOWN]
        assert len(down) == 1
        await world.run(1)
        assert "3 of 5 nodes" in world.events("MassSilence")[0].spec.message

        world.nodes["n1"].alive = world.nodes["n2"].alive = world.nodes["n3"].alive = True
        await world.until(lambda: world.serving_count("web") == 5)


async def test_an_instance_whose_node_was_deleted_is_replaced(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("web", replicas=1))
    await world.until(lambda: world.serving_count("web") == 1)
    gone = world.nodes.pop(world.instance("web-0").node).name
    node = world.find(Node, gone, "")
    assert node is not None
    await world.delete(node)

    await world.until(lambda: world.serving_count("web") == 1 and world.instance("web-0").node != gone)


async def test_a_deleted_workload_leaves_nothing_behind(world: World) -> None:
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("web", replicas=3))
    await world.apply(make_workload("huge", replicas=2, cpu="100"))
    await world.until(lambda: world.serving_count("web") == 3)

    await world.delete(world.workload("web"))
    await world.delete(world.workload("huge"))
    await world.until(lambda: not world.instances() and not world.all(Release))

    assert not any(node.running for node in world.nodes.values())


async def test_an_instance_deleted_by_a_user_comes_back_new(world: World) -> None:
    await world.add_nodes("n1")
    await world.apply(make_workload("web", replicas=1))
    await world.until(lambda: world.serving_count("web") == 1)
    first = world.instance("web-0")
    await world.stop_instance("web-0")
    await world.until(lambda: world.instance("web-0").meta.uid != first.meta.uid and world.serving_count("web") == 1)
    assert world.instance("web-0").spec.attempt == 0


async def test_the_controller_does_not_wait_for_a_waiting_instance_that_is_stopped(world: World) -> None:
    await world.apply(make_workload("web", replicas=1))
    await world.until(lambda: bool(world.instances()))
    first = world.instance("web-0")
    await world.run(3)
    await world.stop_instance("web-0")
    await world.until(lambda: world.instance("web-0").meta.uid != first.meta.uid)


async def test_what_a_node_refuses_is_placed_elsewhere_and_counts_as_no_failure(world: World) -> None:
    await world.add_nodes("n1", "n2")
    for node in world.nodes.values():
        node.behave = lambda each: (
            InstanceStatus(phase=Phase.FAILED, reason="Refused", since=world.clock.now()) if each.node == "n1" else None
        )
    await world.apply(make_workload("web", replicas=4))

    await world.until(lambda: world.serving_count("web") == 4 and {each.node for each in world.instances()} == {"n2"})

    assert {each.spec.attempt for each in world.instances()} == {0}


def succeeding(world: World, seconds: float) -> None:
    for node in world.nodes.values():
        node.behave = lambda each: (
            InstanceStatus(phase=Phase.SUCCEEDED, reason="Completed", exit_code=0, since=world.clock.now())
            if world.clock.now() - each.status.since >= seconds
            else None
        )


async def test_a_batch_runs_every_index_once_and_never_more_at_once_than_it_may(world: World) -> None:
    await world.add_nodes("n1", "n2")
    succeeding(world, seconds=3)
    most = 0

    def watch() -> None:
        nonlocal most
        most = max(most, sum(not each.phase.over for each in world.instances("sum")))

    world.checks = [world.check_capacity, watch]
    await world.apply(make_workload("sum", type="batch", batch={"completions": 7, "parallelism": 3}))
    await world.until(lambda: world.workload("sum").status.phase == "Succeeded")

    assert most == 3
    assert world.workload("sum").status.succeeded == 7
    assert [each.spec.attempt for each in world.instances("sum")] == [0] * 7
    uids = {each.meta.uid for each in world.instances("sum")}
    await world.run(60, step=5)
    assert {each.meta.uid for each in world.instances("sum")} == uids, "it is done"


async def test_a_batch_fails_when_an_index_has_failed_too_often(world: World) -> None:
    await world.add_nodes("n1", "n2")
    for node in world.nodes.values():
        node.behave = lambda each: (
            InstanceStatus(phase=Phase.FAILED, reason="Error", exit_code=3, since=world.clock.now())
            if each.spec.index == 1
            else None
        )
    await world.apply(
        make_workload(
            "sum",
            type="batch",
            batch={"completions": 3, "parallelism": 3, "retries": 2},
            reschedule={"delay": "5s", "max_delay": "10s"},
        )
    )
    await world.until(lambda: world.workload("sum").status.phase == "Failed")
    await world.run(5)

    assert world.instance("sum-1").spec.attempt == 2
    assert "sum-1 failed 3 times" in world.workload("sum").status.message
    assert all(each.phase.over for each in world.instances("sum")), "the others were stopped"


async def test_a_batch_that_misses_its_deadline_fails(world: World) -> None:
    await world.add_nodes("n1")
    await world.apply(make_workload("slow", type="batch", batch={"deadline": "1m"}))
    await world.until(lambda: world.serving_count("slow") == 1)
    await world.run(50)
    assert world.workload("slow").status.phase == "Running"
    await world.run(15)
    assert world.workload("slow").status.phase == "Failed"
    assert "deadline of 1m" in world.workload("slow").status.message
    assert world.instance("slow-0").phase is Phase.STOPPED


async def test_a_restart_runs_a_finished_batch_again(world: World) -> None:
    await world.add_nodes("n1")
    succeeding(world, seconds=1)
    await world.apply(make_workload("sum", type="batch", batch={"completions": 2}))
    await world.until(lambda: world.workload("sum").status.phase == "Succeeded")
    uids = {each.meta.uid for each in world.instances("sum")}

    await world.apply(make_workload("sum", type="batch", batch={"completions": 2}, restarted=1))
    await world.until(lambda: world.workload("sum").status.release == "sum.2")
    await world.until(lambda: world.workload("sum").status.phase == "Succeeded")

    assert not uids & {each.meta.uid for each in world.instances("sum")}


async def test_two_workloads_that_want_one_name_never_share_it(world: World) -> None:
    """Group `web` of `shop` and the flat workload `shop-web` both have a `shop-web-0`."""
    await world.add_nodes("n1")
    flat = make_workload("shop-web", replicas=2)
    grouped = make_workload("shop", replicas=2)
    group = next(iter(grouped.spec.groups.values()))
    spec = type(grouped.spec)(groups={"web": group})
    await world.apply(flat)
    await world.until(lambda: world.serving_count("shop-web") == 2)

    await world.apply(Workload(meta=grouped.meta, spec=spec))
    await world.until(lambda: world.serving_count("shop") == 2)

    assert [each.meta.name for each in world.instances("shop")] == ["shop-web-2", "shop-web-3"]


async def test_old_releases_are_forgotten_but_for_the_last_ten(world: World) -> None:
    await world.add_nodes("n1")
    for number in range(14):
        await world.apply(make_workload("web", replicas=0, env={"V": str(number)}))
        await world.run(1)
    assert [each.spec.sequence for each in sorted(world.all(Release), key=lambda each: each.spec.sequence)] == list(
        range(5, 15)
    )
