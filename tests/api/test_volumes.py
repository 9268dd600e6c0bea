"""Volumes over HTTP: create in advance, read, and delete when unused."""

from __future__ import annotations

import pytest

from mandor.errors import Conflict, Forbidden, Invalid
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus
from mandor.model.meta import Key, Meta
from mandor.model.phase import Phase
from mandor.model.volume import Volume, VolumeStatus
from mandor.store.base import Put
from tests.api.conftest import Api
from tests.api.test_apply import actions, send

SHOP = "kind: volume\nname: shop\nsize: 10Gi\npool: ssd\nwhere: [disk == nvme]\n"
WEB = "name: web\ncommand: [x]\nvolumes: {data: {volume: shop}}\nmounts: [{volume: data, path: /data}]\n"
KEY = Key("volume", "default", "shop")


async def used(dev: Api, phase: Phase = Phase.RUNNING) -> None:
    spec = InstanceSpec(workload="web", release="web.1", index=0, node="n1", volumes=("shop",))
    instance = Instance(meta=Meta(name="web-0", namespace="default"), spec=spec, status=InstanceStatus(phase=phase))
    await dev.store.commit(Put(instance))


@pytest.mark.req("S2-37", "S3-10")
async def test_a_volume_is_applied_shown_and_changed_without_its_status(dev: Api) -> None:
    client = await dev.client()
    assert actions(await send(client, f"{SHOP}---\n{WEB}")) == {"shop": "created", "web": "created"}
    found = await dev.store.get(KEY)
    assert isinstance(found, Volume)
    await dev.store.commit(Put(found.changed(status=VolumeStatus(phase="Bound", node="n1", path="/x"))))
    assert actions(await send(client, SHOP.replace("10Gi", "20Gi"))) == {"shop": "changed"}
    shown = await client.call("GET", "/v1/volumes/shop", dict)
    assert shown["spec"]["size"] == "20Gi"
    assert shown["status"] == {"phase": "Bound", "node": "n1", "path": "/x"}
    listed = await client.call("GET", "/v1/volumes?node=n1", dict)
    assert [each["meta"]["name"] for each in listed["items"]] == ["shop"]


async def test_a_volume_in_use_is_not_deleted(dev: Api) -> None:
    client = await dev.client()
    await send(client, f"{SHOP}---\n{WEB}")
    await used(dev)
    with pytest.raises(Conflict, match="the volume shop is used by web-0") as refused:
        await client.call("DELETE", "/v1/volumes/shop", dict)
    assert "deletes its data" in (refused.value.hint or "")
    with pytest.raises(Conflict, match="is used by web-0"):
        await send(client, SHOP, "/v1/delete", volumes=True)
    assert await dev.store.get(KEY) is not None


@pytest.mark.parametrize("phase", [Phase.LOST, Phase.STOPPED])
async def test_a_volume_without_instances_can_be_deleted(dev: Api, phase: Phase) -> None:
    client = await dev.client()
    await send(client, SHOP)
    await used(dev, phase)
    await client.call("DELETE", "/v1/volumes/shop", dict)
    assert await dev.store.get(KEY) is None


async def test_a_namespace_with_a_volume_in_it_stays(dev: Api) -> None:
    client = await dev.client()
    await send(client, "kind: namespace\nname: team\n---\n" + SHOP + "namespace: team\n")
    with pytest.raises(Conflict, match="still contains 1 objects, for example volume team/shop"):
        await client.call("DELETE", "/v1/namespaces/team", dict)


@pytest.mark.req("S2-37")
async def test_delete_by_manifest_keeps_volumes_unless_told_otherwise(dev: Api) -> None:
    client = await dev.client()
    text = f"{SHOP}---\n{WEB}"
    await send(client, text)
    planned = await send(client, text, "/v1/delete", dry_run=True)
    assert actions(planned) == {"shop": "kept", "web": "deleted"}
    done = await send(client, text, "/v1/delete")
    assert actions(done) == {"shop": "kept", "web": "deleted"}
    (kept,) = (each for each in done["results"] if each["name"] == "shop")
    assert kept["warnings"] == ["its data is kept; `--volumes` deletes it"]
    assert await dev.store.get(KEY) is not None
    assert actions(await send(client, text, "/v1/delete", volumes=True)) == {"shop": "deleted", "web": "unchanged"}
    assert await dev.store.get(KEY) is None


async def test_delete_by_manifest_deletes_a_volume_that_is_to_be_reclaimed(dev: Api) -> None:
    client = await dev.client()
    text = SHOP + "reclaim: delete\n"
    await send(client, text)
    assert actions(await send(client, text, "/v1/delete")) == {"shop": "deleted"}


async def test_delete_by_manifest_lists_the_kept_volumes_of_a_workload(dev: Api) -> None:
    client = await dev.client()
    web = WEB.replace("{volume: shop}", "{}")
    await send(client, web)
    kept = Volume(meta=Meta(name="data-web", namespace="default"), status=VolumeStatus(workload="web", node="n1"))
    other = Volume(meta=Meta(name="data-db", namespace="default"), status=VolumeStatus(workload="db", node="n1"))
    await dev.store.commit(Put(kept), Put(other))
    assert actions(await send(client, web, "/v1/delete")) == {"web": "deleted", "data-web": "kept"}


async def test_delete_by_manifest_keeps_a_namespace_with_kept_volumes(dev: Api) -> None:
    client = await dev.client()
    text = "kind: namespace\nname: team\n---\n" + SHOP + "namespace: team\n"
    await send(client, text)
    done = await send(client, text, "/v1/delete")
    assert actions(done) == {"shop": "kept", "team": "kept"}
    (team,) = (each for each in done["results"] if each["name"] == "team")
    assert team["warnings"] == ["it contains volumes that are kept: shop"]
    assert await dev.store.get(Key("namespace", "", "team")) is not None
    assert await dev.store.get(Key("volume", "team", "shop")) is not None


async def test_a_volume_needs_a_namespace_that_exists(dev: Api) -> None:
    client = await dev.client()
    with pytest.raises(Invalid, match="there is no namespace elsewhere"):
        await send(client, SHOP + "namespace: elsewhere\n")


async def test_a_namespace_shows_which_host_paths_it_may_use(dev: Api) -> None:
    client = await dev.client()
    space = "kind: namespace\nname: team\nengines: [process]\nhost_paths: [/srv/team]\n"
    web = "name: web\nnamespace: team\ncommand: [x]\nvolumes: {h: {type: host, path: PATH}}\n"
    with pytest.raises(Forbidden, match="does not allow the host path /srv/teams"):
        await send(client, f"{space}---\n{web.replace('PATH', '/srv/teams')}")
    await send(client, f"{space}---\n{web.replace('PATH', '/srv/team/data')}")
