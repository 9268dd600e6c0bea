"""The platform in small scenarios of its own: other resources, volumes, users who change limits, orders of arrival."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from mandor.sim.compare import load_scenario, narrowed
from mandor.sim.result import PhaseResult, RunResult
from mandor.sim.run import run_scenario

IDP = Path(__file__).parents[2] / "examples" / "idp"
TEXT = (IDP / "scenario.yaml").read_text().replace("file: manifests", f"file: {IDP / 'manifests'}")


def platform(folder: Path, timeline: str, *, end: str, text: str = TEXT, strategy: str = "should") -> RunResult:
    """The platform of the example with a timeline of its own, without expectations."""
    path = folder / "scenario.yaml"
    path.write_text(text.partition("timeline:")[0] + f"timeline:\n{timeline}\nend: {end}\n")
    return run_scenario(narrowed(load_scenario(path), [strategy]), strategy, 0)


def simulated(folder: Path, seed: int = 0, **scenario: Any) -> RunResult:
    path = folder / "scenario.yaml"
    path.write_text(json.dumps({"name": "small", "arrival": {"within": "5s"}, "end": "3m", **scenario}))
    return run_scenario(load_scenario(path), "as written", seed)


def phase(run: RunResult, name: str) -> PhaseResult:
    return next(each for each in run.phases if each.name == name)


def running(state: PhaseResult) -> set[str]:
    return {name for name, each in state.workloads.items() if each.running}


def where(state: PhaseResult, workload: str) -> list[str]:
    return [n for n, node in state.nodes.items() for each in node.instances if each.rpartition("-")[0] == workload]


@pytest.mark.req("S3-2")
@pytest.mark.parametrize(("memory", "fits"), [("3072Mi", True), ("3073Mi", False)])
def test_a_worker_has_3072_mib_for_work_after_daemons_and_what_is_reserved(
    tmp_path: Path, memory: str, fits: bool
) -> None:
    daemons = TEXT.replace(f"file: {IDP / 'manifests'}", f"file: {IDP / 'manifests' / '2-daemons.yaml'}")
    classes = f"- file: {IDP / 'manifests' / '1-classes.yaml'}\n  - file: {IDP / 'manifests' / '2-daemons.yaml'}"
    daemons = daemons.replace(f"- file: {IDP / 'manifests' / '2-daemons.yaml'}", classes)
    daemons = daemons[: daemons.index("usage:")] + "strategies:\n  should: {}\n"
    big = f"{{name: big, image: x, priority: 1, resources: {{memory: {memory}}}}}"
    state = platform(tmp_path, f"  - {{at: 1m, phase: big, submit: {big}}}", end="3m", text=daemons).phases[-1]
    assert ("big" in running(state)) is fits
    assert fits or "short of 1Mi memory" in state.pending[0].reason


@pytest.mark.req("S3-5")
def test_what_belongs_on_the_server_goes_elsewhere_when_the_server_is_gone_unless_it_must_not(tmp_path: Path) -> None:
    own = {"vault", "external-secrets", "cert-manager"}
    gone = "  - {at: 5m, phase: gone, down: server}"
    assert own <= running(phase(platform(tmp_path, gone, end="10m"), "gone"))
    assert not own & running(phase(platform(tmp_path, gone, end="10m", strategy="must"), "gone"))


VOLUME = """\
      - name: prometheus
        labels: {stack: observability}
        priority: platform-observability
        image: prom/prometheus:v2.54
        resources: {cpu: 300m, memory: 512Mi, limits: {memory: 1280Mi}}
        volumes: {data: {size: 4Gi, per_instance: true, on_loss: ON_LOSS}}
        mounts: [{volume: data, path: /prometheus}]
        placement: {where: [{rule: role == infra, strength: prefer, weight: 100}]}
