"""Roll-outs of a whole control plane, on a clock that is turned by hand."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from mandor.controllers import replicas
from mandor.errors import Conflict
from mandor.model.node import Drain
from mandor.model.phase import Phase
from mandor.model.rollout import Rollout
from mandor.model.workload import Release, Workload, template_hash
from mandor.store.base import Put
from tests.scenarios.make import make_group, make_workload
from tests.scenarios.world import World

QUICK = {"min_healthy": "5s", "deadline": "60s"}


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        made.checks = [made.check_capacity, made.check_count]
        await made.add_nodes("n1", "n2", "n3", "n4")
        yield made


def rollout(world: World, name: str = "web") -> Rollout:
    found = world.workload(name).status.rollout
    assert found is not None
    return found


def web(version: str = "1", replicas: int = 4, update: dict[str, Any] | None = None, **fields: Any) -> Workload:
    return make_workload("web", replicas=replicas, env={"V": version}, update={**QUICK, **(update or {})}, **fields)


async def running(world: World, wanted: Workload) -> None:
    """Apply a workload and wait until its roll-out is done."""
    await world.apply(wanted)
    await world.until(lambda: _through(world, template_hash(wanted.spec.template)))


def _through(world: World, template: str) -> bool:
    found = world.workload("web").status.rollout
    release = world.find(Release, found.release) if found is not None else None
    return found is not None and found.phase == "Done" and release is not None and release.spec.hash == template


async def order(world: World, **orders: Any) -> None:
    while True:
        found = world.workload("web")
        given = replace(found.spec.rollout, **orders)
        try:
            await world.store.commit(Put(found.changed(spec=replace(found.spec, rollout=given))))
        except Conflict:
            continue
        return


def releases(world: World) -> list[str]:
    return sorted(each.spec.release for each in world.instances("web") if not each.phase.over)


def watch_serving(world: World) -> list[int]:
    counts: list[int] = []
    world.checks.append(lambda: counts.append(sum(replicas.serving(each) for each in world.instances("web"))))
    return counts


def break_new_ones(world: World, *, broken: bool = True) -> None:
    for node in world.nodes.values():
        node.ready = not broken


@pytest.mark.req("S2-16", "S2-18")
async def test_by_default_a_new_one_serves_before_an_old_one_stops(world: World) -> None:
    await running(world, web("1"))
    serving = watch_serving(world)
    await running(world, web("2"))
    await world.until(lambda: releases(world) == ["web.2"] * 4)
    assert min(serving) >= 4
    assert rollout(world).proven == ("web.1", "web.2")
    await world.run(2)
    assert [each.spec.message for each in world.events("RolloutStarted")] == [
        "rolling out web.2, replacing web.1: main.tasks.main.env.V"
    ]
    assert world.events("RolloutDone")
    assert world.workload("web").status.phase == "Running"
    await running(world, web("1"))
    assert [each.spec.cause for each in sorted(world.all(Release), key=lambda each: each.spec.sequence)] == [
        "first release",
        "main.tasks.main.env.V",
        "same template as web.1",
    ]


@pytest.mark.req("S2-16")
@pytest.mark.parametrize(("away", "least"), [(1, 3), ("50%", 2)])
async def test_stop_first_takes_no_more_away_than_may_be_and_keeps_the_names(
    world: World, away: int | str, least: int
) -> None:
    update = {"order": "stop-first", "max_unavailable": away}
    await running(world, web("1", update=update))
    serving = watch_serving(world)
    existing: list[int] = []
    world.checks.append(lambda: existing.append(sum(not replicas.ended(each) for each in world.instances())))
    await running(world, web("2", update=update))
    assert min(serving) == least
    assert max(existing) == 4
    assert [each.meta.name for each in world.instances()] == ["web-0", "web-1", "web-2", "web-3"]


async def test_each_instance_that_has_a_volume_of_its_own_is_followed_by_one_that_gets_it(world: World) -> None:
    volumes = {"data": {"type": "local", "per_instance": True}}
    world.checks.append(world.check_volumes)
    await running(world, web("1", replicas=2, volumes=volumes))
    before = {each.meta.name: each.node for each in world.instances()}
    await running(world, web("2", replicas=2, volumes=volumes))
    assert {each.meta.name: each.node for each in world.instances()} == before


@pytest.mark.req("S2-17")
async def test_what_never_gets_healthy_goes_back_at_its_deadline(world: World) -> None:
    await running(world, web("1"))
    before = {each.meta.uid for each in world.instances()}
    serving = watch_serving(world)
    break_new_ones(world)
    await world.apply(web("2"))
    await world.run(50)
    assert releases(world) == ["web.1"] * 4 + ["web.2"]
    status = world.workload("web").status
    assert status.phase == "Updating"
    assert status.message == "0 of 4 updated to web.2; web-4 is not ready"
    assert 0 < rollout(world).fails_at - world.clock.now() <= 60
    await world.until(lambda: rollout(world).phase == "RolledBack")
    assert {each.meta.uid for each in world.instances()} == before, "those that served were not touched"
    assert min(serving) >= 4
    status = world.workload("web").status
    assert (status.phase, status.release) == ("Running", "web.2")
    assert status.message == (
        "web.2 failed, rolled back to web.1: no further instance became healthy within 1m; web-4 is not ready"
    )
    await world.run(300, step=2)
    assert len(world.events("RollingBack")) == len(world.events("RolledBack")) == 1
    assert {each.meta.uid for each in world.instances()} == before, "and that was all"

    break_new_ones(world, broken=False)
    await running(world, web("3"))
    assert releases(world) == ["web.3"] * 4


async def test_without_auto_rollback_it_stops_where_it_is_and_an_undo_goes_back(world: World) -> None:
    update = {"auto_rollback": False}
    await running(world, web("1", update=update))
    break_new_ones(world)
    await world.apply(web("2", update=update))
    await world.until(lambda: rollout(world).phase == "Failed")
    await world.run(120, step=2)
    assert releases(world) == ["web.1"] * 4 + ["web.2"]
    assert "`mandor rollout undo web` rolls back" in world.workload("web").status.message
    kept = {each.meta.uid for each in world.instances() if each.spec.release == "web.1"}
    await running(world, web("1", update=update))
    assert {each.meta.uid for each in world.instances()} == kept, "they are what is wanted again"
    assert rollout(world).release == "web.1"


async def test_the_first_release_has_nothing_to_go_back_to_and_reports_it(world: World) -> None:
    break_new_ones(world)
    await world.apply(web("1"))
    await world.until(lambda: world.workload("web").status.rollout is not None and rollout(world).phase == "Failed")
    assert "apply a corrected manifest" in world.workload("web").status.message
    break_new_ones(world, broken=False)
    await running(world, web("2"))
    assert releases(world) == ["web.2"] * 4


async def test_canaries_wait_until_they_are_promoted(world: World) -> None:
    await running(world, web("1", update={"canary": 2}))
    serving = watch_serving(world)
    await world.apply(web("2", update={"canary": 2}))
    await world.until(lambda: rollout(world).phase == "Waiting")
    await world.run(200, step=2)
    assert releases(world) == ["web.1"] * 4 + ["web.2"] * 2, "there is no deadline for a decision"
    assert "`mandor rollout promote web` continues" in world.workload("web").status.message
    await order(world, promoted="web.2")
    await world.until(lambda: rollout(world).phase == "Done")
    assert releases(world) == ["web.2"] * 4
    assert min(serving) >= 4
    await world.run(2)
    assert world.events("RolloutWaiting")
    assert world.events("RolloutPromoted")


async def test_canaries_that_are_given_up_go_and_the_others_stay(world: World) -> None:
    await running(world, web("1", update={"canary": 1}))
    before = {each.meta.uid for each in world.instances()}
    await world.apply(web("2", update={"canary": 1}))
    await world.until(lambda: rollout(world).phase == "Waiting")
    await order(world, aborted="web.2")
    await world.until(lambda: rollout(world).phase == "RolledBack")
    assert {each.meta.uid for each in world.instances()} == before


async def test_healthy_canaries_promote_themselves_where_they_may_and_others_go_back(world: World) -> None:
    update = {"canary": 1, "auto_promote": True}
    await running(world, web("1", update=update))
    await running(world, web("2", update=update))
    break_new_ones(world)
    await world.apply(web("3", update=update))
    await world.until(lambda: rollout(world).phase == "RolledBack")
    assert releases(world) == ["web.2"] * 4


async def test_blue_green_starts_a_whole_second_set_and_then_all_of_the_first_goes(world: World) -> None:
    update = {"strategy": "blue-green"}
    await running(world, web("1", update=update))
    await world.apply(web("2", update=update))
    await world.until(lambda: rollout(world).phase == "Waiting")
    assert releases(world) == ["web.1"] * 4 + ["web.2"] * 4
    serving = watch_serving(world)
    await order(world, promoted="web.2")
    await world.run(3)
    assert releases(world) == ["web.2"] * 4
    assert min(serving) >= 4
    await world.until(lambda: rollout(world).phase == "Done")


async def test_a_paused_roll_out_updates_nothing_replaces_crashes_and_can_be_scaled(world: World) -> None:
    await running(world, web("1"))
    await world.apply(web("2"))
    await world.until(lambda: rollout(world).phase == "Progressing" and rollout(world).groups["main"].healthy == 1)
    await order(world, paused=True)
    await world.until(lambda: rollout(world).phase == "Paused")
    await world.run(20)
    before = releases(world)
    await world.run(200, step=2)
    assert releases(world) == before
    victim = next(each for each in world.instances() if each.spec.release == "web.1")
    await world.stop_instance(victim.meta.name)
    await world.until(lambda: releases(world) == before and world.serving_count("web") == len(before))
    await world.apply(web("2", replicas=7).changed(spec=_paused(web("2", replicas=7))))
    await world.until(lambda: world.serving_count("web") == 7)
    assert releases(world).count("web.2") == before.count("web.2")
    await order(world, paused=False)
    await world.until(lambda: rollout(world).phase == "Done")
    assert releases(world) == ["web.2"] * 7


def _paused(workload: Workload) -> Any:
    return replace(workload.spec, rollout=replace(workload.spec.rollout, paused=True))


async def test_a_second_apply_goes_on_from_where_things_are(world: World) -> None:
    await running(world, web("1"))
    untouched = {each.meta.uid for each in world.instances()}
    await world.apply(web("2"))
    await world.until(lambda: releases(world).count("web.2") >= 2)
    await world.apply(web("1"))
    await world.until(lambda: rollout(world).phase == "Done" and rollout(world).release == "web.1")
    assert releases(world) == ["web.1"] * 4
    assert len(untouched & {each.meta.uid for each in world.instances()}) >= 2, "those that still ran are kept"
    await world.apply(web("2"))
    await world.run(8)
    await world.apply(web("3"))
    await world.until(lambda: rollout(world).phase == "Done")
    assert set(releases(world)) == {world.workload("web").status.release}


async def test_groups_go_at_their_own_pace_and_back_together(world: World) -> None:
    def shop(version: str) -> Workload:
        made = web(version)
        groups = {
            "front": make_group(replicas=3, env={"V": version}, update=QUICK),
            "back": make_group(replicas=2, env={"V": version}, update={**QUICK, "max_surge": 2}),
        }
        return made.changed(spec=replace(made.spec, groups=groups))

    await running(world, shop("1"))
    await running(world, shop("2"))
    break_new_ones(world)
    await world.apply(shop("3"))
    await world.run(20)
    assert world.workload("web").status.message.startswith("back 0 of 2, front 0 of 3 updated to web.3")
    await world.until(lambda: rollout(world).phase == "RolledBack")
    assert set(releases(world)) == {"web.2"}


async def test_a_crash_of_the_controllers_in_the_middle_changes_nothing(world: World) -> None:
    await running(world, web("1"))
    serving = watch_serving(world)
    await world.apply(web("2"))
    for _ in range(6):
        await world.run(3)
        await world.kill("controllers")
        await world.run(1)
        world.start_controllers()
    await world.until(lambda: rollout(world).phase == "Done")
    assert min(serving) >= 4
    assert releases(world) == ["web.2"] * 4


@pytest.mark.req("S2-17", "S2-50", "S0-24")
@pytest.mark.parametrize("seed", range(8))
async def test_a_roll_out_completes_although_nodes_and_controllers_die(world: World, seed: int) -> None:
    chance = random.Random(seed)
    ways: list[dict[str, Any]] = [{}, {"order": "stop-first"}, {"canary": 1, "auto_promote": True}, {"max_surge": 2}]
    update = chance.choice(ways)
    await running(world, web("1", update=update))
    await world.apply(web("2", update={**update, "deadline": "10m"}))
    for _ in range(6):
        what = chance.choice(["node", "controllers", "scheduler", "agent", "wait"])
        name = chance.choice(sorted(world.nodes))
        if what == "node" and sum(not node.alive for node in world.nodes.values()) < 2:
            world.nodes[name].alive = False
        elif what in {"controllers", "scheduler"}:
            await world.kill(what)
            await world.run(2, step=1)
            (world.start_controllers if what == "controllers" else world.start_scheduler)()
        elif what == "agent":
            world.nodes[name].idle = not world.nodes[name].idle
        await world.run(chance.choice([5, 30, 90]), step=1)
    for node in world.nodes.values():
        node.alive, node.idle = True, False
    await world.until(lambda: rollout(world).phase == "Done", seconds=900)
    await world.until(lambda: world.serving_count("web") == len(world.instances()) == 4)
    assert releases(world) == ["web.2"] * 4
    assert all(each.phase is Phase.RUNNING for each in world.instances())


@pytest.mark.parametrize("update", [{}, {"order": "stop-first"}, {"canary": 1}], ids=["start", "stop", "canary"])
async def test_a_drain_in_the_middle_and_the_roll_out_both_come_to_their_end(
    world: World, update: dict[str, Any]
) -> None:
    await running(world, web("1", replicas=6, update=update))
    least = 6 - world.workload("web").spec.groups["main"].update_room()[1]
    serving = watch_serving(world)
    world.checks.remove(world.check_count)  # those who leave a node have others beside them
    await world.apply(web("2", replicas=6, update=update))
    await world.run(4)
    await world.change_node("n1", drain=Drain())
    await world.run(30)
    await order(world, promoted="web.2")
    await world.until(lambda: rollout(world).phase == "Done")
    await world.until(lambda: not [each for each in world.instances() if each.node == "n1"])
    await world.until(lambda: world.serving_count("web") == len(world.instances()) == 6)
    assert releases(world) == ["web.2"] * 6
    # Without a budget of its own, a drain that has to stop first asks nobody.
    assert min(serving) >= least - (update == {"order": "stop-first"})
