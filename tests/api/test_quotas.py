"""Quotas over HTTP: applied, shown, bounded to admins of the whole cluster; and names that do not collide."""

import pytest

from mandor.errors import Conflict, Forbidden, Invalid
from mandor.model.meta import Key
from mandor.model.quota import Quota
from tests.api.conftest import Api
from tests.api.test_apply import actions, send, stored

SPACE = "kind: namespace\nname: team\n"
QUOTA = "kind: quota\nname: all\nnamespace: team\ncpu: 20\nmemory: 64Gi\ninstances: 100\ndevices: {nvidia/gpu: 4}\n"


async def test_a_quota_is_applied_with_its_namespace_changed_and_deleted(dev: Api) -> None:
    client = await dev.client()
    assert actions(await send(client, f"{QUOTA}---\n{SPACE}")) == {"all": "created", "team": "created"}
    found = await dev.store.get(Key(Quota.kind, "team", "all"))
    assert isinstance(found, Quota)
    assert found.spec.amounts == {"cpu": 20_000, "memory": 64 << 30, "instances": 100, "nvidia/gpu": 4}
    assert actions(await send(client, QUOTA.replace("20", "30"))) == {"all": "changed"}
    with pytest.raises(Conflict, match="team still contains 1 objects, for example quota team/all"):
        await client.call("DELETE", "/v1/namespaces/team", dict)
    assert actions(await send(client, QUOTA, "/v1/delete")) == {"all": "deleted"}


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("kind: quota\nname: all\n", 1, "at least one of cpu"),
        ("kind: quota\nname: all\ncpu: much\n", 3, "an amount of CPU"),
        ("kind: quota\nname: all\ninstances: -1\n", 3, "instances"),
        ("kind: quota\nname: all\ndevices: {GPU: 1}\n", 1, "not a kind of device"),
        ("kind: quota\nname: all\ncpu: 1\npriority_class: lwo\n", 4, "there is no priority class lwo"),
        ("kind: quota\nname: all\ncpu: 1\nnamespace: nowhere\n", 4, "there is no namespace nowhere"),
    ],
)
async def test_a_bad_quota_is_refused_with_its_line(dev: Api, text: str, line: int, word: str) -> None:
    client = await dev.client()
    with pytest.raises(Invalid, match=word) as refused:
        await send(client, text)
    assert refused.value.facts["line"] == line


async def test_an_admin_of_one_namespace_does_not_set_its_bounds(api: Api) -> None:
    whole = await api.client(await api.token("admin", "user:root"))
    await send(whole, f"{SPACE}---\n{QUOTA}")
    own = await api.client(await api.token("admin", "user:ani", namespaces=("team",)))
    with pytest.raises(Forbidden, match=r"may not .*quota"):
        await send(own, QUOTA.replace("20", "2000"))
    with pytest.raises(Forbidden, match=r"may not .*quota"):
        await own.call("DELETE", "/v1/quotas/all?namespace=team", dict)


GROUPS = "name: {name}\ngroups: {{{group}: {{tasks: {{main: {{command: [sleep, '1']}}}}}}}}\n"
FLAT = "name: {name}\ncommand: [sleep, '1']\n"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (GROUPS.format(name="shop", group="web"), FLAT.format(name="shop-web")),
        (FLAT.format(name="shop-web"), GROUPS.format(name="shop", group="web")),
        (GROUPS.format(name="a", group="b-c"), GROUPS.format(name="a-b", group="c")),
        (FLAT.format(name="shop-1"), GROUPS.format(name="shop", group="1")),
    ],
)
async def test_workloads_whose_instances_would_share_names_are_refused(dev: Api, first: str, second: str) -> None:
    client = await dev.client()
    await send(client, first)
    with pytest.raises(Conflict, match="would be named"):
        await send(client, second)
    with pytest.raises(Conflict, match="would be named"):
        await send(client, f"{FLAT.format(name='other')}---\n{second}")
    assert await stored(dev, "other") is None


async def test_both_in_one_file_are_refused_too_and_neighbours_are_not(dev: Api) -> None:
    client = await dev.client()
    with pytest.raises(Conflict, match="like those of the workload"):
        await send(client, f"{GROUPS.format(name='shop', group='web')}---\n{FLAT.format(name='shop-web')}")
    await send(client, f"{GROUPS.format(name='shop', group='web')}---\n{FLAT.format(name='shop-we')}")