"""


@pytest.mark.req("S3-11")
@pytest.mark.parametrize("on_loss", ["wait", "recreate"])
def test_data_keeps_prometheus_on_its_node_and_an_empty_volume_lets_it_move(tmp_path: Path, on_loss: str) -> None:
    timeline = f"""\
  - {{at: 0s, phase: healthy}}
  - at: 5m
    phase: with a volume
    delete: prometheus
  - at: 6m
    submit:
{VOLUME.replace("ON_LOSS", on_loss)}
  - {{at: 12m, phase: lost, down: agent-0}}
  - {{at: 22m, phase: back, up: agent-0}}"""
    run = platform(tmp_path, timeline, end="32m")
    assert where(phase(run, "with a volume"), "prometheus") == ["agent-0"]
    lost = phase(run, "lost")
    if on_loss == "wait":
        assert "prometheus" not in running(lost)
        assert "loki" in running(lost), "one of both runs"
        assert where(phase(run, "back"), "prometheus") == ["agent-0"]
    else:
        assert where(lost, "prometheus") == ["agent-1"]


@pytest.mark.req("S3-12")
@pytest.mark.parametrize(
    ("what", "has", "each"),
    [
        ("cpu", {"cpu": 4}, {"cpu": "2500m"}),
        ("memory", {"memory": "4Gi"}, {"memory": "2500Mi"}),
        ("disk", {"disk": "40Gi"}, {"disk": "25Gi"}),
        ("gpu", {"devices": {"gpu": 4}}, {"devices": [{"kind": "gpu", "count": 3}]}),
    ],
)
def test_each_resource_limits_what_can_move_to_the_node_that_is_left(
    tmp_path: Path, what: str, has: dict[str, Any], each: dict[str, Any]
) -> None:
    nodes = [{"name": name, "cpu": 16, "memory": "64Gi", "disk": "500Gi", **has} for name in ("n0", "n1")]
    work = [
        {"name": "high", "image": "x", "priority": 20, "resources": each},
        {"name": "low", "image": "x", "priority": 10, "resources": each},
    ]
    timeline = [{"at": "1m", "phase": "lost", "down": "n0"}, {"at": "6m", "phase": "back", "up": "n0"}]
    run = simulated(tmp_path, nodes=nodes, workloads=work, timeline=timeline, end="9m")
    assert running(run.phases[0]) == {"high", "low"}
    assert {*where(run.phases[0], "high"), *where(run.phases[0], "low")} == {"n0", "n1"}
    lost = phase(run, "lost")
    assert running(lost) == {"high"}, "the more important one runs"
    assert what in lost.pending[0].reason
    assert running(phase(run, "back")) == {"high", "low"}


@pytest.mark.req("S3-29", "S3-28")
@pytest.mark.parametrize(("strength", "nodes"), [("must", {"n0"}), ("prefer", {"n0", "n1"}), ("should", {"n0", "n1"})])
def test_a_node_rule_is_kept_while_there_is_room_and_beyond_that_by_its_strength(
    tmp_path: Path, strength: str, nodes: set[str]
) -> None:
    lines = [
        {"name": "n0", "cpu": 2, "memory": "8Gi", "labels": {"role": "infra"}},
        {"name": "n1", "cpu": 8, "memory": "64Gi", "labels": {"role": "apps"}},
    ]
    rule = {"where": [{"rule": "role == infra", "strength": strength}]}
    web = {"name": "web", "image": "x", "replicas": 2, "resources": {"cpu": "900m"}, "placement": rule}
    timeline = [{"at": "1m", "phase": "more", "scale": {"workload": "web", "replicas": 4}}]
    run = simulated(tmp_path, nodes=lines, workloads=[web], timeline=timeline)
    assert where(run.phases[0], "web") == ["n0", "n0"]
    assert set(where(run.phases[1], "web")) == nodes
    assert len(run.phases[1].pending) == (2 if strength == "must" else 0)
    assert ("web-2", "role == infra") in run.phases[1].relaxed or strength != "should"


@pytest.mark.req("S3-36", "S3-44")
def test_in_every_order_of_arrival_the_important_ones_run_apart_and_the_least_important_waits(tmp_path: Path) -> None:
    nodes = [{"name": name, "cpu": 4, "memory": "4Gi"} for name in ("n0", "n1")]
    apart = {"apart": [{"match": {"kind": "store"}, "strength": "should"}], "relax": "after-preemption"}
    work = [
        {"name": "prom", "priority": 30, "labels": {"kind": "store"}, "placement": apart},
        {"name": "loki", "priority": 30, "labels": {"kind": "store"}, "placement": apart},
        {"name": "argo", "priority": 40},
        {"name": "scan", "priority": 20},
        {"name": "sonar", "priority": 10},
    ]
    size = {"image": "x", "resources": {"memory": "1900Mi", "cpu": "100m"}}
    orders = [each for each in itertools.permutations(work) if each.index(work[0]) < each.index(work[1])]
    for order in orders:  # The first two are alike.
        timeline = [{"at": f"{10 * number}s", "submit": {**each, **size}} for number, each in enumerate(order, start=1)]
        run = simulated(tmp_path, nodes=nodes, workloads=[], timeline=timeline)
        state = run.phases[-1]
        names = [each["name"] for each in order]
        assert running(state) == {"prom", "loki", "argo", "scan"}, names
        assert [each.instance for each in state.pending] == ["sonar-0"], names
        assert where(state, "prom") != where(state, "loki"), names
        assert state.inversions == ()


@pytest.mark.req("S3-37")
@pytest.mark.parametrize("seed", range(4))
def test_a_chain_of_preemptions_is_no_longer_than_there_are_lower_priorities_and_ends(
    tmp_path: Path, seed: int
) -> None:
    nodes = [{"name": f"n{number}", "cpu": 4, "memory": f"{4 - number % 2}Gi"} for number in range(4)]
    work = [
        {"name": f"w{n}", "image": "x", "priority": 10 * n, "resources": {"memory": f"{700 * (1 + n % 4)}Mi"}}
        for n in range(1, 9)
    ]
    top = {"name": "top", "image": "x", "priority": 1000, "resources": {"memory": "3500Mi"}, "replicas": 2}
    timeline = [{"at": "1m", "phase": "top", "submit": top}, {"at": "5m", "phase": "later"}]
    run = simulated(tmp_path, seed, nodes=nodes, workloads=work, timeline=timeline, end="10m")
    state = phase(run, "top")
    assert state.workloads["top"].running == 2
    assert state.preemptions
    assert 1 <= state.cascade <= 8
    # A victim has a lower priority than its preemptor, so that a chain cannot return to an instance.
    priority = {"top": 1000} | {f"w{n}": 10 * n for n in range(1, 9)}
    for each in state.preemptions:
        assert priority[each.victim.rpartition("-")[0]] < priority[each.by.rpartition("-")[0]]
    assert phase(run, "later").preemptions == (), "it is over"
    assert phase(run, "later").inversions == ()


SMALLER = """\
      - name: grafana
        labels: {stack: observability}
        priority: platform-observability
        image: grafana/grafana:11.2
        resources: {cpu: 100m, memory: MEMORY, limits: {memory: LIMIT}}
        placement: {near: [{workload: prometheus, strength: prefer, weight: 40}]}
