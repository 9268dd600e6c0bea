"""Limit defaults over HTTP: tasks that say nothing get their amounts, no task gets more than the most."""

import pytest

from mandor.errors import Conflict, Forbidden, Invalid
from mandor.model.group import FLAT
from mandor.model.meta import Key
from mandor.model.resources import TaskResources
from mandor.model.workload import Workload
from tests.api.conftest import Api
from tests.api.test_apply import actions, send

SPACE = "kind: namespace\nname: team\n"
DEFAULTS = """\
kind: limit-defaults
name: usual
namespace: team
resources: {cpu: 100m, memory: 128Mi, limits: {memory: 256Mi}}
most: {cpu: 2, memory: 1Gi}
"""
WEB = "name: web\nnamespace: team\nengine: fake\ncommand: [serve]\n"


async def resources(dev: Api, name: str = "web") -> TaskResources:
    found = await dev.store.get(Key(Workload.kind, "team", name))
    assert isinstance(found, Workload)
    return found.spec.groups[FLAT].tasks[FLAT].resources


async def test_a_task_that_shows_nothing_gets_the_defaults_of_its_namespace(dev: Api) -> None:
    client = await dev.client()
    await send(client, f"{SPACE}---\n{DEFAULTS}---\n{WEB}")
    got = await resources(dev)
    assert (str(got.cpu), str(got.memory)) == ("100m", "128Mi")
    assert (str(got.limits.cpu), str(got.limits.memory)) == ("2", "256Mi")
    assert actions(await send(client, WEB)) == {"web": "unchanged"}


async def test_what_a_task_shows_counts_and_the_rest_is_fitted_to_it(dev: Api) -> None:
    client = await dev.client()
    await send(client, f"{SPACE}---\n{DEFAULTS}")
    await send(client, WEB + "resources: {memory: 512Mi, limits: {cpu: 50m}}\n")
    got = await resources(dev)
    assert (str(got.memory), str(got.limits.memory)) == ("512Mi", "512Mi"), "the usual limit would be below the request"
    assert (str(got.cpu), str(got.limits.cpu)) == ("50m", "50m"), "the usual request would be above the limit"


@pytest.mark.parametrize(
    ("asked", "line", "words"),
    [
        ("resources: {cpu: 3}\n", 5, "cpu 3; the namespace team allows 2 at most"),
        ("resources:\n  limits:\n    memory: 2Gi\n", 7, "limits.memory 2Gi; the namespace team allows 1Gi at most"),
    ],
)
async def test_more_than_the_most_is_refused_with_its_line(dev: Api, asked: str, line: int, words: str) -> None:
    client = await dev.client()
    await send(client, f"{SPACE}---\n{DEFAULTS}")
    with pytest.raises(Forbidden, match=words) as refused:
        await send(client, WEB + asked)
    assert refused.value.facts["line"] == line


async def test_defaults_that_come_later_restart_nothing_until_the_workload_changes(dev: Api) -> None:
    client = await dev.client()
    await send(client, f"{SPACE}---\n{WEB}")
    await send(client, DEFAULTS)
    assert actions(await send(client, WEB + "replicas: 2\n")) == {"web": "changed"}
    assert (await resources(dev)) == TaskResources(), "scaled, not changed"
    await client.call(
        "PATCH",
        "/v1/workloads/web",
        dict,
        query={"namespace": "team"},
        body={"spec": {"groups": {FLAT: {"replicas": 3}}}},
    )
    assert (await resources(dev)) == TaskResources()
    await send(client, WEB.replace("serve", "serve-faster"))
    assert str((await resources(dev)).limits.memory) == "256Mi"


async def test_put_fills_in_the_defaults_too(dev: Api) -> None:
    client = await dev.client()
    await send(client, f"{SPACE}---\n{DEFAULTS}")
    spec = {"groups": {FLAT: {"engine": ["fake"], "tasks": {FLAT: {"command": ["serve"]}}}}}
    answer = await client.call("PUT", "/v1/workloads/web", dict, query={"namespace": "team"}, body={"spec": spec})
    assert answer["spec"]["groups"][FLAT]["tasks"][FLAT]["resources"]["cpu"] == "100m"


