"""Priority classes over HTTP: create, refer to, change, and no deletion while in use."""

import pytest

from mandor.errors import Conflict, Forbidden, Invalid
from mandor.model.meta import Key
from mandor.model.priority import PriorityClass
from tests.api.conftest import Api
from tests.api.test_apply import actions, send, stored

HIGH = "kind: priority-class\nname: high\nvalue: 100\ndescription: what must run\n"
WEB = "name: web\ncommand: [sleep, '60']\npriority: high\n"


@pytest.mark.req("S3-26")
async def test_a_class_and_workloads_that_name_it_are_applied_together(dev: Api) -> None:
    client = await dev.client()
    assert actions(await send(client, f"{WEB}---\n{HIGH}")) == {"web": "created", "high": "created"}
    found = await dev.store.get(Key(PriorityClass.kind, "", "high"))
    assert isinstance(found, PriorityClass)
    assert (found.spec.value, found.spec.preempt, found.spec.default) == (100, "lower", False)
    web = await stored(dev, "web")
    assert web is not None
    assert web.spec.priority == "high"
    assert actions(await send(client, HIGH.replace("100", "200"))) == {"high": "changed"}


async def test_an_unknown_class_is_refused_with_its_line_and_a_near_name(dev: Api) -> None:
    client = await dev.client()
    await send(client, HIGH)
    with pytest.raises(Invalid, match="there is no priority class hihg") as refused:
        await send(client, WEB.replace("high", "hihg"))
    assert refused.value.facts["line"] == 3
    assert (refused.value.hint or "").startswith("did you mean `high`?")
    assert await stored(dev, "web") is None


async def test_only_one_class_is_the_default(dev: Api) -> None:
    client = await dev.client()
    await send(client, HIGH + "default: true\n")
    other = "kind: priority-class\nname: low\nvalue: -5\ndefault: true\n"
    with pytest.raises(Conflict, match="high is already the default"):
        await send(client, other)
    assert actions(await send(client, f"{other}---\n{HIGH}")) == {"low": "created", "high": "changed"}


async def test_a_class_stays_while_a_workload_names_it(dev: Api) -> None:
    client = await dev.client()
    await send(client, f"{WEB}---\n{HIGH}")
    with pytest.raises(Conflict, match="1 workloads use the priority class high"):
        await client.call("DELETE", "/v1/priority-classes/high", dict)
    gone = await send(client, f"{HIGH}---\n{WEB}", "/v1/delete")
    assert actions(gone) == {"high": "deleted", "web": "deleted"}
    assert await dev.store.get(Key(PriorityClass.kind, "", "high")) is None


async def test_a_namespace_bounds_the_number_behind_the_name(dev: Api) -> None:
    client = await dev.client()
    space = "kind: namespace\nname: team\nlevel: privileged\npriority_most: 50\n"
    web = WEB + "namespace: team\n"
    with pytest.raises(Forbidden, match="no priority above 50; this is 100"):
        await send(client, f"{HIGH}---\n{space}---\n{web}")
    await send(client, f"{HIGH.replace('100', '50')}---\n{space}---\n{web}")
    with pytest.raises(Forbidden, match="no priority above 50; this is 60"):
        await send(
            client,
            "kind: priority-class\nname: all\nvalue: 60\ndefault: true\n---\n" + web.replace("priority: high\n", ""),
        )


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("kind: priority-class\nname: high\n", "`value` is missing", 1),
        ("kind: priority-class\nname: high\nvalue: many\n", "expected a whole number, got the text 'many'", 3),
        ("kind: priority-class\nname: high\nvalue: 3000000000\n", "3000000000 is above the maximum of 2147483647", 3),
        ("kind: priority-class\nname: high\nvalue: 1\npreempt: always\n", "`always` is not one of lower, never", 4),
        ("kind: priority-class\nname: high\nvalue: 1\nnamespace: team\n", "is cluster-wide and has no namespace", 4),
        ("name: web\ncommand: [run]\npriority: Not a name\n", "'Not a name' is not a name of a priority class", 1),
    ],
)
async def test_a_wrong_class_is_refused_where_it_is_wrong(dev: Api, text: str, message: str, line: int) -> None:
    client = await dev.client()
    with pytest.raises(Invalid) as refused:
        await send(client, text)
    assert message in str(refused.value)
    assert refused.value.facts["line"] == line
