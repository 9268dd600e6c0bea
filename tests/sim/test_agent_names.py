"""Hosts files exist before a task starts, keep their inode, and are updated."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from mandor.agent.hosts_files import write_in_place
from mandor.engines.base import Launch
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus, PortStatus
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.service import Service, ServicePort, ServiceSource, ServiceSpec, ServiceStatus
from mandor.store.base import Delete, Put
from tests.unit.agent.world import World, open_world

WEB = {"http": {"port": 8080, "host": "auto"}}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path / "agent", names=True) as opened:
        yield opened


def hosts(world: World, uid: str) -> Path:
    return world.settings.data / "names" / uid / "hosts"


def launched(world: World, name: str) -> Launch:
    (found,) = [each.launch for each in world.units.all() if each.launch.name == name]
    return found


async def until_text(world: World, uid: str, *, has: str = "", lacks: str = "") -> str:
    async def so() -> bool:
        text = hosts(world, uid).read_text()
        return has in text and (not lacks or lacks not in text)

    await world.until(so)
    return hosts(world, uid).read_text()


async def elsewhere(world: World, name: str = "db-0", *, ready: bool = True, host: int = 5432) -> Instance:
    """Store an instance that runs on another node."""
    status = InstanceStatus(
        phase=Phase.RUNNING,
        ready=ready,
        address="172.17.0.9",
        host="10.0.0.2",
        ports=(PortStatus(name="sql", port=5432, host=host),),
    )
    spec = InstanceSpec(workload=name.rpartition("-")[0], release="db.1", index=0, node="n2")
    await world.store.commit(Put(Instance(meta=Meta(name=name, namespace="default"), spec=spec, status=status)))
    return await world.instance(name)


@pytest.mark.req("S2-6")
async def test_a_hosts_file_has_the_running_instances_and_is_updated(world: World) -> None:
    db = await elsewhere(world)
    await world.apply(ports=WEB)
    web = await world.order(ports={"http": 20_001})
    await world.until_phase(Phase.RUNNING)
    uid = web.meta.uid
    inode = hosts(world, uid).stat().st_ino
    text = await until_text(world, uid, has="10.0.0.2 db-0 main.db db\n")
    assert "web-0 main.web web" in text

    launch = launched(world, "web-0")
    mount = next(each for each in launch.mounts if each.path == "/etc/hosts")
    assert (mount.source, mount.read_only) == (str(hosts(world, uid)), True)
    assert launch.env["MANDOR_HOSTS"] == "/etc/hosts"

    await world.store.commit(Put(db.changed(status=msgspec.structs.replace(db.status, ready=False))))
    await until_text(world, uid, has="10.0.0.2 db-0\n", lacks="main.db")
    db = await world.instance("db-0")
    await world.store.commit(Delete(db.key, db.meta.version))
    await until_text(world, uid, lacks="db-0")
    await elsewhere(world, host=20_007)
    text = await until_text(world, uid, has="10.0.0.2 db-0\n")
    assert "main.db" not in text, "its port has another number there: only its own name leads to it"
    assert hosts(world, uid).stat().st_ino == inode


async def test_a_later_instance_gets_the_addresses_of_the_others(world: World) -> None:
    await elsewhere(world, host=20_007)
    await world.apply(ports=WEB)
    first = await world.order(ports={"http": 20_001})
    await world.until_phase(Phase.RUNNING)
    await until_text(world, first.meta.uid, has="db-0")
    await world.order(index=1, ports={"http": 20_002})
    await world.until_phase(Phase.RUNNING, "web-1")
    env = launched(world, "web-1").env
    assert env["MANDOR_ADDR_DB_SQL"] == "10.0.0.2:20007"
    assert env["MANDOR_ADDR_WEB_HTTP"].endswith(":8080"), "on the same node, its own address and port"
    assert "MANDOR_ADDR_DB_SQL" not in launched(world, "web-0").env, "it began before anybody was known"


async def test_a_restarted_agent_keeps_names_until_the_first_list_and_then_removes_old_ones(world: World) -> None:
    await elsewhere(world)
    await world.apply(ports=WEB)
    web = await world.order(ports={"http": 20_001})
    await world.until_phase(Phase.RUNNING)
    before = await until_text(world, web.meta.uid, has="db-0")
    inode = hosts(world, web.meta.uid).stat().st_ino
    await world.kill_agent()
    db = await world.instance("db-0")
    await world.store.commit(Delete(db.key, db.meta.version))
    await world.boot_agent()
    assert hosts(world, web.meta.uid).read_text() == before
    await until_text(world, web.meta.uid, lacks="db-0", has="web-0")
    assert hosts(world, web.meta.uid).stat().st_ino == inode
    await world.stop_order()
    await world.until_phase(Phase.STOPPED)
    await world.delete()

    async def gone() -> bool:
        return not hosts(world, web.meta.uid).parent.exists()

    await world.until(gone)


async def test_a_task_with_its_own_hosts_file_keeps_it(world: World) -> None:
    file = {"path": "/etc/hosts", "content": "127.0.0.1 localhost mine\n"}
    await world.apply(tasks={"main": {"command": ["run"], "files": [file]}})
    await world.order()
    await world.until_phase(Phase.RUNNING)
    launch = launched(world, "web-0")
    assert not launch.mounts
    assert launch.env["MANDOR_HOSTS"].endswith("/hosts")


def test_a_file_is_written_in_place(tmp_path: Path) -> None:
    path = tmp_path / "a" / "hosts"
    write_in_place(path, "a long text\n" * 10)
    inode = path.stat().st_ino
    for text in ("short\n", "and longer again\n" * 3, ""):
        write_in_place(path, text)
        assert path.read_text() == text
        assert path.stat().st_ino == inode


@pytest.mark.req("S2-6")
async def test_a_new_address_of_the_node_reaches_running_instances_without_a_restart(world: World) -> None:
    await world.apply(ports=WEB)
    web = await world.order(ports={"http": 20_001})
    await world.until_phase(Phase.RUNNING)
    assert (await world.status("web-0")).host == "10.0.0.1"
    started = (await world.status("web-0")).started_at

    world.address = "10.0.0.77"

    async def published() -> bool:
        return (await world.status("web-0")).host == "10.0.0.77"

    await world.until(published, seconds=120)
    assert (await world.status("web-0")).started_at == started, "the instance was not restarted"
    near = await world.order(index=1, ports={"http": 20_002})
    await world.until_phase(Phase.RUNNING, "web-1")
    assert launched(world, "web-1").env["MANDOR_NODE_ADDRESS"] == "10.0.0.77"

    world.address = ""  # no network for a while
    await world.pass_time(130, 5)
    assert (await world.status("web-0")).host == "10.0.0.77"
    assert hosts(world, web.meta.uid).exists()
    assert hosts(world, near.meta.uid).exists()


async def test_hosts_files_name_an_instance_in_the_network_of_the_node_by_its_new_address(world: World) -> None:
    await world.apply(ports=WEB)
    web = await world.order(ports={"http": 20_001})
    await world.until_phase(Phase.RUNNING)
    await until_text(world, web.meta.uid, has="10.0.0.1 web-0")
    world.address = "10.0.0.77"
    await world.pass_time(120, 5)
    await until_text(world, web.meta.uid, has="10.0.0.77 web-0", lacks="10.0.0.1 ")


async def serve_db(world: World, name: str = "data") -> None:
    """Store a service for the workload db."""
    spec = ServiceSpec(port={"sql": ServicePort(port=5432)}, to=(ServiceSource(workload="db"),))
    meta = Meta(name=name, namespace="default")
    await world.store.commit(Put(Service(meta=meta, spec=spec, status=ServiceStatus(number=64))))


@pytest.mark.req("S2-30")
async def test_a_service_resolves_by_all_its_names(world: World) -> None:
    await elsewhere(world)
    await world.apply(ports=WEB)
    web = await world.order(ports={"http": 20_001})
    await world.until_phase(Phase.RUNNING)
    await serve_db(world)
    text = await until_text(world, web.meta.uid, has=" data ")
    (line,) = [each.split() for each in text.splitlines() if "data" in each.split()]
    assert line[0] == "10.0.0.2", "nothing balances on this node, so the name leads to the instance"
    assert {"data.default", "data.default.mandor", "data.default.svc.cluster.local", "data.service.consul"} < {*line}


async def test_a_service_whose_port_has_another_number_on_the_node_does_not_resolve_without_a_balancer(
    world: World,
) -> None:
    await elsewhere(world, host=20_007)
    await world.apply(ports=WEB)
    web = await world.order(ports={"http": 20_001})
    await world.until_phase(Phase.RUNNING)
    await serve_db(world)
    await elsewhere(world, "cache-0")
    text = await until_text(world, web.meta.uid, has="cache-0")
    assert "data" not in text, "a client would connect to port 5432, which another program may have"
