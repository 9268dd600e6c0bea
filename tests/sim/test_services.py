"""The service controller: objects of declared services, and their virtual addresses."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from mandor.controllers import network_service_plan
from mandor.model.manifest import load_manifests
from mandor.model.meta import Key
from mandor.model.service import Service
from mandor.model.workload import Workload
from mandor.store.base import Delete, Put
from tests.scenarios.world import World

SHOP = "{name: shop, command: [serve], engine: fake, ports: {http: 80}, services: [{port: {http: 80}}]}"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as made:
        await made.add_nodes("n1")
        yield made


async def services(world: World) -> dict[str, Service]:
    found = (await world.store.list(Service.kind)).items
    return {each.meta.name: each for each in found if isinstance(each, Service)}


async def write(world: World, text: str) -> None:
    (document,) = load_manifests(text)
    await world.store.commit(Put(document.object))


@pytest.mark.req("S2-30")
async def test_a_declared_service_gets_a_virtual_address_and_goes_with_its_workload(world: World) -> None:
    await write(world, SHOP)
    await world.run(2)
    shop = (await services(world))["shop"]
    assert shop.status.owner == "shop"
    assert shop.status.number
    workload = await world.store.get(Key(Workload.kind, "default", "shop"))
    assert workload is not None
    await world.store.commit(Delete(workload.key, workload.meta.version))
    await world.run(10)
    assert await services(world) == {}


async def test_a_deleted_service_of_a_workload_is_created_again_with_the_same_address(world: World) -> None:
    await write(world, SHOP)
    await world.run(2)
    shop = (await services(world))["shop"]
    await world.store.commit(Delete(shop.key, shop.meta.version))
    await world.run(2)
    again = (await services(world))["shop"]
    assert again.meta.uid != shop.meta.uid
    assert again.status.number == shop.status.number


async def test_a_service_without_an_address_gets_one_when_another_service_is_deleted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network_service_plan, "NUMBERS_EACH", 2)
    for name in ("a", "b", "c"):
        await write(world, f"{{kind: service, name: {name}, port: {{sql: 5432}}, external: ['192.0.2.1:5432']}}")
        await world.run(1)
    found = await services(world)
    assert [bool(found[name].status.number) for name in ("a", "b", "c")] == [True, True, False]
    assert "namespace default has 2 virtual addresses" in found["c"].status.message
    await world.store.commit(Delete(found["a"].key, found["a"].meta.version))
    await world.run(60)
    found = await services(world)
    assert found["c"].status.number
    assert not found["c"].status.message
    assert found["b"].status.number != found["c"].status.number
