"""VolumeBinding: where volumes let an instance go, and what is said when they do not."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.model.meta import Key
from mandor.placement.cycle import decide
from mandor.placement.decision import Decision
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.identity import Identity
from mandor.placement.framework.points import SKIP
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.volumes import KnownVolume
from mandor.placement.plugins.volume_binding import VolumeBinding
from mandor.placement.profiles import default_profile
from mandor.placement.table import Table
from tests.scenarios.make import GI, make_node, make_template

OWN = {"data": {"size": "10Gi", "per_instance": True}}


def make_ask(name: str = "web-0", **fields: Any) -> PlacementRequest:
    workload = name.rpartition("-")[0]
    shape = Shape.of(make_template(**{"volumes": OWN} | fields))
    return PlacementRequest(Key("instance", "default", name), shape, identity=Identity("default", workload, "main"))


def make_table(*names: str, **fields: Any) -> Table:
    table = Table()
    for name in names:
        table.set_node(make_node(name, **fields))
    return table


def key(name: str) -> Key:
    return Key("volume", "default", name)


def known(**fields: Any) -> KnownVolume:
    usual: dict[str, Any] = {"size": 10 * GI, "node": "", "made": False, "workload": "web"}
    return KnownVolume(**usual | fields)


def placed(table: Table, request: PlacementRequest) -> Decision:
    return decide(default_profile(), request, table.snapshot())


def free_disk(table: Table, node: str) -> int:
    return table.free(node)["disk"]


@pytest.mark.req("S3-11")
def test_an_instance_goes_where_its_data_is() -> None:
    table = make_table("n1", "n2", "n3")
    for node in ("n1", "n2", "n3"):
        table.set_volume(key("data-web-0"), known(node=node, made=True))
        assert placed(table, make_ask()).node == node


def test_a_planned_node_of_a_volume_is_preferred_and_not_required() -> None:
    table = make_table("n1", "n2", "n3")
    table.set_volume(key("data-web-0"), known(node="n3"))
    assert placed(table, make_ask()).node == "n3"
    table.set_node(make_node("n3", cordoned=True))
    assert placed(table, make_ask()).node in {"n1", "n2"}


def test_disk_of_a_shared_volume_is_counted_once_and_freed_with_the_last_user() -> None:
    table = make_table("n1")
    before = free_disk(table, "n1")
    requests = [make_ask(f"web-{index}", volumes={"data": {"size": "10Gi"}}) for index in range(3)]
    for request in requests:
        table.set_allocation(request.key, "n1", request.shape, request.identity)
    assert free_disk(table, "n1") == before - 10 * GI
    for request in requests:
        table.drop_allocation(request.key)
    assert free_disk(table, "n1") == before


def test_an_unused_volume_with_data_takes_its_disk() -> None:
    table = make_table("n1")
    before = free_disk(table, "n1")
    table.set_volume(key("data-web-0"), known(node="n1", made=True))
    assert free_disk(table, "n1") == before - 10 * GI
    table.set_volume(key("data-web-0"), None)
    assert free_disk(table, "n1") == before


def test_a_node_that_comes_later_has_its_volumes_counted() -> None:
    table = make_table("n1")
    table.set_volume(key("data-web-0"), known(node="n2", made=True))
    table.set_node(make_node("n2"))
    assert free_disk(table, "n2") == free_disk(table, "n1") - 10 * GI
    table.remove_node("n2")
    table.set_node(make_node("n2"))
    assert free_disk(table, "n2") == free_disk(table, "n1") - 10 * GI


def test_a_trial_leaves_volumes_as_they_were() -> None:
    table = make_table("n1", "n2")
    request = make_ask()
    with table.trial():
        table.set_allocation(request.key, "n1", request.shape, request.identity)
        assert table.snapshot().volumes.node_of(key("data-web-0")) == "n1"
    assert table.snapshot().volumes.node_of(key("data-web-0")) == ""
    assert free_disk(table, "n1") == free_disk(table, "n2")


def test_the_node_with_the_most_free_disk_is_preferred() -> None:
    table = make_table("n1", "n2")
    table.set_node(make_node("n3", disk=500 * GI))
    assert placed(table, make_ask(volumes={"data": {"size": "60Gi", "per_instance": True}})).node == "n3"


@pytest.mark.parametrize(
    ("volumes", "said"),
    [
        ({"data": {"size": "150Gi"}}, "short of 50Gi disk for its volumes"),
        ({"data": {"volume": "shop"}}, "there is no volume shop"),
        ({"data": {"volume": "there"}}, "its volume there is on n9, which is gone"),
        ({"data": {"volume": "picky"}}, "not where the volume picky may be"),
        ({"data": {"type": "host", "path": "/srv/data"}}, "the host path /srv/data is not allowed"),
    ],
)
def test_the_message_names_what_the_volumes_need(volumes: dict[str, Any], said: str) -> None:
    table = make_table("n1", "n2")
    table.set_volume(key("there"), known(node="n9", made=True))
    table.set_volume(key("picky"), known(pool="gold"))
    decision = placed(table, make_ask(volumes=volumes))
    assert not decision.node
    assert decision.message == f"0/2 nodes fit: 2 VolumeBinding ({said})"


def test_two_volumes_on_two_nodes_fit_nowhere() -> None:
    table = make_table("n1", "n2")
    table.set_volume(key("a"), known(node="n1", made=True))
    table.set_volume(key("b"), known(node="n2", made=True))
    decision = placed(table, make_ask(volumes={"a": {"volume": "a"}, "b": {"volume": "b"}}))
    assert "its volume a is on n1; its volume b is on n2" in decision.message


def test_a_host_path_is_allowed_with_all_below_it() -> None:
    table = make_table("n1")
    table.set_node(make_node("n2", facts={"host.paths": "/var/log,/srv"}))
    for path, node in (("/srv", "n2"), ("/srv/data/x", "n2"), ("/srvother", ""), ("/var", "")):
        assert placed(table, make_ask(volumes={"h": {"type": "host", "path": path}})).node == node


def test_engines_that_cannot_mount_are_not_chosen() -> None:
    table = make_table("n1")
    template = make_template(volumes=OWN)
    tasks = {"main": {"command": ["x"], "mounts": [{"volume": "data", "path": "/data"}]}}
    shape = Shape.of(make_template(volumes=OWN, tasks=tasks))
    assert shape.needs == {"mounts"}
    assert Shape.of(template).needs == set()
    decision = placed(
        table, PlacementRequest(Key("instance", "default", "web-0"), shape, identity=Identity("default", "web", "main"))
    )
    assert "no engine is up that runs commands and has mounts" in decision.message


@pytest.mark.req("S1-23")
def test_an_instance_without_volumes_is_bound_in_a_shared_commit() -> None:
    profile = default_profile()
    plugin = profile.plugin("VolumeBinding")
    assert isinstance(plugin, VolumeBinding)
    without, with_own = make_ask(volumes={}), make_ask()
    assert profile.plain
    assert profile.batches(without)
    assert not profile.batches(with_own)
    assert profile.batches(make_ask(volumes={"h": {"type": "host", "path": "/srv"}}))
    nodes = make_table("n1").snapshot()
    assert plugin.pre_filter(CycleState(), without, nodes) is SKIP
    assert plugin.pre_score(CycleState(), without, nodes, nodes.pools.where("all", lambda _: True)) is SKIP
