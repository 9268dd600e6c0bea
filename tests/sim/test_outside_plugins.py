"""Plugins that do not come with the package, at work: a file that is changed under a running scheduler, and an
extender that is asked over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from mandor.placement.plugins.http_extender import Extender, HTTPExtender
from tests.docs.text import ROOT, blocks
from tests.scenarios.make import make_workload
from tests.scenarios.world import World
from tests.sim.outside import ExtenderServer, asking_world, configure, extended, served, until

FILTER = """\
from mandor.plugin import FilterPlugin

class OnlyOn(FilterPlugin):
    name = "OnlyOn"

    def filter_node(self, state, request, view):
        return view.name == "{node}"
"""
ENABLED = "profiles:\n- plugins:\n    multiPoint:\n      enabled:\n      - name: OnlyOn\n"


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with asking_world() as made:
        yield made


@pytest.mark.req("S1-29", "S0-3")
async def test_a_plugin_file_decides_and_its_next_version_decides_next(world: World, tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "only_on.py").write_text(FILTER.format(node="n1"))
    configure(world, tmp_path, ENABLED)
    await world.add_nodes("n1", "n2")
    await world.apply(make_workload("first", replicas=3))
    await world.until(lambda: world.serving_count("first") == 3)
    assert {each.node for each in world.instances()} == {"n1"}

    (tmp_path / "plugins" / "only_on.py").write_text(FILTER.format(node="n2"))
    await world.run(5)
    await world.apply(make_workload("second", replicas=3))
    await world.until(lambda: world.serving_count("second") == 3)
    assert {each.node for each in world.instances() if each.spec.workload == "second"} == {"n2"}

    told = [each.spec.message for each in world.events("Scheduled")]
    versions = {text.partition("(")[2] for text in told}
    assert len(versions) == 2, "the version that decided stands in the event"
    assert all(version.startswith("OnlyOn@") for version in versions)


async def test_waiting_instances_are_retried_when_the_configuration_changes(world: World, tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "only_on.py").write_text(FILTER.format(node="nowhere"))
    configure(world, tmp_path, ENABLED)
    await world.add_nodes("n1")
    await world.apply(make_workload("web"))
    await world.run(15)
    assert world.instance("web-0").status.message == "0/1 nodes fit: 1 OnlyOn"
    (tmp_path / "scheduler.yaml").write_text("profiles: [{plugins: {filter: {disabled: [{name: 'broken")
    await world.run(5)
    (tmp_path / "scheduler.yaml").write_text("profiles: []\n")
    await world.until(lambda: world.serving_count("web") == 1, seconds=15)


@pytest.mark.req("S1-20", "S1-22")
async def test_the_guides_permit_holds_instances_back_until_there_are_enough(world: World, tmp_path: Path) -> None:
    guide = blocks(ROOT / "docs" / "guides" / "write-a-plugin.md")
    (pairs,) = [block for block in guide if "class Pairs(" in block.text]
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "pairs.py").write_text(pairs.text)
    enabled = ENABLED.replace("OnlyOn", "Pairs") + "  pluginConfig: [{name: Pairs, args: {size: 3}}]\n"
    configure(world, tmp_path, enabled)
    await world.add_nodes("n1")
    await world.run(2)
    await world.apply(make_workload("web", replicas=2))
    await world.run(5)
    assert world.serving_count("web") == 0
    await world.apply(make_workload("web", replicas=3))
    await world.until(lambda: world.serving_count("web") == 3, seconds=20)


# An extender.


@pytest.fixture
async def extender() -> AsyncIterator[ExtenderServer]:
    server = ExtenderServer()
    async with served(server):
        yield server


@pytest.mark.req("S1-29")
async def test_an_extender_filters_and_prioritises(world: World, tmp_path: Path, extender: ExtenderServer) -> None:
    extender.filter = lambda args: {
        "NodeNames": [name for name in args["NodeNames"] if name != "n1"],
        "FailedNodes": {"n1": "not this one"},
    }
    extender.prioritize = lambda args: [
        {"Host": name, "Score": 10 if name == "n3" else 0} for name in args["NodeNames"]
    ]
    configure(world, tmp_path, extended(extender.url, weight=100))
    await world.add_nodes("n1", "n2", "n3")
    await world.add_nodes("small", cpu=0.5)
    await world.run(2)
    await world.apply(make_workload("web", cpu="1"))
    await until(world, lambda: world.serving_count("web") == 1)
    assert world.instance("web-0").node == "n3"
    (verb, args), (second, rest) = extender.asked
    assert (verb, second) == ("filter", "prioritize")
    assert sorted(args["NodeNames"]) == ["n1", "n2", "n3"], "only the nodes that the others let pass"
    assert sorted(rest["NodeNames"]) == ["n2", "n3"]
    assert args["Pod"]["metadata"] == {"name": "web-0", "namespace": "default"}
    assert args["Pod"]["spec"]["containers"][0]["resources"]["requests"] == {"cpu": "1000m"}


async def test_a_refusal_of_an_extender_is_reported_with_its_reason(
    world: World, tmp_path: Path, extender: ExtenderServer
) -> None:
    extender.filter = lambda args: {"NodeNames": [], "FailedNodes": dict.fromkeys(args["NodeNames"], "no licence")}
    configure(world, tmp_path, extended(extender.url))
    await world.add_nodes("n1", "n2")
    await world.run(2)
    await world.apply(make_workload("web"))
    await until(world, lambda: bool(world.instances()) and "HTTPExtender" in world.instance("web-0").status.message)
    assert world.instance("web-0").status.message == f"0/2 nodes fit: 2 HTTPExtender({extender.url}) (2 no licence)"


async def test_an_extender_that_knows_no_nodes_is_sent_them_whole(
    world: World, tmp_path: Path, extender: ExtenderServer
) -> None:
    extender.filter = lambda args: {"nodes": {"items": list(args["Nodes"]["items"])}}
    configure(world, tmp_path, extended(extender.url, nodeCacheCapable=False, prioritizeVerb=None, weight=None))
    await world.add_nodes("n1", cpu=2, labels={"rack": "r1"})
    await world.run(2)
    await world.apply(make_workload("web"))
    await until(world, lambda: world.serving_count("web") == 1)
    (node,) = extender.asked[0][1]["Nodes"]["items"]
    assert node["metadata"] == {"name": "n1", "labels": {"rack": "r1"}}
    assert node["status"]["allocatable"]["cpu"] == "2000m"


def _fails(extender: ExtenderServer) -> None:
    extender.status = 500


def _lies(extender: ExtenderServer) -> None:
    extender.filter = lambda args: ["n1"]


def _says_no(extender: ExtenderServer) -> None:
    extender.filter = lambda args: {"Error": "cannot tell"}


def _hangs(extender: ExtenderServer) -> None:
    extender.hang = True


def _scores_too_high(extender: ExtenderServer) -> None:
    extender.prioritize = lambda args: [{"Host": "n1", "Score": 11}]


@pytest.mark.parametrize(
    ("breaks", "problem"),
    [
        (_fails, "answered 500"),
        (_lies, "not an object"),
        (_says_no, "the filter returned an error: cannot tell"),
        (_hangs, "did not answer within"),
        (_scores_too_high, "scores are 0..10"),
    ],
)
async def test_without_a_good_answer_the_try_fails_and_others_go_on(
    world: World, tmp_path: Path, extender: ExtenderServer, breaks: Callable[[ExtenderServer], None], problem: str
) -> None:
    breaks(extender)
    configure(world, tmp_path, extended(extender.url, httpTimeout="300ms"))
    await world.add_nodes("n1")
    await world.run(2)
    await world.apply(make_workload("web"))
    await until(world, lambda: bool(world.instances()) and problem in world.instance("web-0").status.message)
    assert world.instance("web-0").status.reason == "PluginFault"
    extender.status, extender.hang = 200, False
    extender.filter, extender.prioritize = (lambda args: {"NodeNames": args["NodeNames"]}), (lambda args: [])
    await until(world, lambda: world.serving_count("web") == 1)


@pytest.mark.parametrize("breaks", [_fails, _says_no, _hangs])
async def test_one_that_can_be_ignored_is(
    world: World, tmp_path: Path, extender: ExtenderServer, breaks: Callable[[ExtenderServer], None]
) -> None:
    breaks(extender)
    configure(world, tmp_path, extended(extender.url, ignorable=True, httpTimeout="300ms"))
    await world.add_nodes("n1")
    await world.apply(make_workload("web"))
    await until(world, lambda: world.serving_count("web") == 1)


async def test_an_unreachable_receiver_is_a_failed_attempt(world: World, tmp_path: Path) -> None:
    configure(world, tmp_path, extended("http://127.0.0.1:9"))
    await world.add_nodes("n1")
    await world.run(2)
    await world.apply(make_workload("web"))
    await until(world, lambda: bool(world.instances()) and world.instance("web-0").status.reason == "PluginFault")
    assert "http://127.0.0.1:9/filter" in world.instance("web-0").status.message


async def test_an_extender_with_resources_of_its_own_is_asked_only_about_those(
    world: World, tmp_path: Path, extender: ExtenderServer
) -> None:
    configure(world, tmp_path, extended(extender.url, managedResources=[{"name": "example.com/fpga"}]))
    await world.add_nodes("n1")
    await world.apply(make_workload("web", cpu="1"))
    await until(world, lambda: world.serving_count("web") == 1)
    assert extender.asked == []


def test_an_extender_is_named_by_its_address() -> None:
    made = HTTPExtender(Extender(url_prefix="http://h:1", filter_verb="f"))
    assert made.name == "HTTPExtender(http://h:1)"
