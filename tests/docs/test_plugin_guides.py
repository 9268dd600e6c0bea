"""The guides about plugins and profiles, and the example plugins: everything in them is tried."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.placement.config import read_config
from mandor.placement.cycle import decide
from mandor.placement.framework.handle import DETACHED
from mandor.placement.framework.points import POINTS, ClusterChange, ClusterEvent, Hint
from mandor.placement.framework.request import PlacementRequest, Shape
from mandor.placement.plugin_source import find_plugins
from mandor.placement.profile_factory import ProfileFactory
from mandor.placement.table import Table
from tests.docs.text import ROOT, Block, blocks
from tests.scenarios.make import make_node, make_template

PLUGIN_GUIDE = ROOT / "docs" / "guides" / "write-a-plugin.md"
PROFILE_GUIDE = ROOT / "docs" / "guides" / "tune-a-profile.md"
MACHINES_GUIDE = ROOT / "docs" / "guides" / "place-vms.md"
EXAMPLES = ROOT / "examples" / "plugins"


def marked(page: Path, mark: str) -> list[Block]:
    found = [block for block in blocks(page) if block.mark == mark]
    assert found
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for index, block in enumerate(marked(PLUGIN_GUIDE, "plugin")):
        (tmp_path / f"plugin_{index}.py").write_text(block.text)
    return tmp_path


def table(**labels: dict[str, str]) -> Table:
    made = Table()
    for name, each in labels.items():
        made.set_node(make_node(name, cpu=2, labels=each))
    return made


def enabled(name: str, folder: Path, *, weight: int = 100, **args: Any) -> Any:
    """The default profile with one more plugin."""
    registry = find_plugins(folder, points=[])
    chosen = {"multiPoint": {"enabled": [{"name": name, "weight": weight}]}}
    text = json.dumps({"profiles": [{"plugins": chosen, "pluginConfig": [{"name": name, "args": args}]}]})
    return ProfileFactory(DETACHED).profiles(read_config(text, registry), registry)["default"]


def asked(namespace: str = "default", cpu: str = "1") -> PlacementRequest:
    return PlacementRequest(Key(Instance.kind, namespace, "web-0"), Shape.of(make_template(cpu=cpu)))


@pytest.mark.parametrize("page", [PLUGIN_GUIDE, PROFILE_GUIDE, MACHINES_GUIDE], ids=lambda page: page.stem)
def test_every_configuration_in_a_guide_is_one(page: Path, folder: Path) -> None:
    registry = find_plugins(folder, points=[])
    for block in marked(page, "config"):
        profiles = ProfileFactory(DETACHED).profiles(read_config(block.text, registry), registry)
        assert "default" in profiles


@pytest.mark.req("S1-29")
def test_the_first_plugin_of_the_guide_works(folder: Path) -> None:
    nodes = table(n1={"lights": "1"}, n2={"lights": "7"}, n3={}).snapshot()
    decision = decide(enabled("Blinking", folder), asked(), nodes)
    assert (decision.node, decision.fault) == ("n2", "")
    assert (
        decide(enabled("Blinking", folder), asked(), table(n1={"lights": "many"}, n2={}).snapshot()).fault == "Blinking"
    )


def test_the_vector_form_of_the_guide_works(folder: Path) -> None:
    profile = enabled("KeepOneCore", folder)
    nodes = table(n1={}).snapshot()
    assert decide(profile, asked(cpu="1"), nodes).node == "n1"
    assert "its last core stays free" in decide(profile, asked(cpu="2"), nodes).message


def test_the_hint_of_the_guide_skips_useless_retries(folder: Path) -> None:
    plugin: Any = enabled("OnlyMarked", folder).plugin("OnlyMarked")
    for labels, hint in (({"mark": "yes"}, Hint.QUEUE), ({}, Hint.SKIP)):
        assert plugin.hint(asked(), ClusterChange(ClusterEvent.NODE_ADDED, make_node("n9", labels=labels))) is hint


def test_the_test_of_the_guide_works(folder: Path) -> None:
    (block,) = marked(PLUGIN_GUIDE, "test")
    names: dict[str, Any] = {}
    exec(block.text, names)
    plugin = enabled("OnlyMarked", folder).plugin("OnlyMarked")
    assert names["placed"](plugin).node == "n2"


def test_the_guide_names_every_point() -> None:
    text = PLUGIN_GUIDE.read_text(encoding="utf-8")
    assert [kind.__name__ for kind in POINTS.values() if f"`{kind.__name__}." not in text] == []


# The examples.


@pytest.mark.req("S1-12", "S1-14", "S1-29")
def test_blinking_light_gives_100_to_the_most_lights_and_the_others_their_share() -> None:
    nodes = table(n1={"lights": "2"}, n2={"lights": "3"}, n3={}).snapshot()
    profile = enabled("BlinkingLight", EXAMPLES)
    assert decide(profile, asked(), nodes).node == "n2"
    plugin: Any = profile.plugin("BlinkingLight")
    raw = plugin.score(None, asked(), nodes, np.ones(3, dtype=np.bool_))
    assert plugin.normalize(None, asked(), raw).tolist() == [66, 100, 0]


@pytest.mark.req("S1-14")
def test_blinking_light_without_any_light_divides_nothing_by_zero() -> None:
    decision = decide(enabled("BlinkingLight", EXAMPLES), asked(), table(n1={}, n2={}).snapshot())
    assert decision.node in {"n1", "n2"}
    assert decision.fault == ""


@pytest.mark.req("S1-31")
def test_blinking_light_takes_its_label_from_the_configuration() -> None:
    nodes = table(n1={"lamps": "1"}, n2={"lights": "9"}).snapshot()
    assert decide(enabled("BlinkingLight", EXAMPLES, label="lamps"), asked(), nodes).node == "n1"


def test_night_shift_keeps_one_namespace_to_its_nodes() -> None:
    profile = enabled("NightShift", EXAMPLES)
    nodes = table(n1={}, n2={"shift": "night"}).snapshot()
    assert decide(profile, asked("night"), nodes).node == "n2"
    assert decide(profile, asked("day"), table(n1={}).snapshot()).node == "n1"
    assert decide(profile, asked("day"), table(n2={"shift": "night"}).snapshot()).node == "n2"
    assert "not on the night shift" in decide(profile, asked("night"), table(n1={}).snapshot()).message
