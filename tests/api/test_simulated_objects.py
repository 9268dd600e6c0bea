"""A scenario stores its manifests field by field as a server does, and a replay keeps what a recording contains."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mandor.errors import Invalid
from mandor.lib.yaml12 import load_all
from mandor.model.codec import KINDS, decode, encode, to_plain
from mandor.model.meta import Object
from mandor.model.recording import line_of
from mandor.model.workload import Workload
from mandor.sim.cluster import SimCluster
from mandor.sim.compare import load_scenario
from mandor.sim.recorded import Recorded, RecordedChange
from mandor.sim.replay import _in_order
from mandor.sim.run import run_scenario
from mandor.sim.submission import UNCHECKED
from tests.api.conftest import Api, StartApi

EXAMPLES = Path(__file__).parents[2] / "examples"
OUTWARD = {"event-bus.yaml", "webhook.yaml", "log-sink.yaml", "secrets.yaml", "node-autoscale.yaml"}
"""Files whose admission depends on keys, files and network policy of a server."""
FILES = [
    *sorted(each for each in EXAMPLES.glob("*.yaml") if each.name not in {*OUTWARD, "node-autoscale-incus.yaml"}),
    *sorted((EXAMPLES / "idp" / "manifests").glob("*.yaml")),
]
SPECIAL = """\
kind: namespace
name: shop
level: baseline
pools: [east]
---
kind: limit-defaults
name: usual
namespace: shop
resources: {cpu: 250m, memory: 64Mi}
---
kind: priority-class
name: usual
value: 70
default: true
---
name: completed
namespace: shop
labels: {app: completed, tier: web}
groups:
  web: {tasks: {main: {image: nginx}}, placement: {spread: [{over: zone, match: {tier: web}}]}}
  side: {tasks: {main: {image: nginx}}, replicas: 3}
