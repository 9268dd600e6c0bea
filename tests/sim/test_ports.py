"""Ports that the scheduler chooses, in a cluster that lives: kept through everything, given out once, and shown."""

from __future__ import annotations

import random

import msgspec

from mandor.model.instance import PORT_TAKEN, Instance, InstanceStatus
from mandor.model.node import Node, PortRange
from mandor.model.phase import Phase
from tests.scenarios.make import make_workload
from tests.scenarios.world import World

ANY = {"http": {"port": 8080, "host": "auto"}}


def check_ports(world: World) -> None:
    seen: set[tuple[str, int]] = set()
    for each in world.instances():
        if each.phase.over or not each.node:
            continue
        for number in (each.spec.ports or {}).values():
            assert (each.node, number) not in seen, f"port {number} of {each.node} was given out twice"
            seen.add((each.node, number))


def chosen(world: World) -> dict[str, tuple[str, dict[str, int] | None]]:
    return {each.meta.uid: (each.node, each.spec.ports) for each in world.instances() if each.node}


async def test_when_a_node_has_no_port_left_the_next_goes_elsewhere_and_the_last_waits() -> None:
    async with World() as world:
        world.checks.append(lambda: check_ports(world))
        await world.add_nodes("n1", "n2", cpu=40, ports=PortRange(20_000, 20_001))
        await world.apply(make_workload("web", replicas=5, cpu="100m", ports=ANY))
        await world.until(lambda: world.serving_count("web") == 4)
        await world.run(5)
        waiting = next(each for each in world.instances("web") if not each.node)
        assert waiting.status.message == "0/2 nodes fit: 2 NodePorts (no free port in 20000-20001)"
        taken = sorted((each.node, *(each.spec.ports or {}).values()) for each in world.instances("web") if each.node)
        assert taken == [("n1", 20_000), ("n1", 20_001), ("n2", 20_000), ("n2", 20_001)]
        await world.stop_instance(next(each for each in world.instances("web") if each.node).meta.name)
        await world.until(lambda: world.serving_count("web") == 4 and bool(world.find(Instance, waiting.meta.name)))
        await world.until(lambda: bool(world.instance(waiting.meta.name).node) or world.serving_count("web") == 4)


async def test_a_choice_survives_the_scheduler_and_what_others_have_is_not_given_out_again() -> None:
    dice = random.Random(3)
    async with World() as world:
        world.checks.append(lambda: check_ports(world))
        await world.add_nodes("n1", "n2", cpu=40, ports=PortRange(20_000, 20_005))
        for _ in range(8):
            await world.apply(make_workload("web", replicas=dice.randrange(1, 6), cpu="100m", ports=ANY))
            fixed = {"dns": {"port": 53, "host": dice.randrange(20_000, 20_006), "protocol": "udp"}}
            await world.apply(make_workload("dns", replicas=1, cpu="100m", ports=fixed | {"admin": {"host": "auto"}}))
            await world.run(dice.randrange(5, 15))
            before = chosen(world)
            await world.kill("scheduler")
            await world.kill("its recorder")
            world.start_scheduler()
            await world.run(5)
            after = chosen(world)
            assert {uid: after[uid] for uid in before.keys() & after.keys()} == {
                uid: before[uid] for uid in before.keys() & after.keys()
            }


async def test_a_port_that_a_stranger_holds_is_shown_and_another_one_is_chosen() -> None:
    async with World() as world:
        await world.add_nodes("n1", cpu=4, ports=PortRange(20_000, 20_003))
        refused: list[int] = []

        def refuses(instance: Instance) -> InstanceStatus | None:
            number = (instance.spec.ports or {})["http"]
            if refused and number != refused[0]:
                return None
            refused.append(number)
            return InstanceStatus(phase=Phase.FAILED, reason=PORT_TAKEN, message=f"tcp port {number} is taken")

        world.nodes["n1"].behave = refuses
        await world.apply(make_workload("web", replicas=1, cpu="1", ports=ANY))
        await world.until(lambda: bool(refused))
        node = world.find(Node, "n1", "")
        assert node is not None
        taken = msgspec.structs.replace(node.status.ports, taken=(refused[0],))
        await world.add(node.changed(status=msgspec.structs.replace(node.status, ports=taken)))
        await world.until(lambda: (world.instance("web-0").spec.ports or {}).get("http") not in {None, refused[0]})
        await world.until(lambda: world.serving_count("web") == 1)
        assert world.instance("web-0").spec.attempt == 0, "it was no failure of its own"


async def test_the_smallest_change_for_a_fixed_port_that_is_taken_is_any_port() -> None:
    async with World() as world:
        await world.add_nodes("n1", cpu=4)
        await world.apply(make_workload("a", replicas=1, ports={"http": {"port": 80, "host": 8080}}))
        await world.until(lambda: world.serving_count("a") == 1)
        await world.apply(make_workload("b", replicas=1, ports={"http": {"port": 80, "host": 8080}}))
        await world.run(5)
        assert "tcp port 8080 is taken" in world.instance("b-0").status.message
        await world.apply(make_workload("b", replicas=1, ports={"http": {"port": 80, "host": "auto"}}))
        await world.until(lambda: world.serving_count("b") == 1)
