"""The agent starts the name server for the first instance, and keeps its table up to date."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from mandor.agent.name_keeper import NameServer
from mandor.engines.base import Resolver
from mandor.errors import Unavailable
from mandor.model.phase import Phase
from mandor.network.base import Names, NameTable
from mandor.store.base import Delete, Put
from tests.sim.test_agent_names import elsewhere, hosts, launched
from tests.sim.test_agent_traffic import serve_db
from tests.unit.agent.world import World, open_world

WEB = {"http": {"port": 8080, "host": "auto"}}


class Recorded(Names):
    """Keeps the tables that were applied; fails on request."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.opened = 0
        self.tables: list[NameTable] = []
        self.failing = False

    async def open(self) -> str:
        self.opened += 1
        if self.failing:
            raise Unavailable("port 53 of 169.254.53.53 cannot be used")
        self.folder.mkdir(parents=True, exist_ok=True)
        return "169.254.53.53"

    async def apply(self, table: NameTable) -> None:
        self.tables.append(table)

    async def close(self) -> None:
        return None

    async def remove(self) -> None:
        self.tables.clear()

    def addresses(self, name: str) -> tuple[str, ...]:
        found = self.tables[-1].records.get(name) if self.tables else None
        return found.addresses if found is not None else ()


@pytest.fixture
def names(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path / "agent" / "network" / "dns")


@pytest.fixture
async def world(tmp_path: Path, names: Recorded) -> AsyncIterator[World]:
    async with open_world(tmp_path / "agent", names=True, name_server=NameServer(names, names.folder)) as opened:
        yield opened


async def until(world: World, true: Callable[[], object]) -> None:
    async def holds() -> bool:
        return bool(true())

    await world.until(holds)


@pytest.mark.req("S2-30")
async def test_an_instance_gets_the_name_server_instead_of_a_hosts_file(world: World, names: Recorded) -> None:
    assert names.opened == 0, "a node without instances has no name server"
    await world.apply(ports=WEB)
    web = await world.order(ports={"http": 20_001})
    await world.until_phase(Phase.RUNNING)
    launch = launched(world, web.meta.name)
    assert launch.resolver == Resolver(("169.254.53.53",), ("default.mandor",))
    assert launch.resolver.text() == "nameserver 169.254.53.53\nsearch default.mandor\noptions ndots:1\n"
    assert "MANDOR_HOSTS" not in launch.env
    assert not any(each.path == "/etc/hosts" for each in launch.mounts)
    own = (await world.instance(web.meta.name)).status.address
    await until(world, lambda: names.addresses("web-0.default"))
    assert names.tables[-1].clients == ({own: "default"} if own else {})
    db = await elsewhere(world)
    service = await serve_db(world)
    await until(world, lambda: names.addresses("data.default") == ("10.0.0.2",))
    await world.store.commit(Put(db.changed(status=msgspec.structs.replace(db.status, ready=False))))
    await until(world, lambda: names.addresses("data.default") == ())
    await world.store.commit(Delete(service.key, service.meta.version))
    await until(world, lambda: "data.default" not in names.tables[-1].records)


async def test_without_a_name_server_an_instance_gets_its_hosts_file(world: World, names: Recorded) -> None:
    names.failing = True
    await world.apply(ports=WEB)
    web = await world.order(ports={"http": 20_001})
    await world.until_phase(Phase.RUNNING)
    launch = launched(world, web.meta.name)
    assert launch.resolver is None
    assert launch.env["MANDOR_HOSTS"]
    assert hosts(world, web.meta.uid).exists()
    assert names.tables == []


@pytest.mark.parametrize("options", [{"dns": ["10.0.0.1"]}, {"network": "host"}, {"network": "none"}])
async def test_a_task_with_its_own_servers_or_the_network_of_the_node_keeps_its_hosts_file(
    world: World, names: Recorded, options: dict[str, object]
) -> None:
    await world.apply(ports=WEB, options={"fake": options})
    web = await world.order(ports={"http": 20_001})

    def started() -> bool:
        return any(each.launch.name == web.meta.name for each in world.units.all())

    await until(world, started)
    launch = launched(world, web.meta.name)
    assert launch.resolver is None
    assert launch.env["MANDOR_HOSTS"]


async def test_a_new_agent_keeps_the_table_until_it_knows_all_services(world: World, names: Recorded) -> None:
    await world.apply(ports=WEB)
    await world.order(ports={"http": 20_001})
    await world.until_phase(Phase.RUNNING)
    await until(world, lambda: names.addresses("web-0.default"))
    count = len(names.tables)
    await world.kill_agent()
    world.wire.cut()
    await world.boot_agent()
    await world.pass_time(30)
    assert len(names.tables) == count
    world.wire.mend()
    await until(world, lambda: len(names.tables) > count)
    assert names.addresses("web-0.default")
