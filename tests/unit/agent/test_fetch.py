"""Reading what an order needs, also if a newer server wrote it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from mandor.agent.journal import Journal
from mandor.agent.order import Entry
from mandor.model.codec import decode, encode
from mandor.model.instance import REFUSED
from mandor.model.phase import Phase
from mandor.store.base import Put
from tests.unit.agent.make import UID, make_order
from tests.unit.agent.world import World, open_world, release_key


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


async def write_more(world: World, **unknown: Any) -> None:
    release = await world.store.get(release_key())
    assert release is not None
    plain = json.loads(encode(release))
    plain["spec"]["groups"]["main"]["tasks"]["main"] |= unknown
    await world.store.commit(Put(decode(json.dumps(plain).encode())))


@pytest.mark.req("S0-19")
async def test_an_agent_refuses_a_release_with_unknown_fields(world: World) -> None:
    await world.apply()
    await write_more(world, cage="iron")
    await world.order()
    status = await world.until_phase(Phase.FAILED)
    assert status.reason == REFUSED
    assert "does not know fields of its release: tasks.main.cage" in status.message
    assert world.starts == []


@pytest.mark.req("S0-19")
async def test_a_running_instance_continues_under_an_older_agent(world: World) -> None:
    await world.apply()
    instance = await world.order()
    await world.until_phase(Phase.RUNNING)
    await write_more(world, cage="iron")
    await world.kill_agent()
    # What a newer agent wrote down before it was exchanged for this one.
    (path,) = (world.settings.data / "orders").glob("*.json")
    plain = json.loads(path.read_bytes())
    plain["order"]["template"]["tasks"]["main"]["cage"] = "iron"
    plain["order"]["instance"]["spec"]["colour"] = "red"
    plain["memory"]["colour"] = "red"
    path.write_text(json.dumps(plain))
    await world.boot_agent()
    await world.pass_time(30)
    assert (await world.status()).phase is Phase.RUNNING
    assert [unit.uid for unit in world.starts] == [instance.meta.uid]
    assert [unit.uid for unit in await world.live()] == [instance.meta.uid]


def test_unknown_fields_in_the_journal_of_a_newer_agent_are_ignored(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.write(Entry(order=make_order()))
    path = tmp_path / "orders" / f"{UID}.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"more": [1]}))
    assert list(journal.entries()) == [Entry(order=make_order())]
