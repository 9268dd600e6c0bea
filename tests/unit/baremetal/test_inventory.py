"""Inventories: reading the list, the nodes made from it, and failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from msgspec.structs import replace

from mandor.baremetal.inventory import InventoryRefresher, MachineFile, MachineSource, NodeApi
from mandor.baremetal.machine import MachineList, read_machines
from mandor.baremetal.worker import CLAIMS
from mandor.errors import Invalid, Unavailable
from mandor.lib.clock import SystemClock
from mandor.lib.tasks import Background
from mandor.model.claim import DEDICATED
from mandor.model.instance import Instance
from mandor.model.inventory import Inventory
from mandor.model.meta import Key, Meta
from mandor.model.node import Node, NodePhase, Occupied, Taint
from mandor.model.record import Event
from mandor.model.resources import Resources
from mandor.model.vm_request import VmRequest, VmRequestSpec
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder
from tests.scenarios.make import make_node

BM = {"name": "bm-1", "ip": "10.0.0.1", "cpu": 32, "memory": 131072, "pool": "ai", "max_vms": 8}


class Given(MachineSource):
    """A source with scripted answers."""

    text = "a test"

    def __init__(self, *machines: dict[str, Any]) -> None:
        self.answer: list[dict[str, Any]] | Exception = list(machines)

    async def fetch(self) -> MachineList:
        if isinstance(self.answer, Exception):
            raise self.answer
        return read_machines(json.dumps(self.answer).encode())


class World:
    def __init__(self, store: MemoryStore, source: Given, mirrors: tuple[Mirror, Mirror, Mirror]) -> None:
        self.store, self.source, self.mirrors = store, source, mirrors
        clock = SystemClock()
        self.recorder = Recorder(store, "tasks", clock)
        self.refresher = InventoryRefresher(store, clock, self.recorder, source, mirrors)

    async def look(self, *machines: dict[str, Any]) -> Inventory:
        if machines:
            self.source.answer = list(machines)
        async with asyncio.timeout(30):
            while not await self._shown():
                await asyncio.sleep(0.01)
        await self.refresher.look()
        found = await self.store.get(Key(Inventory.kind, "", "machines"))
        assert isinstance(found, Inventory)
        return found

    async def _shown(self) -> bool:
        """Wait until the mirrors show the store."""
        for mirror, kind in zip(self.mirrors, (VmRequest.kind, Instance.kind, Node.kind), strict=True):
            stored = {each.key: each.meta.version for each in (await self.store.list(kind)).items}
            if stored != {each.key: each.meta.version for each in mirror.items()}:
                return False
        return True

    async def node(self, name: str) -> Node | None:
        found = await self.store.get(Key(Node.kind, "", name))
        return found if isinstance(found, Node) else None


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(MemoryStore())
        mirrors = Mirror(store, VmRequest.kind), Mirror(store, Instance.kind, CLAIMS), Mirror(store, Node.kind)
        for mirror in mirrors:
            await stack.enter_async_context(mirror)
            await mirror.synced()
        yield World(store, Given(), mirrors)


@pytest.mark.req("S4-8")
async def test_machines_become_nodes_and_change_with_the_list(world: World) -> None:
    status = (await world.look({**BM, "used_cpu": 4, "used_memory": 8192, "vms": ["a", "b"]})).status
    assert (status.machines, status.failures) == (1, 0)
    node = await world.node("bm-1")
    assert node is not None
    assert (node.status.phase, node.status.address, node.spec.pool) == (NodePhase.READY, "10.0.0.1", "ai")
    assert node.status.capacity == Resources(32_000, 128 << 30)
    assert node.status.occupied is not None
    assert (node.status.occupied.cpu_milli, node.status.occupied.machines) == (4000, 2)
    assert node.status.facts["vm.quota"] == "8"
    await world.look({**BM, "ready": False}, {**BM, "name": "bm-2"})
    node = await world.node("bm-1")
    assert node is not None
    assert node.status.phase is NodePhase.DOWN
    await world.look({**BM, "name": "bm-2"})
    assert await world.node("bm-1") is None


async def test_a_machine_becomes_dedicated_and_shared_again_and_keeps_taints_of_people(world: World) -> None:
    await world.look(BM)
    node = await world.node("bm-1")
    assert node is not None
    await world.store.commit(Put(replace(node, spec=replace(node.spec, taints=(Taint("repair"),)))))

    async def taints(**fields: Any) -> list[str]:
        await world.look({**BM, **fields})
        found = await world.node("bm-1")
        assert found is not None
        return [each.key for each in found.spec.taints]

    assert await taints() == ["repair"]
    assert await taints(dedicated=True) == ["repair", DEDICATED]
    assert await taints(dedicated=True) == ["repair", DEDICATED]
    assert await taints() == ["repair"]


OTHER_SHAPE = {
    "name": "bm01",
    "cpu": 16,
    "memory": 32768,
    "storage": 1000,
    "usage_cpu": 0.3,
    "usage_mem": 0.41,
    "pool": "default",
    "dedicated": False,
    "model": "HPE ProLiant DL360 Gen10",
    "max_vms": 20,
    "current_vms": 5,
}
"""A machine as the node API of the source project lists it: usage as shares."""


@pytest.mark.req("S4-8")
async def test_usage_as_shares_and_the_number_of_virtual_machines_are_understood(world: World) -> None:
    status = (await world.look(OTHER_SHAPE)).status
    assert (status.machines, status.failures, status.unknown) == (1, 0, ())
    node = await world.node("bm01")
    assert node is not None
    assert node.status.occupied == Occupied(cpu_milli=4800, memory_bytes=13435 * 1024**2, machines=5)
    assert node.status.facts == {"vm.quota": "20", "storage": "1000", "model": "HPE ProLiant DL360 Gen10"}


@pytest.mark.req("S4-8")
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"usage_cpu": 30}, "<= 1"),
        ({"usage_mem": -0.1}, ">= 0"),
        ({"current_vms": -1}, ">= 0"),
        ({"used_cpu": 1}, "both `used_cpu` and `usage_cpu`"),
        ({"used_memory": 1}, "both `used_memory` and `usage_mem`"),
        ({"vms": ["a"]}, "both `vms` and `current_vms`"),
    ],
)
def test_usage_that_is_impossible_or_given_twice_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(Invalid, match=words):
        read_machines(json.dumps([{**OTHER_SHAPE, **wrong}]).encode())


@pytest.mark.req("S4-8")
async def test_keys_that_are_not_understood_are_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    listed = [{**BM, "usedcpu": 4, "rack": 1}, {**BM, "name": "bm-2", "rack": 2}]
    async with Background() as background:
        background.start(world.recorder.run())
        for _ in range(2):
            status = (await world.look(*listed)).status
            assert (status.machines, status.unknown) == (2, ("rack (2 machines)", "usedcpu (1 machine)"))
        async with asyncio.timeout(60):
            while not (events := (await world.store.list(Event.kind)).items):
                await asyncio.sleep(0.01)
    (event,) = [each for each in events if isinstance(each, Event)]
    assert (event.spec.reason, event.spec.type, event.spec.count) == ("InventoryKeysUnknown", "warning", 1)
    assert "rack (2 machines), usedcpu (1 machine)" in event.spec.message
    (line,) = [each for each in caplog.records if "not understood" in each.message]
    assert "used_cpu" in line.message, "it names the known keys"
    world.source.answer = Unavailable("no answer")
    assert (await world.look()).status.unknown == status.unknown
    assert (await world.look(BM)).status.unknown == ()


@pytest.mark.req("S4-8")
@pytest.mark.parametrize("failure", [Unavailable("no answer"), Invalid("no list")])
async def test_a_failed_refresh_keeps_the_last_good_list_and_shows_how_old_it_is(
    world: World, failure: Exception
) -> None:
    good = (await world.look(BM)).status
    world.source.answer = failure
    for times in (1, 2):
        status = (await world.look()).status
        assert (status.failures, status.machines, status.refreshed_at) == (times, 1, good.refreshed_at)
        assert "using the list from" in status.error
    assert await world.node("bm-1") is not None


async def test_a_list_that_suddenly_is_empty_is_refused(world: World) -> None:
    await world.look(BM)
    world.source.answer = []
    assert (await world.look()).status.failures == 1
    assert await world.node("bm-1") is not None


async def test_a_node_with_an_agent_is_left_alone(world: World) -> None:
    await world.store.commit(Put(make_node("bm-1")))
    status = (await world.look(BM)).status
    assert "bm-1" in status.error
    node = await world.node("bm-1")
    assert node is not None
    assert not node.status.inventory


async def test_settings_of_users_on_a_node_are_kept(world: World) -> None:
    await world.look(BM)
    node = await world.node("bm-1")
    assert node is not None
    await world.store.commit(Put(node.changed(spec=replace(node.spec, cordoned=True))))
    await world.look({**BM, "used_cpu": 1})
    node = await world.node("bm-1")
    assert node is not None
    assert node.spec.cordoned


async def confirmed(world: World, at: float, vm: str = "") -> VmRequest:
    spec = VmRequestSpec(cpu=4, memory_mib=8192, pool="ai", vm=vm)
    task = VmRequest(meta=Meta(name="t1", namespace="default"), spec=spec)
    task = task.moved("Processing", at).moved("Placed", at, node="bm-1").moved("Confirmed", at)
    await world.store.commit(Put(task), Put(task.claim.bound("bm-1", at=at)))
    return task


async def test_a_confirmed_machine_is_counted_until_a_later_list_shows_it(world: World) -> None:
    await world.look(BM)
    task = await confirmed(world, SystemClock().now() + 3600, vm="web-1")
    await world.look({**BM, "used_cpu": 4, "vms": ["web-1"]})
    assert await world.store.get(task.claim_key) is not None, "the list was asked for before it was confirmed"


async def test_the_claim_goes_when_the_list_names_the_machine(world: World) -> None:
    await world.look(BM)
    task = await confirmed(world, 1.0, vm="web-1")
    await world.look({**BM, "used_cpu": 4, "vms": ["other"]})
    assert await world.store.get(task.claim_key) is not None, "it is not in the list"
    before = await world.node("bm-1")
    await world.look({**BM, "used_cpu": 4, "vms": ["other", "web-1"]})
    assert await world.store.get(task.claim_key) is None
    stored, after = await world.store.get(task.key), await world.node("bm-1")
    assert isinstance(stored, VmRequest)
    assert stored.status.counted
    assert before is not None
    assert after is not None
    assert after.meta.version > before.meta.version, "a bind that was decided before must not go through"


async def test_a_machine_with_claims_is_not_deleted(world: World) -> None:
    await world.look(BM)
    await confirmed(world, 1.0, vm="web-1")
    await world.look({**BM, "name": "bm-2"})
    node = await world.node("bm-1")
    assert node is not None
    assert node.status.phase is NodePhase.DOWN


async def test_a_file_is_read_as_yaml_and_looked_at_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "machines.yaml"
    source = MachineFile(file)
    with pytest.raises(Unavailable):
        await source.fetch()
    file.write_text("- {name: bm-1, cpu: 8, memory: 1024}\n")
    async with asyncio.timeout(30):
        await source.wait(SystemClock(), 3600)
    assert [each.name for each in (await source.fetch()).machines] == ["bm-1"]


async def test_an_inventory_that_hangs_or_fails_is_reported() -> None:
    hang = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/hang":
            await hang.wait()
        return web.Response(status=500 if request.path == "/broken" else 200, text=json.dumps({"nodes": [BM]}))

    app = web.Application()
    app.router.add_get("/{rest:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        assert [each.name for each in (await NodeApi(f"{url}/nodes").fetch()).machines] == ["bm-1"]
        for path in ("broken", "hang"):
            with pytest.raises(Unavailable):
                await NodeApi(f"{url}/{path}", timeout_seconds=0.5).fetch()
    finally:
        hang.set()
        await runner.cleanup()
    with pytest.raises(Unavailable):
        await NodeApi(f"{url}/nodes").fetch()


@pytest.mark.parametrize(
    "text",
    [
        b"{}",
        b"[1]",
        b'[{"name":"a","cpu":0,"memory":1}]',
        b'[{"name":"A!","cpu":1,"memory":1}]',
        b'[{"name":"a","cpu":1,"memory":1},{"name":"a","cpu":1,"memory":1}]',
        b"\xff\xfe",
        b"- name: [",
        b"[" * 100_000,
    ],
)
def test_an_invalid_list_is_refused(text: bytes) -> None:
    with pytest.raises(Invalid):
        read_machines(text)