---
name: counted
namespace: shop
image: nginx
autoscale: {min: 2, max: 5, cpu: 50%}
resources: {cpu: 100m}
---
name: plain
labels: {app: plain}
image: nginx
replicas: 4
placement: {apart: [{match: {app: plain}, strength: must}]}
"""
CHANGED = """\
name: plain
labels: {team: b}
image: nginx:2
---
name: counted
namespace: shop
image: nginx:2
autoscale: {min: 3, max: 5, cpu: 50%}
resources: {cpu: 100m}
"""


def manifests(text: str) -> list[dict[str, Any]]:
    return [each.value for each in load_all(text) if each.value]


async def apply(api: Api, text: str) -> None:
    session = await api.session()
    async with session.post("/v1/apply", data=text, headers={"content-type": "application/yaml"}) as answer:
        assert answer.status == 200, await answer.text()


def simulated(folder: Path, *texts: str) -> list[Object]:
    """Return the objects that a scenario has stored; the second text and all later ones follow in its timeline."""
    first, *later = ([json.loads(json.dumps(each)) for each in manifests(text)] for text in texts)
    scenario = {
        "name": "same",
        "nodes": [{"name": "n1", "cpu": 64, "memory": "256Gi", "engines": ["docker", "process", "incus", "fake"]}],
        "workloads": first,
        "timeline": [{"at": f"{90 + 5 * number}s", "submit": each} for number, each in enumerate(later)],
        "arrival": {"within": "1s"},
        "end": "100s",
    }
    path = folder / "scenario.yaml"
    path.write_text(json.dumps(scenario))
    found: list[Object] = []

    async def read_at_end(cluster: SimCluster) -> None:
        await cluster.clock.sleep(99.0)
        found.extend(each for kind in KINDS.values() for each in cluster.all(kind))

    run_scenario(load_scenario(path), "as written", 0, extra=read_at_end)
    return found


def by_name(objects: list[Object], wanted: set[tuple[str, str]]) -> dict[str, Any]:
    """Return labels and spec of the objects with these kinds and names; a trace belongs to a request."""
    return {
        str(each.key): {"labels": each.meta.labels, "spec": to_plain(each.spec)}
        for each in objects
        if (each.kind, each.meta.name) in wanted and not isinstance(each, UNCHECKED)
    }


def names(*texts: str) -> set[tuple[str, str]]:
    every = [each for text in texts for each in manifests(text)]
    return {(each.get("kind", "workload"), each.get("name") or each["meta"]["name"]) for each in every}


async def compare(start_api: StartApi, folder: Path, *texts: str) -> dict[str, Any]:
    api = await start_api(tokens_required=False, engines=frozenset({"docker", "process", "incus", "fake"}))
    for text in texts:
        await apply(api, text)
    kinds = {kind for kind, _ in names(*texts)}
    stored = [each for kind in kinds for each in (await api.store.list(kind)).items]
    expected = by_name(stored, names(*texts))
    found = by_name(await asyncio.to_thread(simulated, folder, *texts), names(*texts))
    assert found == expected
    return found


async def test_defaults_counts_and_labels_of_a_simulated_workload_are_those_that_a_server_stores(
    start_api: StartApi, tmp_path: Path
) -> None:
    found = await compare(start_api, tmp_path, SPECIAL, CHANGED)
    plain = found["workload default/plain"]
    assert plain["labels"] == {"team": "b"}, "labels are replaced as in an apply"
    assert plain["spec"]["groups"]["main"]["replicas"] == 4, "an omitted count is kept"
    side = found["workload shop/completed"]["spec"]["groups"]["side"]
    assert side["tasks"]["main"]["resources"]["cpu"] == "250m", "limit-defaults are filled in"
    assert found["workload shop/counted"]["spec"]["groups"]["main"]["replicas"] == 3


@pytest.mark.parametrize("file", FILES, ids=lambda each: each.name)
async def test_every_example_is_stored_alike_by_a_server_and_by_a_scenario(
    start_api: StartApi, tmp_path: Path, file: Path
) -> None:
    texts = [(EXAMPLES / "idp" / "manifests" / "1-classes.yaml").read_text(), file.read_text()]
    await compare(start_api, tmp_path, *(texts if "idp" in str(file) else texts[1:]))


async def test_a_manifest_that_a_server_refuses_is_refused_by_a_scenario_with_its_line(
    start_api: StartApi, tmp_path: Path
) -> None:
    bad = "name: web\nimage: nginx\npriority: unknown\n"
    api = await start_api(tokens_required=False)
    session = await api.session()
    async with session.post("/v1/apply", data=bad, headers={"content-type": "application/yaml"}) as answer:
        assert answer.status == 400
        refused = await answer.json()
    (tmp_path / "web.yaml").write_text(bad)
    (tmp_path / "s.yaml").write_text(
        "name: s\nnodes: [{name: n1}]\nworkloads: [{file: web.yaml}]\narrival: {within: 1s}\nend: 1m\n"
    )
    with pytest.raises(Invalid, match="a server would refuse the manifest: there is no priority class") as caught:
        await asyncio.to_thread(run_scenario, load_scenario(tmp_path / "s.yaml"), "as written", 0)
    assert refused["detail"] in str(caught.value)
    assert caught.value.facts["line"] == 3


OMITTED = {"env", "secrets", "files", "args", "command", "working_dir", "options", "http"}
"""Fields of tasks and probes that a recording omits, because they can be confidential."""
REPLAYED_OTHERWISE = {"autoscale", "replicas", "run_of"}
"""The recorded counts are replayed, so nothing scales; a scheduled run is replayed as a workload of its own."""


def differing(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from differing(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for number, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differing(left, right, f"{path}.{number}")
    elif one != other:
        yield path


@pytest.mark.parametrize("file", FILES, ids=lambda each: each.name)
async def test_a_replayed_workload_loses_nothing_but_the_fields_that_a_recording_omits(
    start_api: StartApi, file: Path
) -> None:
    api = await start_api(tokens_required=False, engines=frozenset({"docker", "process", "incus", "fake"}))
    await apply(api, (EXAMPLES / "idp" / "manifests" / "1-classes.yaml").read_text())
    await apply(api, file.read_text())
    workloads = [
        each
        for each in (await api.store.list("workload")).items
        if isinstance(each, Workload) and each.spec.schedule is None
    ]
    recorded = [decode(encode(line_of(0.0, each).object)) for each in workloads]  # type: ignore[union-attr]
    found = Recorded(Path("recording"), first=recorded, changes=[RecordedChange(1.0, None, each) for each in recorded])
    replayed = {each.key: each for each in _in_order(found)}
    for each in workloads:
        again = replayed[each.key]
        assert again.meta.labels == each.meta.labels
        lost = set(differing(to_plain(each.spec), to_plain(again.spec)))
        allowed = OMITTED | REPLAYED_OTHERWISE
        assert {path for path in lost if not allowed & set(path.split("."))} == set()