async def test_a_namespace_has_one_set_of_defaults(dev: Api) -> None:
    client = await dev.client()
    await send(client, f"{SPACE}---\n{DEFAULTS}")
    with pytest.raises(Conflict, match="already has limit-defaults: usual"):
        await send(client, DEFAULTS.replace("usual", "other"))
    assert actions(await send(client, DEFAULTS.replace("100m", "200m"))) == {"usual": "changed"}
    with pytest.raises(Conflict, match="team still contains 1 objects"):
        await client.call("DELETE", "/v1/namespaces/team", dict)


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("kind: limit-defaults\nname: x\n", 1, "set `resources`, `most` or both"),
        ("kind: limit-defaults\nname: x\nresources: {cpu: 2}\nmost: {cpu: 1}\n", 1, "above `most.cpu`, which is 1"),
        ("kind: limit-defaults\nname: x\nresources: {devices: [{kind: gpu}]}\n", 1, "cannot have a default"),
        ("kind: limit-defaults\nname: x\nmost: {cpus: 1}\n", 3, "cpus"),
        ("kind: limit-defaults\nname: x\nnamespace: nowhere\nmost: {cpu: 1}\n", 3, "no namespace nowhere"),
    ],
)
async def test_bad_defaults_are_refused_with_their_line(dev: Api, text: str, line: int, word: str) -> None:
    client = await dev.client()
    with pytest.raises(Invalid, match=word) as refused:
        await send(client, text)
    assert refused.value.facts["line"] == line


async def test_a_namespace_allows_only_the_options_it_names(dev: Api) -> None:
    client = await dev.client()
    await send(client, SPACE + "options: [docker.shm_size, incus.*]\n")
    fine = "options:\n  docker: {shm_size: 64Mi}\n  incus: {privileged: true}\n"
    assert actions(await send(client, WEB + fine)) == {"web": "created"}
    with pytest.raises(Forbidden, match=r"does not allow the option docker\.privileged") as refused:
        await send(client, WEB + "options:\n  docker:\n    privileged: true\n")
    assert refused.value.facts["line"] == 7
    with pytest.raises(Forbidden, match=r"does not allow security\.cap_add") as refused:
        await send(client, WEB + "security:\n  cap_add: [NET_ADMIN]\n")
    assert refused.value.facts["line"] == 6
    await send(client, SPACE + "options: ['security.*']\n")
    assert actions(await send(client, WEB + "security: {cap_add: [NET_ADMIN]}\n")) == {"web": "changed"}


async def test_what_a_namespace_shows_holds_for_every_form(dev: Api) -> None:
    client = await dev.client()
    await send(client, f"{SPACE}engines: [fake]\n---\n{DEFAULTS}")
    with pytest.raises(Forbidden, match="does not allow the engine process") as refused:
        await send(client, WEB + "alternatives:\n  - {command: [other]}\n  - {engine: process}\n")
    assert refused.value.facts["line"] == 7
    with pytest.raises(Forbidden, match="cpu 3; the namespace team allows 2 at most"):
        await send(client, WEB + "alternatives:\n  - resources: {cpu: 3}\n")
    await send(client, WEB + "alternatives:\n  - resources: {cpu: 1}\n")
    found = await dev.store.get(Key(Workload.kind, "team", "web"))
    assert isinstance(found, Workload)
    form = found.spec.groups[FLAT].forms[1].tasks[FLAT].resources
    assert (str(form.cpu), str(form.memory), str(form.limits.cpu)) == ("1", "128Mi", "2")


async def test_an_admin_of_one_namespace_does_not_set_its_bounds(api: Api) -> None:
    whole = await api.client(await api.token("admin", "user:root"))
    await send(whole, f"{SPACE}---\n{DEFAULTS}")
    own = await api.client(await api.token("admin", "user:ani", namespaces=("team",)))
    with pytest.raises(Forbidden, match=r"may not .*limit-defaults"):
        await send(own, DEFAULTS.replace("128Mi", "64Mi"))
