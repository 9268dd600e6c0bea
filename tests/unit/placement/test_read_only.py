"""Plugins read the cluster and cannot change it: nothing that a snapshot shows has a way to write to the table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.placement.cycle import decide
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.dry_run import DryRun
from mandor.placement.framework.identity import Identity, Selector
from mandor.placement.framework.points import FilterPlugin, PostFilterPlugin
from mandor.placement.framework.ports import HostPort
from mandor.placement.framework.profile import Enabled, Profile
from mandor.placement.framework.quotas import Quota
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.framework.reservations import ActiveReservation
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.plugins.default_binder import DefaultBinder
from mandor.placement.plugins.node_resources_fit import NodeResourcesFit
from mandor.placement.plugins.priority_sort import PrioritySort
from mandor.placement.table import Table
from tests.scenarios.make import make_node, make_template

WEB = Identity("default", "web", "main", {"app": "web"})
SHAPE = Shape.of(make_template(cpu=1, memory="1Gi", ports={"http": {"port": 80, "host": 8080}}))
PLACED = Key("instance", "default", "web-0")

READ = {
    "AllocationReader": {
        "allowed", "going", "held", "levels", "lowest", "lowest_held", "placed_instances", "stopping", "tight",
    },
    "AmountRows": {"copy", "tolist"},
    "Column": {"code", "codes", "codes_most", "present", "scores", "tally", "version", "where"},
    "Domains": {"among", "at_nodes", "by_node", "codes", "column", "counts", "present", "spread_out"},
    "Ports": {"choose", "free_after", "strange", "users"},
    "Quotas": {"of", "used"},
    "ReadOnlyList": {"count", "index"},
    "Reservations": {"not_for"},
    "TopologyCounts": {
        "avoided", "domains", "known", "of_group", "owners", "terms_matching", "terms_version",
    },
    "Volumes": {"get", "node_of", "size_of", "sizes_on"},
}  # fmt: skip
"""Every public name of the classes that plugins reach. A new one belongs here only if it changes nothing."""


def table() -> Table:
    made = Table()
    for index in range(3):
        made.set_node(make_node(f"n{index}", cpu=4, labels={"zone": "a"}))
    made.set_allocation(PLACED, "n0", SHAPE, WEB)
    made.set_quota("default", Quota("all", {"cpu": 8000}))
    made.reservations.set(ActiveReservation("r", "ops", "later", Selector(None, "db"), "", {"cpu": 1000}, {"n1": 1}))
    return made


def shown(nodes: Snapshot) -> Iterator[tuple[str, object]]:
    """Everything that a plugin gets from a snapshot by its public names."""
    for name in Snapshot.__slots__:
        if not name.startswith("_"):
            yield name, getattr(nodes, name)
    yield "order()", nodes.order()
    yield "listed()", nodes.listed()
    yield "fact()", nodes.fact("zone")
    for over in ("node", "zone"):
        domains = nodes.topology.domains(Selector(None, "web"), over)
        yield "domains()", domains
        yield from (
            (f"domains().{name}", getattr(domains, name)) for name in ("counts", "by_node", "at_nodes", "codes")
        )
    for name in ("codes", "present"):
        yield f"pools.{name}", getattr(nodes.pools, name)
    yield "pools.where()", nodes.pools.where("any", bool)
    yield "quotas.used()", nodes.quotas.used("default")
    yield "quotas.of().most", nodes.quotas.of(WEB, "default")[0].most
    for held in nodes.reservations:
        yield from (("reservations.each", held.each), ("reservations.places", held.places))
    for level in nodes.occupancy.levels(100):
        yield "levels().taken", level.taken
    yield from (("going().taken", nodes.occupancy.going().taken), ("going().latest", nodes.occupancy.going().latest))
    yield "ports.strange()", nodes.ports.strange(8080)
    yield "ports.users()", nodes.ports.users(HostPort(8080, "tcp"))


def test_what_a_snapshot_shows_cannot_be_written_to() -> None:
    for name, value in shown(table().snapshot()):
        if isinstance(value, np.ndarray):
            if name != "domains().at_nodes":  # a new array, or the read-only one
                assert not value.flags.writeable, name
        else:
            assert not isinstance(value, dict | list | set | bytearray), name


def test_every_class_that_a_snapshot_shows_has_only_names_that_read() -> None:
    seen = {type(value).__name__: value for _, value in shown(table().snapshot()) if _ours(value)}
    seen["Domains"] = table().snapshot().topology.domains(Selector(None, "web"), "zone")
    found = {name: {each for each in dir(value) if not each.startswith("_")} for name, value in seen.items()}
    assert found == READ


def _ours(value: object) -> bool:
    return type(value).__module__.startswith("mandor.")


def test_attributes_of_what_a_snapshot_shows_cannot_be_set() -> None:
    nodes = table().snapshot()
    for value in (nodes.pools, nodes.topology, nodes.ports, nodes.quotas, nodes.reservations, nodes.volumes):
        with pytest.raises(AttributeError, match="read-only"):
            setattr(value, "version", 7)  # noqa: B010
        with pytest.raises(AttributeError, match="read-only"):
            delattr(value, "version")
    with pytest.raises(AttributeError):
        setattr(nodes, "free", nodes.free)  # noqa: B010


class Meddler(FilterPlugin):
    """A Filter that tries to change the cluster that it is shown."""

    name = "Meddler"

    def __init__(self, act: Callable[[Any], object]) -> None:
        self._act = act

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        self._act(nodes)
        return np.ones(len(nodes), dtype=np.bool_)


@pytest.mark.parametrize(
    "act",
    [
        lambda nodes: nodes.occupancy.drop_allocation(PLACED),
        lambda nodes: nodes.occupancy.set_allocation(PLACED, "n1", SHAPE),
        lambda nodes: nodes.occupancy.trial().__enter__(),
        lambda nodes: nodes.occupancy.allow(("default", "web", "main"), 9),
        lambda nodes: nodes.free.__setitem__((0, 0), 64_000),
        lambda nodes: nodes.allocatable.fill(64_000),
        lambda nodes: nodes.pools.set(0, "other"),
        lambda nodes: nodes.fact("zone").append(("b",)),
        lambda nodes: nodes.fact("zone").codes.fill(0),
        lambda nodes: nodes.health.remove(0),
        lambda nodes: nodes.slots.pop("n0"),
        lambda nodes: nodes.rows.clear(),
        lambda nodes: nodes.wanted.clear(),
        lambda nodes: nodes.nodes.append(nodes.nodes[0]),
        lambda nodes: nodes.ports.remove_node("n0"),
        lambda nodes: nodes.topology.renumbered(),
        lambda nodes: nodes.topology.domains(Selector(None, "web"), "zone").counts.fill(0),
        lambda nodes: nodes.quotas.drop("default", "all"),
        lambda nodes: nodes.quotas.used("default").clear(),
        lambda nodes: nodes.reservations.drop("r"),
        lambda nodes: nodes.volumes.set(Key("volume", "default", "v"), None),
        lambda nodes: nodes.occupancy.levels(100)[0].taken.fill(0),
        lambda nodes: nodes.order().fill(0),
    ],
)
def test_a_filter_that_writes_to_the_table_fails_its_cycle_and_changes_nothing(act: Callable[[Any], object]) -> None:
    made = table()
    before = made.snapshot().free.copy()
    version = made.version
    profile = Profile("default", [Enabled(PrioritySort()), Enabled(Meddler(act)), Enabled(DefaultBinder())])
    decision = decide(
        profile, PlacementRequest(Key("instance", "default", "new"), SHAPE, identity=WEB), made.snapshot()
    )
    assert "Meddler" in decision.fault
    assert not decision.node
    assert np.array_equal(made.snapshot().free, before)
    assert made.version == version
    assert made.allocation(PLACED) is not None


def test_a_snapshot_shows_later_changes_of_the_table() -> None:
    made = table()
    nodes = made.snapshot()
    assert isinstance(nodes.wanted, MappingProxyType)
    made.drop_allocation(PLACED)
    assert nodes.occupancy.placed_instances("n0") == []
    assert nodes.quotas.used("default").get("cpu", 0) == 0
    assert not nodes.ports.users(HostPort(8080, "tcp"))
    assert isinstance(nodes.nodes[0], Node)


def test_a_dry_run_used_after_its_trial_changes_nothing() -> None:
    made = table()
    kept: list[DryRun] = []

    class Keeps(PostFilterPlugin):
        name = "Keeps"

        def make_room(self, state: CycleState, dry_run: DryRun) -> None:
            kept.append(dry_run)
            dry_run.drop(PLACED)

    huge = PlacementRequest(Key("instance", "default", "huge"), Shape.of(make_template(cpu=64)), identity=WEB)
    plugins = [PrioritySort(), NodeResourcesFit(), Keeps(), DefaultBinder()]
    decision = decide(Profile("default", [Enabled(each) for each in plugins]), huge, made.snapshot())
    assert (decision.node, decision.fault) == ("", "")
    assert made.allocation(PLACED) is not None, "changes are undone after each step"
    with pytest.raises(RuntimeError, match="within"):
        kept[0].drop(PLACED)
    assert made.allocation(PLACED) is not None
