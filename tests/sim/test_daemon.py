"""Daemons in a whole control plane, on a clock that is turned by hand."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from mandor.controllers import replicas
from mandor.errors import Conflict
from mandor.model.meta import Key
from mandor.model.node import Capabilities, Drain, Node, Taint
from mandor.model.phase import Phase
from mandor.model.rollout import Rollout
from mandor.model.workload import Workload
from mandor.store.base import Delete, Put
from tests.scenarios.make import GI, make_workload
from tests.scenarios.world import World

QUICK = {"min_healthy": "5s", "deadline": "60s"}
TAINT = Taint("role", "db")


def check_one_a_node(world: World) -> None:
    """Whatever happens: never two of a daemon on one node, neither as objects nor as what really runs."""
    alive = Counter((each.spec.workload, each.spec.pin) for each in world.instances() if each.spec.home)
    assert all(count == 1 for count in alive.values()), alive
    for node in world.nodes.values():
        running = [name for name in node.running.values() if name == f"exp-{node.name}"]
        assert len(running) <= 1, f"{node.name}: {node.running}"
    assert all(each.node in {"", each.spec.home} for each in world.instances() if each.spec.home), "each on its own"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        made.checks = [made.check_capacity, lambda: check_one_a_node(made)]
        await made.add_nodes("n1", "n2", "n3", "n4")
        yield made


def exporter(version: str = "1", update: dict[str, Any] | None = None, **fields: Any) -> Workload:
    settings = {**QUICK, **(update or {})}
    return make_workload("exp", type="daemon", env={"V": version}, update=settings, **fields)


def on(world: World, name: str = "exp") -> list[str]:
    """The nodes where one serves."""
    return sorted(each.node for each in world.instances(name) if replicas.serving(each))


def rollout(world: World) -> Rollout:
    return world.workload("exp").status.rollout or Rollout(release="", target="")


async def change(world: World, name: str, **fields: Any) -> None:
    """Something about a node that its agent or a user writes."""
    while True:
        node = world.find(Node, name, "")
        assert node is not None
        try:
            await world.store.commit(Put(node.changed(**{key: value(node) for key, value in fields.items()})))
        except Conflict:
            continue
        return


async def label(world: World, name: str, **labels: str) -> None:
    await change(world, name, meta=lambda node: replace(node.meta, labels=labels))


@pytest.mark.req("S3-3")
async def test_there_is_one_on_every_node_and_it_is_called_after_it(world: World) -> None:
    await world.apply(exporter())
    await world.until(lambda: len(on(world)) == 4)
    assert sorted(world.phases()) == ["exp-n1", "exp-n2", "exp-n3", "exp-n4"]
    status = world.workload("exp").status
    assert (status.wanted, status.ready) == (4, 4)
    await world.until(lambda: rollout(world).phase == "Done")


async def test_a_node_that_joins_gets_one_and_one_that_is_removed_takes_its_own_with_it(world: World) -> None:
    await world.apply(exporter())
    await world.until(lambda: len(on(world)) == 4)
    await world.add_nodes("n5")
    await world.until(lambda: "n5" in on(world))
    world.nodes["n2"].alive = False
    node = world.find(Node, "n2", "")
    assert node is not None
    await world.store.commit(Delete(node.key, node.meta.version))
    await world.until(lambda: "exp-n2" not in world.phases())
    assert on(world) == ["n1", "n3", "n4", "n5"], "and not begun elsewhere"


async def test_labels_decide_and_may_change(world: World) -> None:
    await label(world, "n1", disk="ssd")
    await world.apply(exporter(where=[{"rule": "disk == ssd"}]))
    await world.until(lambda: on(world) == ["n1"])
    await label(world, "n3", disk="ssd")
    await label(world, "n1", disk="hdd")
    await world.until(lambda: on(world) == ["n3"] and list(world.phases()) == ["exp-n3"])


async def test_taints_keep_a_daemon_away_unless_it_tolerates_them(world: World) -> None:
    await world.change_node("n1", taints=(TAINT,))
    await world.apply(exporter())
    await world.until(lambda: len(on(world)) == 3)
    assert "exp-n1" not in world.phases()
    await world.apply(exporter(placement={"tolerate": [{"key": "role"}]}))
    await world.until(lambda: len(on(world)) == 4)


async def test_a_new_taint_leaves_it_alone_until_it_ends_but_noexecute_drives_it_off(world: World) -> None:
    await world.apply(exporter())
    await world.until(lambda: len(on(world)) == 4)
    await world.change_node("n1", taints=(TAINT,))
    await world.run(10)
    assert "n1" in on(world)
    await world.stop_instance("exp-n1")
    await world.until(lambda: "exp-n1" not in world.phases())
    await world.change_node("n2", taints=(Taint("broken", "", "NoExecute", since=world.clock.now()),))
    await world.until(lambda: "exp-n2" not in world.phases())
    await world.run(10)
    assert on(world) == ["n3", "n4"]
    await world.change_node("n1", taints=())
    await world.change_node("n2", taints=())
    await world.until(lambda: len(on(world)) == 4)


async def test_one_that_tolerates_noexecute_for_a_while_goes_then_and_does_not_come_back(world: World) -> None:
    tolerate = [{"key": "broken", "effect": "NoExecute", "seconds": "20s"}]
    await world.apply(exporter(placement={"tolerate": tolerate}))
    await world.until(lambda: len(on(world)) == 4)
    await world.change_node("n2", taints=(Taint("broken", "", "NoExecute", since=world.clock.now()),))
    await world.run(10)
    assert "n2" in on(world)
    await world.run(30)
    assert "exp-n2" not in world.phases()


async def test_a_cordoned_node_keeps_its_own_and_gets_the_next_one_too(world: World) -> None:
    await world.change_node("n1", cordoned=True)
    await world.apply(exporter())
    await world.until(lambda: len(on(world)) == 4)
    await world.apply(exporter("2"))
    await world.until(lambda: rollout(world).phase == "Done" and rollout(world).release == "exp.2")
    assert "n1" in on(world)


async def test_a_drain_takes_daemons_last_and_they_come_back_with_the_node(world: World) -> None:
    await world.apply(exporter())
    await world.apply(make_workload("web", replicas=8))
    await world.until(lambda: len(on(world)) == 4 and world.serving_count("web") == 8)
    seen: list[tuple[bool, int]] = []

    def look() -> None:
        others = [each for each in world.instances("web") if each.node == "n1" and not each.phase.over]
        seen.append(("n1" in on(world), len(others)))

    world.checks.append(look)
    await world.change_node("n1", drain=Drain(since=world.clock.now()))
    await world.until(lambda: "exp-n1" not in world.phases())
    assert any(others for _, others in seen), "there was something to wait for"
    assert all(there for there, others in seen if others), "as long as others are there, so is the daemon"
    await world.run(20)
    node = world.find(Node, "n1", "")
    assert node is not None
    assert node.status.drain is not None
    assert node.status.drain.phase == "Drained"
    assert "exp-n1" not in world.phases(), "it does not come back to a drained node"
    await world.change_node("n1", drain=None)
    await world.until(lambda: "n1" in on(world))


async def test_the_daemon_of_a_lost_node_is_not_started_elsewhere(world: World) -> None:
    await world.apply(exporter())
    await world.until(lambda: len(on(world)) == 4)
    before = world.instance("exp-n2").meta.uid
    world.nodes["n2"].alive = False
    await world.until(lambda: world.instance("exp-n2").phase is Phase.LOST)
    await world.run(60)
    assert len(world.instances("exp")) == 4
    assert world.workload("exp").status.wanted == 3, "nobody waits for it"
    world.nodes["n2"].alive = True
    await world.until(lambda: "n2" in on(world))
    assert world.instance("exp-n2").meta.uid == before, "it ran on, and is not begun anew"


async def test_a_roll_out_never_has_more_away_than_it_may_and_goes_on_without_a_lost_node(world: World) -> None:
    await world.apply(exporter(update={"max_unavailable": 1}))
    await world.until(lambda: rollout(world).phase == "Done")
    world.nodes["n4"].alive = False
    await world.until(lambda: world.instance("exp-n4").phase is Phase.LOST)
    counts: list[int] = []
    world.checks.append(lambda: counts.append(len(on(world))))
    await world.apply(exporter("2", update={"max_unavailable": 1}))
    await world.until(lambda: rollout(world).release == "exp.2" and rollout(world).phase == "Done")
    assert min(counts) == 2
    world.nodes["n4"].alive = True
    await world.until(lambda: world.instance("exp-n4").spec.release == "exp.2" and len(on(world)) == 4)


async def test_a_release_that_is_never_ready_gets_one_node_far_and_goes_back(world: World) -> None:
    await world.apply(exporter(update={"max_unavailable": 1}))
    await world.until(lambda: rollout(world).phase == "Done")
    for node in world.nodes.values():
        node.ready = False
    await world.apply(exporter("bad", update={"max_unavailable": 1}))
    await world.until(lambda: sum(each.spec.release == "exp.2" for each in world.instances("exp")) == 1)
    await world.run(30)
    assert len(on(world)) == 3
    for node in world.nodes.values():
        node.ready = True
    for each in world.instances("exp"):
        if each.spec.release == "exp.2":
            world.nodes[each.node].ready = False
    await world.until(lambda: rollout(world).phase == "RollingBack")
    for node in world.nodes.values():
        node.ready = True
    await world.until(lambda: rollout(world).phase == "RolledBack" and len(on(world)) == 4)
    assert {each.spec.release for each in world.instances("exp")} == {"exp.1"}


async def order(world: World, **orders: Any) -> None:
    while True:
        found = world.workload("exp")
        given = replace(found.spec.rollout, **orders)
        try:
            await world.store.commit(Put(found.changed(spec=replace(found.spec, rollout=given))))
        except Conflict:
            continue
        return


async def test_canaries_are_updated_in_their_place_and_wait_to_be_promoted(world: World) -> None:
    await world.apply(exporter(update={"canary": 1}))
    await world.until(lambda: rollout(world).phase == "Done")
    await world.apply(exporter("2", update={"canary": 1}))
    await world.until(lambda: rollout(world).phase == "Waiting")
    await world.add_nodes("n5")
    await world.until(lambda: "n5" in on(world))
    assert Counter(each.spec.release for each in world.instances("exp")) == {"exp.1": 4, "exp.2": 1}
    await order(world, promoted="exp.2")
    await world.until(lambda: rollout(world).phase == "Done")
    assert {each.spec.release for each in world.instances("exp")} == {"exp.2"}


async def test_paused_nothing_is_updated_and_crashes_are_made_good(world: World) -> None:
    await world.apply(exporter())
    await world.until(lambda: rollout(world).phase == "Done")
    await order(world, paused=True)
    wanted = exporter("2")
    await world.apply(wanted.changed(spec=replace(wanted.spec, rollout=world.workload("exp").spec.rollout)))
    await world.run(20)
    await world.stop_instance("exp-n3")
    await world.run(30)
    assert len(on(world)) == 4
    assert {each.spec.release for each in world.instances("exp")} == {"exp.1"}
    await order(world, paused=False)
    await world.until(lambda: rollout(world).phase == "Done")


async def test_a_node_without_room_delays_no_other_node(world: World) -> None:
    await world.add_nodes("small", memory=GI // 4)
    await world.apply(exporter(memory="1Gi", update={"max_unavailable": 1}))
    await world.until(lambda: rollout(world).phase == "Done")
    assert world.instance("exp-small").phase is Phase.PENDING
    assert "exp-small" in world.workload("exp").status.message
    await world.apply(exporter("2", memory="1Gi", update={"max_unavailable": 1}))
    await world.until(lambda: rollout(world).release == "exp.2" and rollout(world).phase == "Done")
    assert {each.spec.release for each in world.instances("exp")} == {"exp.2"}


async def test_an_engine_that_is_down_briefly_ends_no_instance(world: World) -> None:
    await world.apply(exporter(engine=["process"]))
    await world.until(lambda: len(on(world)) == 4)
    before = world.instance("exp-n1").meta.uid
    down = {"process": Capabilities(version="1", up=False)}
    await change(world, "n1", status=lambda node: replace(node.status, engines=down))
    await world.run(20)
    up = {"process": Capabilities(version="1")}
    await change(world, "n1", status=lambda node: replace(node.status, engines=up))
    await world.run(5)
    assert world.instance("exp-n1").meta.uid == before


async def test_one_that_matches_no_node_reports_it_at_once(world: World) -> None:
    await world.apply(exporter(where=[{"rule": "disk == ssd"}]))
    await world.until(lambda: bool(world.events("NoNodeMatches")))
    status = world.workload("exp").status
    assert (status.phase, status.message) == ("Pending", "no node matches: 4 not `disk == ssd`")
    await world.run(10)
    assert len(world.events("NoNodeMatches")) == 1
    await label(world, "n2", disk="ssd")
    await world.until(lambda: on(world) == ["n2"])
    assert not world.workload("exp").status.message


async def test_it_goes_with_its_workload(world: World) -> None:
    await world.apply(exporter())
    await world.until(lambda: len(on(world)) == 4)
    await world.delete(world.workload("exp"))
    await world.until(lambda: not world.instances("exp"))


async def test_a_service_that_becomes_a_daemon_and_back_keeps_nothing_of_the_other_kind(world: World) -> None:
    await world.apply(make_workload("exp", replicas=2))
    await world.until(lambda: world.serving_count("exp") == 2)
    await world.apply(make_workload("exp", type="daemon"))
    await world.until(lambda: on(world) == ["n1", "n2", "n3", "n4"] and len(world.phases()) == 4)
    await world.apply(make_workload("exp", replicas=2))
    await world.until(lambda: sorted(world.phases()) == ["exp-0", "exp-1"] and world.serving_count("exp") == 2)


@pytest.mark.parametrize("seed", range(4))
async def test_after_any_trouble_there_is_one_on_every_node_that_matches(world: World, seed: int) -> None:
    """Nodes fall silent, join, are labelled and drained; the control plane dies in between; releases come."""
    luck = random.Random(seed)
    rule = [{"rule": "role != db"}]
    await world.apply(exporter(where=rule, update={"max_unavailable": 2}))
    for step in range(25):
        node = luck.choice(sorted(world.nodes))
        chance = luck.randrange(8)
        if chance == 0:
            world.nodes[node].alive = not world.nodes[node].alive
        elif chance == 1:
            await label(world, node, role=luck.choice(["db", "web"]))
        elif chance == 2:
            await world.change_node(node, drain=luck.choice([None, Drain(since=world.clock.now())]))
        elif chance == 3:
            await world.change_node(node, taints=luck.choice([(), (TAINT,)]), cordoned=luck.random() < 0.5)
        elif chance == 4 and len(world.nodes) < 7:
            await world.add_nodes(f"m{step}")
        elif chance == 5:
            await world.apply(exporter(str(step), where=rule, update={"max_unavailable": 2}))
        elif chance == 6:
            await world.kill("controllers")
            world.start_controllers()
        elif chance == 7:
            await world.kill("scheduler")
            world.start_scheduler()
        await world.run(luck.choice([0.5, 3, 20, 70]))
    for name, scripted in world.nodes.items():
        scripted.alive = True
        await world.change_node(name, drain=None, taints=(), cordoned=False)
    await world.apply(exporter("last", where=rule, update={"max_unavailable": 2}))
    matching = sorted(
        name
        for name in world.nodes
        if (node_now := world.store.index.get(Key(Node.kind, "", name))) and node_now.labels.get("role") != "db"
    )
    await world.until(lambda: on(world) == matching and len(world.instances("exp")) == len(matching), 600)
    await world.until(lambda: len({each.spec.release for each in world.instances("exp")}) <= 1, 600)
