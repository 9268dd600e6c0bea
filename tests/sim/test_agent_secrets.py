"""Tasks with secrets wait for them, get them, and restart with them during an outage."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mandor.errors import Unavailable
from mandor.model.meta import Key, Meta, Object
from mandor.model.phase import Phase
from mandor.model.secret import Secret, SecretSpec
from mandor.store.base import Put
from tests.unit.agent.world import World, open_world

DB = Secret(meta=Meta(name="db", namespace="default"), spec=SecretSpec(data={"user": "shop", "password": "hunter2"}))


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as opened:
        yield opened


async def needy(world: World) -> None:
    files = [{"path": "pass", "secret": "db/password", "mode": "0400"}]
    fake = {"stdout": ["${env:PASSWORD} ${env:USER} ${file:pass} ${mode:pass}"], "after": "1m", "good_attempt": 2}
    secrets = {"PASSWORD": "db/password", "USER": "db/user"}
    await world.apply(secrets=secrets, files=files, options={"fake": fake})
    await world.order()


async def said(world: World) -> bytes:
    """Return the output of the latest unit."""
    (line,) = [each.text async for each in world.engine.logs(world.starts[-1])]
    return line


async def test_a_task_gets_its_secrets_as_variables_and_files(world: World) -> None:
    await world.store.commit(Put(DB))
    await needy(world)
    await world.until_phase(Phase.RUNNING)
    assert await said(world) == b"hunter2 shop hunter2 400"


async def test_an_instance_waits_for_a_missing_secret_and_names_it(world: World) -> None:
    await needy(world)
    await world.pass_time(30)
    status = await world.status()
    assert (status.reason, status.message) == ("SecretMissing", "secret db does not exist")
    assert not world.starts
    await world.store.commit(Put(DB))
    await world.until_phase(Phase.RUNNING, seconds=120)


async def test_an_instance_whose_secret_a_server_cannot_open_reports_the_refusal(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = "the value was sealed with the key 7f3a, and this server has 91c0"
    read = world.wire.get

    async def get(key: Key) -> Object | None:
        if key.kind == Secret.kind:
            raise Unavailable(refusal)
        return await read(key)

    await world.store.commit(Put(DB))
    with monkeypatch.context() as patched:
        patched.setattr(world.wire, "get", get)
        await needy(world)
        await world.pass_time(30)
        status = await world.status()
        assert (status.phase, status.reason, status.message) == (Phase.RESERVED, "SecretUnavailable", refusal)
    await world.until_phase(Phase.RUNNING, seconds=120)


async def test_a_missing_key_is_named_with_the_existing_ones(world: World) -> None:
    await world.store.commit(Put(DB))
    await world.apply(secrets={"A": "db"})
    await world.order()
    await world.pass_time(30)
    assert (await world.status()).message == "'db' names no value of the secret db; its keys: password, user"


async def test_an_encrypted_copy_of_secrets_is_used_during_an_outage(world: World, tmp_path: Path) -> None:
    await world.store.commit(Put(DB))
    await needy(world)
    await world.until_phase(Phase.RUNNING)
    written = [path.read_bytes() for path in tmp_path.rglob("orders/*.json")]
    assert len(written) == 1
    assert b"hunter2" not in written[0]
    world.wire.cut()
    await world.pass_time(120)
    assert [unit.attempt for unit in world.starts] == [1, 2]
    assert await said(world) == b"hunter2 shop hunter2 400"
