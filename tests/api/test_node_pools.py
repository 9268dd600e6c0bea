"""Pools that get machines, over HTTP: bad ones, ones that have machines, and what a machine gets as it joins."""

from __future__ import annotations

import pytest

from mandor.errors import Conflict, Invalid, NotFound
from mandor.lib.secret_files import SecretFiles
from mandor.model.machine import Machine, PoolScaling
from mandor.model.meta import Key
from mandor.model.node import Node, Taint
from mandor.model.pool import NodePool, NodePoolStatus
from mandor.store.base import Put
from tests.api.conftest import Api
from tests.api.test_apply import send

POOL = """\
kind: node-pool
name: burst
autoscale:
  provisioner: fake
  max: 3
  kinds:
    small: {cpu: 2, memory: 4Gi, labels: {size: small}, taints: ["burst:NoSchedule"]}
"""


async def order(api: Api, *names: str, unmade: bool = False) -> None:
    found = await api.store.get(Key("node-pool", "", "burst"))
    assert isinstance(found, NodePool)
    made = [Machine(id=name, kind="small", at=1.0, unmade=unmade) for name in names or ("burst-1",)]
    scaling = PoolScaling(machines=tuple(made))
    await api.store.commit(Put(found.changed(status=NodePoolStatus(scaling=scaling))))


@pytest.mark.req("S2-48")
async def test_a_machine_has_its_taints_and_labels_before_any_work_comes(dev: Api) -> None:
    client = await dev.client()
    await send(client, POOL)
    await order(dev)
    for name in ("burst-1", "other"):
        await client.call("POST", f"/v1/nodes/{name}/join", dict, body={"pool": "burst"})
    ordered, other = [await dev.store.get(Key("node", "", name)) for name in ("burst-1", "other")]
    assert isinstance(ordered, Node)
    assert isinstance(other, Node)
    assert ordered.spec.taints == (Taint("burst"),)
    assert ordered.labels == {"size": "small"}
    assert not other.spec.taints


async def test_machines_are_not_forgotten(dev: Api) -> None:
    client = await dev.client()
    await send(client, POOL)
    await order(dev)
    with pytest.raises(Conflict, match="has 1 machines"):
        await send(client, "kind: node-pool\nname: burst\n")
    with pytest.raises(Conflict, match="has 1 machines"):
        await client.call("DELETE", "/v1/node-pools/burst", dict)
    object.__setattr__(dev.parts, "files", SecretFiles("/etc/mandor"))
    other = "pipeline\n  settings: {url: 'https://x.example/', secret_file: s}"
    with pytest.raises(Conflict, match="has 1 machines") as raised:
        await send(client, POOL.replace("fake", other))
    assert "max: 0" in (raised.value.hint or "")
    await send(client, POOL.replace("max: 3", "max: 0"))


async def test_a_pool_whose_machines_were_never_made_can_be_corrected_and_deleted(dev: Api) -> None:
    client = await dev.client()
    object.__setattr__(dev.parts, "files", SecretFiles("/etc/mandor"))
    other = "pipeline\n  settings: {url: 'https://x.example/', secret_file: s}"
    for _ in range(2):
        await send(client, POOL)
        await order(dev, unmade=True)
        await send(client, POOL.replace("fake", other))
        await client.call("DELETE", "/v1/node-pools/burst", dict)


async def test_credentials_of_a_provisioner_can_be_replaced_while_it_has_machines(dev: Api) -> None:
    client = await dev.client()
    object.__setattr__(dev.parts, "files", SecretFiles("/etc/mandor"))
    pool = POOL.replace("fake", "pipeline\n  settings: {url: 'https://x.example/', secret_file: s}")
    await send(client, pool)
    await order(dev)
    await send(client, pool.replace("secret_file: s", "secret_file: t"))
    with pytest.raises(Conflict, match="has 1 machines"):
        await send(client, pool.replace("x.example", "y.example"))


async def test_records_of_machines_that_do_not_exist_are_removed_on_request(dev: Api) -> None:
    client = await dev.client()
    await send(client, POOL)
    await order(dev, "burst-1", "burst-2")
    await client.call("POST", "/v1/nodes/burst-2/join", dict, body={"pool": "burst"})
    path = "/v1/node-pools/burst/forget"
    with pytest.raises(NotFound, match="has no machine burst-9"):
        await client.call("POST", path, dict, body={"machines": ["burst-1", "burst-9"]})
    with pytest.raises(Conflict, match="the machine burst-2 exists"):
        await client.call("POST", path, dict, body={"machines": ["burst-1", "burst-2"]})
    with pytest.raises(Invalid):
        await client.call("POST", path, dict, body={"machines": []})
    left = await client.call("POST", path, dict, body={"machines": ["burst-1"]})
    assert [each["id"] for each in left["status"]["scaling"]["machines"]] == ["burst-2"]
    audits = [each.spec.verb for each in (await dev.store.list("audit")).items]
    assert "forget" in audits


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        (("max: 3", "max: 3\n  min: 4"), 6, "`min` is 4, more than `max`, which is 3"),
        (("fake", "pipelien"), 4, "there is no provisioner called 'pipelien'"),
        (("max: 3", "max: 3\n  settings: {adress: x}"), 4, "has no setting `adress`"),
        (("fake", "pipeline"), 4, "needs the setting `url`"),
        (("cpu: 2", "cpu: 0"), 7, "`cpu` and `memory` must be above 0"),
        (("burst:NoSchedule", "burst"), 7, "is not a taint"),
        (("cpu: 2,", "cpu: 2, options: {image: x},"), 7, "there is no such option"),
        (
            ('    small: {cpu: 2, memory: 4Gi, labels: {size: small}, taints: ["burst:NoSchedule"]}\n', "    {}\n"),
            6,
            "`kinds` is empty",
        ),
    ],
)
async def test_a_pool_that_could_get_nothing_is_refused_with_its_line(
    dev: Api, change: tuple[str, str], line: int, says: str
) -> None:
    client = await dev.client()
    with pytest.raises(Invalid) as raised:
        await send(client, POOL.replace(*change))
    assert says in str(raised.value)
    assert raised.value.facts["line"] == line
