"""Extenders over HTTPS, with certificates on both sides; and one that has a say in binding."""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from mandor.errors import Invalid
from mandor.placement.config import read_config
from mandor.placement.plugin_source import find_plugins
from tests.components.etcd import Tls
from tests.scenarios.make import make_workload
from tests.scenarios.world import World
from tests.sim.outside import Answer, ExtenderServer, asking_world, configure, extended, served, until


class Binding(ExtenderServer):
    refusal = ""

    async def handle(self, request: web.Request) -> web.Response:
        if request.match_info["verb"] != "bind":
            return await super().handle(request)
        self.asked.append(("bind", await request.json()))
        return web.json_response({"Error": self.refusal} if self.refusal else {})


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with asking_world() as made:
        yield made


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls.make(tmp_path / "tls")


@pytest.fixture
async def extender(tls: Tls) -> AsyncIterator[Binding]:
    """Serve with a certificate and require a client certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tls.ca_file))
    context.load_cert_chain(tls.server_cert_file, tls.server_key_file)
    context.verify_mode = ssl.CERT_REQUIRED
    server = Binding()
    async with served(server, context):
        yield server


def files(tls: Tls, **other: Any) -> dict[str, Any]:
    return {"caFile": str(tls.ca_file), "certFile": str(tls.cert_file), "keyFile": str(tls.key_file), **other}


async def test_an_extender_is_asked_over_https_with_a_certificate(
    world: World, tmp_path: Path, tls: Tls, extender: Binding
) -> None:
    extender.filter = lambda args: {"NodeNames": ["n2"]}
    configure(world, tmp_path, extended(extender.url, tlsConfig=files(tls, serverName="localhost"), enableHTTPS=True))
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("web", replicas=2))
    await until(world, lambda: world.serving_count("web") == 2)
    assert {each.node for each in world.instances()} == {"n2"}


async def test_an_extender_is_asked_about_each_form_and_may_let_only_another_pass(
    world: World, tmp_path: Path, tls: Tls, extender: Binding
) -> None:
    def small_only(args: dict[str, Any]) -> dict[str, Any]:
        asked = args["Pod"]["spec"]["containers"][0]["resources"]["requests"]["cpu"]
        return {"NodeNames": ["n2"] if asked == "500m" else []}

    extender.filter = small_only
    configure(world, tmp_path, extended(extender.url, tlsConfig=files(tls)))
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("web", replicas=2, cpu="2", alternatives=[{"resources": {"cpu": "500m"}}]))
    await until(world, lambda: world.serving_count("web") == 2)
    assert {(each.node, each.spec.variant) for each in world.instances()} == {("n2", 1)}


@pytest.mark.parametrize("wrong", ["no ca", "no certificate", "another name", "no such file"])
async def test_a_server_that_is_not_trusted_or_does_not_trust_is_not_asked(
    world: World, tmp_path: Path, tls: Tls, extender: Binding, wrong: str
) -> None:
    given = {
        "no ca": {"certFile": str(tls.cert_file), "keyFile": str(tls.key_file)},
        "no certificate": {"caFile": str(tls.ca_file)},
        "another name": files(tls, serverName="elsewhere.test"),
        "no such file": files(tls, caFile=str(tmp_path / "nothing.pem")),
    }[wrong]
    configure(world, tmp_path, extended(extender.url, tlsConfig=given))
    await world.add_nodes("n1")
    await world.apply(make_workload("web", replicas=1))
    await until(world, lambda: bool(world.instances()) and world.instance("web-0").status.reason == "PluginFault")
    assert extender.asked == []
    assert world.instance("web-0").node == ""


@pytest.mark.req("S1-24")
async def test_an_extender_is_asked_before_the_bind_and_may_refuse(
    world: World, tmp_path: Path, tls: Tls, extender: Binding
) -> None:
    extender.refusal = "no address is left"
    only = {"filterVerb": None, "prioritizeVerb": None, "weight": None}
    configure(world, tmp_path, extended(extender.url, bindVerb="bind", tlsConfig=files(tls), **only))
    await world.add_nodes("n1")
    await world.apply(make_workload("web", replicas=1))
    await until(world, lambda: bool(world.instances()) and "no address" in world.instance("web-0").status.message)
    assert world.instance("web-0").node == ""
    verb, asked = extender.asked[0]
    assert (verb, asked["PodName"], asked["PodNamespace"], asked["Node"]) == ("bind", "web-0", "default", "n1")

    extender.refusal = ""
    await until(world, lambda: world.serving_count("web") == 1)
    assert world.instance("web-0").node == "n1"


async def test_a_binder_extender_is_skipped_for_unmanaged_resources(
    world: World, tmp_path: Path, tls: Tls, extender: Binding
) -> None:
    managed = [{"name": "gpu", "ignoredByScheduler": True}]
    text = extended(extender.url, bindVerb="bind", tlsConfig=files(tls), managedResources=managed)
    configure(world, tmp_path, text)
    await world.add_nodes("n1")
    await world.apply(make_workload("web", replicas=1))
    await until(world, lambda: world.serving_count("web") == 1)
    assert extender.asked == []

    world.checks.clear()  # the nodes do not know of it
    group = make_workload("train", replicas=1)
    await world.apply(group.changed(spec=_with_gpu(group.spec)))
    await until(world, lambda: world.serving_count("train") == 1)
    assert [verb for verb, _ in extender.asked] == ["filter", "prioritize", "bind"], "nobody else counts its GPUs"


def _with_gpu(spec: Any) -> Any:
    from mandor.model.codec import from_plain, to_plain
    from mandor.model.workload import WorkloadSpec

    plain: Any = to_plain(spec)
    plain["groups"]["main"]["tasks"]["main"]["resources"] = {"devices": [{"kind": "gpu"}]}
    return from_plain(plain, WorkloadSpec)


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ("tlsConfig: {insecure: true}", "insecure is not supported"),
        ("tlsConfig: {certFile: a.pem}", "must be set together"),
        ("enableHTTPS: true, urlPrefix: 'http://x'", "https://"),
        ("tlsConfig: {}, urlPrefix: 'http://x'", "belongs to"),
    ],
)
def test_what_an_extender_cannot_be_is_refused_with_its_line(fields: str, word: str) -> None:
    parts = ["filterVerb: filter", *([] if "urlPrefix" in fields else ["urlPrefix: 'https://x'"]), fields]
    with pytest.raises(Invalid, match=word) as refused:
        read_config(f"extenders:\n- {{{', '.join(parts)}}}\n", find_plugins())
    assert refused.value.facts["line"] == 2


def test_only_one_extender_binds() -> None:
    text = "extenders:\n- {urlPrefix: 'http://x', bindVerb: b}\n- {urlPrefix: 'http://y', bindVerb: b}\n"
    with pytest.raises(Invalid, match="only one extender"):
        read_config(text, find_plugins())


# A say in who has to go.


class Preempting(ExtenderServer):
    def __init__(self) -> None:
        super().__init__()
        self.preempt: Answer = lambda args: {"NodeNameToMetaVictims": self.victims(args)}

    def victims(self, args: dict[str, Any]) -> dict[str, Any]:
        """Return the nodes in the order of the request."""
        named: dict[str, Any] = args["NodeNameToMetaVictims"]
        return named

    async def handle(self, request: web.Request) -> web.Response:
        if request.match_info["verb"] != "preempt":
            return await super().handle(request)
        args = await request.json()
        self.asked.append(("preempt", args))
        return web.json_response(self.preempt(args), status=self.status)

    def questions(self, verb: str = "preempt") -> list[dict[str, Any]]:
        return [args for asked, args in self.asked if asked == verb]


@pytest.fixture
async def preempting() -> AsyncIterator[Preempting]:
    server = Preempting()
    async with served(server):
        yield server


async def _full(world: World, folder: Path, extender: Preempting, **fields: Any) -> None:
    """Three nodes with two instances of `low` on each."""
    verbs = {"filterVerb": None, "prioritizeVerb": None, "weight": None, "preemptVerb": "preempt"}
    configure(world, folder, extended(extender.url, **{**verbs, **fields}))
    await world.add_nodes("n1", "n2", "n3", cpu=2)
    await world.apply(make_workload("low", replicas=6, cpu="1", priority=1))
    await until(world, lambda: world.serving_count("low") == 6)


def reason(world: World) -> str:
    return next((each.status.reason for each in world.instances("high")), "")


HIGH = make_workload("high", replicas=1, cpu="1", priority=10)


@pytest.mark.req("S1-29", "S1-35")
async def test_an_extender_filters_preemption_victims_and_drops_nodes(
    world: World, tmp_path: Path, preempting: Preempting
) -> None:
    await _full(world, tmp_path, preempting)
    preempting.preempt = lambda args: {"NodeNameToMetaVictims": {"n2": preempting.victims(args)["n2"]}}
    await world.apply(HIGH)
    await until(world, lambda: world.serving_count("high") == 1)

    assert world.instance("high-0").node == "n2"
    asked = preempting.questions()[0]
    assert asked["Pod"]["metadata"]["name"] == "high-0"
    assert asked["NodeNameToMetaVictims"].keys() == {"n1", "n2", "n3"}
    assert all(len(each["Pods"]) == 1 for each in asked["NodeNameToMetaVictims"].values())
    assert {each["NumPDBViolations"] for each in asked["NodeNameToMetaVictims"].values()} == {0}
    assert len(world.events("Preempted")) == 1


async def test_an_extender_that_knows_no_nodes_gets_whole_pods_and_may_name_others(
    world: World, tmp_path: Path, preempting: Preempting
) -> None:
    await _full(world, tmp_path, preempting, nodeCacheCapable=False)
    there = {each.meta.name: each.node for each in world.instances("low")}
    offered: list[str] = []

    def instead(args: dict[str, Any]) -> Any:
        pod = args["NodeNameToVictims"]["n3"]["Pods"][0]
        assert (pod["spec"]["nodeName"], pod["spec"]["priority"]) == ("n3", 1)
        offered.append(pod["metadata"]["name"])
        both = [{"UID": f"default/{name}"} for name, node in there.items() if node == "n3"]
        return {"nodeNameToMetaVictims": {"n3": {"pods": [each for each in both if offered[0] not in each["UID"]]}}}

    preempting.preempt = instead
    await world.apply(HIGH)
    await until(world, lambda: world.serving_count("high") == 1)
    gone = {each.spec.about for each in world.events("Preempted")}
    assert gone == {f"instance default/{name}" for name, node in there.items() if node == "n3" and name != offered[0]}


async def test_no_instance_is_evicted_when_an_extender_refuses_all_nodes(
    world: World, tmp_path: Path, preempting: Preempting
) -> None:
    await _full(world, tmp_path, preempting)
    preempting.preempt = lambda args: {"NodeNameToMetaVictims": {}}
    await world.apply(HIGH)
    await until(world, lambda: bool(preempting.questions()) and reason(world) != "")
    assert world.instance("high-0").status.reason == "Unschedulable"
    assert not world.events("Preempted")
    # It is asked again when something has changed.
    preempting.preempt = lambda args: {"NodeNameToMetaVictims": preempting.victims(args)}
    await world.apply(make_workload("high", replicas=2, cpu="1", priority=10))
    await until(world, lambda: world.serving_count("high") >= 1)


async def test_an_extender_that_refuses_every_node_with_room_is_asked_about_the_others(
    world: World, tmp_path: Path, preempting: Preempting
) -> None:
    await _full(world, tmp_path, preempting, filterVerb="filter")
    preempting.filter = lambda args: {"NodeNames": [each for each in args["NodeNames"] if each != "n4"]}
    await world.add_nodes("n4", cpu=2)
    await world.apply(HIGH)
    await until(world, lambda: world.serving_count("high") == 1)
    assert world.instance("high-0").node in {"n1", "n2", "n3"}
    assert preempting.questions()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"n9": {"Pods": [{"UID": "default/low-0"}]}}, "returned the node n9, which was not in the request"),
        ({"n1": {"Pods": [{"UID": "default/who"}]}}, "returned default/who on n1, which is not there"),
        ({"n1": {"Pods": []}}, "returned no victims for n1"),
    ],
)
async def test_what_an_extender_cannot_mean_fails_the_try_with_its_name(
    world: World, tmp_path: Path, preempting: Preempting, answer: dict[str, Any], told: str
) -> None:
    await _full(world, tmp_path, preempting)
    preempting.preempt = lambda args: {"NodeNameToMetaVictims": answer}
    await world.apply(HIGH)
    await until(world, lambda: reason(world) == "PluginFault")
    assert told in world.instance("high-0").status.message
    assert preempting.url in world.instance("high-0").status.message
    assert not world.events("Preempted")


async def test_without_an_answer_an_extender_that_can_be_ignored_agrees(
    world: World, tmp_path: Path, preempting: Preempting
) -> None:
    await _full(world, tmp_path, preempting, ignorable=True)
    preempting.status = 500
    await world.apply(HIGH)
    await until(world, lambda: world.serving_count("high") == 1)


async def test_a_gang_takes_the_place_of_others_only_where_an_extender_agrees(
    world: World, tmp_path: Path, preempting: Preempting
) -> None:
    await _full(world, tmp_path, preempting)
    there = {each.meta.name: each.node for each in world.instances("low")}

    def not_on_n2(args: dict[str, Any]) -> Any:
        left = {name: each for name, each in preempting.victims(args).items() if name != "n2"}
        return {"NodeNameToMetaVictims": left}

    preempting.preempt = not_on_n2
    await world.apply(make_workload("mpi", replicas=2, cpu="2", priority=10, gang={}))
    await until(world, lambda: world.serving_count("mpi") == 2)
    assert {each.node for each in world.instances("mpi")} == {"n1", "n3"}
    gone = {each.spec.about.removeprefix("instance default/") for each in world.events("Preempted")}
    assert gone == {name for name, node in there.items() if node != "n2"}
    assert {args["Pod"]["metadata"]["name"] for args in preempting.questions()} == {"mpi-0", "mpi-1"}


# Several of them.


async def test_two_extenders_that_agree_on_no_node_are_both_named_and_on_one_they_place_it(
    world: World, tmp_path: Path, preempting: Preempting
) -> None:
    other = ExtenderServer()
    async with served(other):
        preempting.filter = lambda args: {"NodeNames": [each for each in args["NodeNames"] if each == "n1"]}
        other.filter = lambda args: {"NodeNames": [each for each in args["NodeNames"] if each == "n2"]}
        both = [json.loads(extended(each.url))["extenders"][0] for each in (preempting, other)]
        configure(world, tmp_path, json.dumps({"extenders": both}))
        await world.add_nodes("n1", "n2", "n3")
        await world.run(2)
        await world.apply(make_workload("web", replicas=1))
        await until(world, lambda: bool(world.instances()) and world.instance("web-0").status.reason != "")
        message = world.instance("web-0").status.message
        assert world.instance("web-0").status.reason == "Unschedulable", message
        assert message.startswith("0/3 nodes fit")
        assert preempting.url in message
        assert other.url in message

        other.filter = lambda args: {"NodeNames": args["NodeNames"]}
        await world.add_nodes("n4")  # something has changed: it is asked about again
        await until(world, lambda: world.serving_count("web") == 1)
        assert world.instance("web-0").node == "n1"
