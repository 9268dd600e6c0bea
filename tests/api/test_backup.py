"""A backup over HTTP is whole, and only for who may have everything."""

from io import BytesIO

import pytest

from mandor.errors import Forbidden
from mandor.store.base import Put
from mandor.store.dump import load_dump
from mandor.store.memory import MemoryStore
from mandor.testing.store import make_node, make_workload
from tests.api.conftest import Api


async def test_a_backup_brings_back_what_there_was(api: Api) -> None:
    for number in range(450):
        await api.store.commit(Put(make_node(f"n{number}")))
    await api.store.commit(Put(make_workload("web", app="shop")))
    admin = await api.client(await api.token("admin", "user:admin"))
    data = await admin.request("GET", "/v1/backup")
    other = MemoryStore()
    await load_dump(other, BytesIO(data))
    for kind in ("node", "workload", "token"):
        before, after = (await api.store.list(kind)).items, (await other.list(kind)).items
        assert [(item.key, item.spec) for item in before] == [(item.key, item.spec) for item in after]


async def test_only_an_admin_of_everything_gets_one(api: Api) -> None:
    for token in (
        await api.token("operator", "user:ani"),
        await api.token("admin", "user:budi", ("team",)),
        await api.token("node", "node:n1"),
        await api.token("join", "join:x"),
    ):
        with pytest.raises(Forbidden):
            await (await api.client(token)).request("GET", "/v1/backup")
