"""Counts that follow their load, over HTTP: who sets them, what an apply keeps, and what bad ones get."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from mandor.errors import Conflict, Invalid
from mandor.model.meta import Key
from mandor.model.workload import Workload
from mandor.store.base import Put
from tests.api.conftest import Api
from tests.api.test_apply import actions, send, stored

WEB = """\
name: web
command: [sleep, '60']
resources: {cpu: 500m, memory: 64Mi}
autoscale: {min: 2, max: 10, cpu: 70%}
"""


async def count(api: Api) -> int | None:
    found = await stored(api, "web")
    assert found is not None
    return found.spec.groups["main"].replicas


async def scale(api: Api, to: int) -> None:
    """As the autoscaler does."""
    found = await stored(api, "web")
    assert found is not None
    groups = {"main": replace(found.spec.groups["main"], replicas=to)}
    await api.store.commit(Put(found.changed(spec=replace(found.spec, groups=groups))))


@pytest.mark.req("S2-47")
async def test_an_apply_begins_with_the_fewest_and_then_keeps_what_the_load_made_of_it(dev: Api) -> None:
    client = await dev.client()
    await send(client, WEB)
    assert await count(dev) == 2
    await scale(dev, 7)
    assert actions(await send(client, WEB)) == {"web": "unchanged"}
    assert actions(await send(client, WEB + "replicas: 3\n")) == {"web": "unchanged"}
    assert await count(dev) == 7
    await send(client, WEB.replace("max: 10", "max: 5"))
    assert await count(dev) == 5
    await send(client, WEB.replace("autoscale: {min: 2, max: 10, cpu: 70%}\n", ""))
    assert await count(dev) == 5
    await send(client, WEB.replace("min: 2", "min: 1") + "replicas: 3\n")
    assert await count(dev) == 3


@pytest.mark.req("S2-47")
async def test_users_cannot_set_a_count_that_autoscale_sets(dev: Api) -> None:
    client = await dev.client()
    await send(client, WEB)
    with pytest.raises(Conflict, match="the count of web is set by `autoscale`") as raised:
        await client.call("PATCH", "/v1/workloads/web", dict, body={"spec": {"groups": {"main": {"replicas": 4}}}})
    assert "autoscale" in (raised.value.hint or "")
    wider = {"spec": {"groups": {"main": {"autoscale": {"min": 3}}}}}
    await client.call("PATCH", "/v1/workloads/web", dict, body=wider)
    found = await stored(dev, "web")
    assert found is not None
    assert found.spec.groups["main"].count == 3
    body: dict[str, Any] = await client.call("GET", "/v1/workloads/web", dict)
    body["spec"]["groups"]["main"].pop("replicas")
    body["meta"].pop("version")
    await client.call("PUT", "/v1/workloads/web", dict, body=body)
    found = await stored(dev, "web")
    assert found is not None
    assert found.spec.groups["main"].count == 3


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        (("min: 2", "min: 11"), 4, "`min` is 11, more than `max`, which is 10"),
        (("min: 2", "min: 0"), 4, "no instance whose usage can be measured"),
        ((", cpu: 70%", ""), 4, "autoscale has no target"),
        (("cpu: 70%", "cpu: 0%"), 4, "0% is out of range"),
        (("cpu: 70%", "cpu: most"), 4, "'most' is not a percentage"),
        (("cpu: 70%", "cpu: 70%, up: {per: 2h}"), 4, "2h is out of range"),
        (("cpu: 70%", "metric: {query: up, target: 0}"), 4, "the target 0 is out of range"),
        (("cpu: 70%", "metric: {query: up, target: 1, url: 'ftp://x'}"), 4, "not the URL of a Prometheus server"),
        (("cpu: 70%", "metric: {query: up, target: 1, url: 'http://me:word@x'}"), 4, "must not contain credentials"),
        (("cpu: 500m, ", ""), 4, "the target 70% of the requested cpu, but the group requests none"),
        (("name: web", "name: web\ntype: batch"), 5, "only a service can have `autoscale`"),
        (("name: web", "name: web\ngang: {min: 2}"), 5, "a gang cannot be scaled by load"),
        (("name: web", "name: web\nupdate: {canary: 3}"), 2, "3 canaries are more than `autoscale.min`, which is 2"),
    ],
)
async def test_what_cannot_be_scaled_is_refused_with_its_line(
    dev: Api, change: tuple[str, str], line: int, says: str
) -> None:
    client = await dev.client()
    with pytest.raises(Invalid) as raised:
        await send(client, WEB.replace(*change))
    assert says in str(raised.value)
    assert raised.value.facts["line"] == line
    assert await dev.store.get(Key("workload", "default", "web")) is None


async def test_what_the_defaults_of_its_namespace_ask_for_counts(dev: Api) -> None:
    client = await dev.client()
    defaults = "kind: limit-defaults\nname: usual\nresources: {cpu: 100m}\n---\n"
    await send(client, defaults + WEB.replace("cpu: 500m, ", ""))
    found = await stored(dev, "web")
    assert isinstance(found, Workload)
    assert found.spec.groups["main"].request.cpu_milli == 100


async def test_autoscale_bounds_without_a_choice_give_a_warning(dev: Api) -> None:
    client = await dev.client()
    answer = await send(client, WEB.replace("max: 10", "max: 2"))
    assert "has no effect" in answer["results"][0]["warnings"][0]