"""


@pytest.mark.req("S3-38")
@pytest.mark.parametrize(
    ("memory", "limit", "killed"), [("256Mi", "384Mi", False), ("256Mi", "256Mi", True), ("5Gi", "6Gi", False)]
)
def test_a_user_who_changes_the_limits_of_a_workload_changes_that_workload_alone(
    tmp_path: Path, memory: str, limit: str, killed: bool
) -> None:
    change = SMALLER.replace("MEMORY", memory).replace("LIMIT", limit)
    text = TEXT.replace("sonarqube: {memory: 70%}", "sonarqube: {memory: 70%}\n  grafana: {memory: 320Mi}")
    timeline = f"  - {{at: 0s, phase: before}}\n  - at: 6m\n    phase: changed\n    submit:\n{change}"
    run = platform(tmp_path, timeline, end="14m", text=text)
    state = phase(run, "changed")
    died = [each.text for each in run.notes if each.kind == "restart" and "OOMKilled" in each.text]
    assert bool(died) is killed
    assert all("grafana" in each for each in died)
    assert {each.instance.rpartition("-")[0] for each in state.pending} <= {"grafana"}
    assert state.preemptions == (), "no other instance makes room"
    assert state.evictions == ()
    down = {name for name, each in state.workloads.items() if each.down_seconds > 0}
    assert down == set(), "the old instance runs until a new one can"


@pytest.mark.req("S3-38")
def test_a_user_who_makes_a_node_smaller_loses_no_instance_until_its_memory_is_short_and_new_ones_go_elsewhere(
    tmp_path: Path,
) -> None:
    nodes = [{"name": name, "cpu": 4, "memory": "4Gi"} for name in ("n0", "n1")]
    web = {"name": "web", "image": "x", "replicas": 4, "resources": {"memory": "1Gi"}}
    timeline = [
        {"at": "1m", "phase": "smaller", "limit": {"node": "n0", "memory": "2Gi"}},
        {"at": "2m", "phase": "more", "scale": {"workload": "web", "replicas": 6}},
        {"at": "3m", "phase": "tiny", "limit": {"node": "n0", "memory": "1Gi"}},
    ]
    usage = {"default": {"memory": "85%"}}
    run = simulated(tmp_path, nodes=nodes, workloads=[web], timeline=timeline, usage=usage, end="8m")
    assert sorted(where(phase(run, "smaller"), "web")) == ["n0", "n0", "n1", "n1"]
    assert sorted(where(phase(run, "more"), "web")) == ["n0", "n0", *["n1"] * 4]
    tiny = phase(run, "tiny")
    assert tiny.evictions, "the host is defended"
    assert {node for _, node in tiny.evictions} == {"n0"}
    assert tiny.nodes["n0"].used_percent < 94
