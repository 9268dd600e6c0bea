"""`mandor bench` with the real scheduler: the scenarios of this repository, and mistakes in others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mandor.cli.main import run
from tests.components.etcd import Etcd

ROOT = Path(__file__).resolve().parents[3]
SCENARIOS = ROOT / "bench" / "scenarios" / "placement.yaml"
NODES = "  - {opcode: createNodes, count: 2}\n"


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    capsys.readouterr()
    status = run(["bench", *arguments, "-o", "json"])
    captured = capsys.readouterr()
    assert status == 0, captured.err
    found: dict[str, Any] = json.loads(captured.out)
    return found


def scenario(folder: Path, ops: str) -> str:
    path = folder / "case.yaml"
    path.write_text(f"- name: A\n  workloadTemplate:\n{ops}  workloads: [{{name: a, params: {{}}}}]\n")
    return str(path)


def short_cases() -> list[str]:
    from mandor.bench.scenario import read_cases

    return [
        f"{case.name}/{each.name}"
        for case in read_cases(SCENARIOS)
        for each in case.workloads
        if "short" in each.labels
    ]


@pytest.mark.req("S0-26", "S2-13")
@pytest.mark.parametrize("case", short_cases())
def test_everything_a_scenario_measures_is_bound(capsys: pytest.CaptureFixture[str], case: str) -> None:
    found = told(capsys, str(SCENARIOS), "--case", case)
    assert found["bound"] == 20
    assert set(found["throughput"]) == {"average", "p50", "p90", "p99", "sample_seconds"}
    assert all(value > 0 for value in found["throughput"].values())
    assert 0 < found["decision_ms"]["p50"] <= found["decision_ms"]["p99"]
    assert found["cpu_seconds"] > 0
    assert found["memory_peak_bytes"] > 1 << 20
    assert found["notes"] == []


@pytest.mark.req("S2-3", "S2-23")
def test_a_run_on_sqlite_leaves_nothing_behind(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = told(capsys, str(SCENARIOS), "--case", "Equal/10Nodes", "--store", "sqlite")
    assert (found["store"], found["bound"], found["nodes"]) == ("sqlite", 20, 10)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real("etcd")
@pytest.mark.req("S2-23")
def test_a_run_leaves_a_foreign_etcd_unchanged(capsys: pytest.CaptureFixture[str], etcd: Etcd) -> None:
    address = ",".join(etcd.endpoints)
    found = told(capsys, str(SCENARIOS), "--case", "Equal/10Nodes", "--store", "etcd", "--etcd", address)
    assert (found["store"], found["bound"]) == ("etcd", 20)
    assert "mandor-bench" not in etcd.etcdctl("get", "--prefix", "--keys-only", "/mandor-bench")


def test_the_cases_of_a_file_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    items = told(capsys, str(SCENARIOS))["items"]
    assert {"case": "Equal/10Nodes", "labels": ["short"], "threshold": None, "params": items[0]["params"]} == items[0]
    assert run(["bench", str(SCENARIOS)]) == 0
    assert "Spread/5000Nodes" in capsys.readouterr().out


def test_results_are_shown_to_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", str(SCENARIOS), "--case", "Equal/10Nodes"]) == 0
    captured = capsys.readouterr()
    assert "Equal/10Nodes on memory" in captured.out
    assert captured.err.splitlines() == ["createNodes 10", "createPods 5", "createPods 20"]


@pytest.mark.parametrize(
    ("ops", "line", "message"),
    [
        (NODES + "  - {opcode: creatPods, count: 1}\n", 4, "there is no operation 'creatPods'"),
        ("  - {opcode: createNodes, count: many}\n", 3, "createNodes: `count` is a number"),
        (NODES + "  - {opcode: createPods, count: 1, podTemplatePath: none.yaml}\n", 4, "createPods: cannot read"),
        (NODES + "  - {opcode: createPodGroups, count: 1, templatePath: group.yaml}\n", 4, "`spec.disruptionMode`"),
        (NODES + "  - {opcode: barrier, stageRequirement: Done}\n", 4, "barrier: `stageRequirement` is"),
        (NODES + "  - {opcode: churn, mode: always}\n", 4, "churn: `mode` is create or recreate"),
        (NODES + "  - {opcode: churn, templatePaths: [claim.yaml]}\n", 4, "churn: ResourceClaim"),
        (NODES + "  - {opcode: sleep, duration: soon}\n", 4, "sleep:"),
        (NODES + "  - {opcode: createAny, templatePath: service.yaml}\n", 4, "createAny: Service"),
        (NODES + "  - {opcode: createPods, count: 1, podTemplatePath: volume.yaml}\n", 4, "`spec.volumes`"),
    ],
)
def test_a_mistake_names_the_operation_and_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, ops: str, line: int, message: str
) -> None:
    (tmp_path / "service.yaml").write_text("kind: Service")
    (tmp_path / "claim.yaml").write_text("kind: ResourceClaim")
    (tmp_path / "group.yaml").write_text("{metadata: {name: g}, spec: {disruptionMode: {all: {}}}}")
    (tmp_path / "volume.yaml").write_text("spec: {volumes: [], containers: [{name: a, image: b}]}")
    path = scenario(tmp_path, ops)
    assert run(["bench", path, "--case", "A/a"]) == 1
    said = capsys.readouterr().err
    assert f"{path}:{line}: {message}" in said or (f"{path}:{line}: " in said and message in said)


def test_a_mistake_in_a_template_is_reported_with_its_own_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "pod.yaml").write_text("kind: Pod\nspec:\n  containers:\n  - image: web\n")
    path = scenario(tmp_path, NODES + "  - {opcode: createPods, count: 1, podTemplatePath: pod.yaml}\n")
    assert run(["bench", path, "--case", "A/a"]) == 1
    assert f"{tmp_path / 'pod.yaml'}:4: `spec.containers[0].name`: a container has a name" in capsys.readouterr().err


def test_services_that_come_and_go_are_reported_and_change_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "service.yaml").write_text("kind: Service")
    ops = NODES + "  - {opcode: churn, mode: recreate, number: 1, templatePaths: [service.yaml]}\n"
    ops += "  - {opcode: createPods, count: 3, collectMetrics: true}\n"
    found = told(capsys, scenario(tmp_path, ops), "--case", "A/a")
    assert (found["bound"], found["notes"]) == (3, ["churn: Service: no place depends on one"])


def test_a_service_with_a_selector_is_run_as_written_since_workloads_are_spread_by_default(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "service.yaml").write_text("kind: Service\nspec: {selector: {app: web}}")
    ops = NODES + "  - {opcode: createAny, templatePath: service.yaml}\n"
    ops += "  - {opcode: createPods, count: 3, collectMetrics: true}\n"
    found = told(capsys, scenario(tmp_path, ops), "--case", "A/a")
    note = "createAny: Service: the default spread selects the pods of a workload"
    assert (found["bound"], found["notes"]) == (3, [note])


def test_what_has_no_counterpart_is_left_out_and_reported_when_that_is_allowed(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "pod.yaml").write_text("spec: {volumes: [], containers: [{name: a, image: b}]}")
    (tmp_path / "service.yaml").write_text("kind: Service")
    ops = NODES + "  - {opcode: createAny, templatePath: service.yaml}\n"
    ops += "  - {opcode: createPods, count: 3, collectMetrics: true, podTemplatePath: pod.yaml}\n"
    found = told(capsys, scenario(tmp_path, ops), "--case", "A/a", "--lenient")
    assert found["bound"] == 3
    assert found["notes"] == [
        "createAny: Service: this kind has no counterpart",
        "createPods: pod.yaml: `spec.volumes`: has no counterpart",
    ]


def test_all_that_has_no_counterpart_is_reported_before_anything_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "pod.yaml").write_text("kind: Pod\nmetadata: {name: 'a-{{.Index}}'}\nspec: {containers: [{name: a}]}")
    (tmp_path / "service.yaml").write_text("kind: Service")
    ops = NODES + "  - {opcode: createPods, count: 3, podTemplatePath: pod.yaml, namespace: team}\n"
    ops += "  - {opcode: createAny, templatePath: service.yaml}\n"
    ops += "  - {opcode: updateAny, count: 3, templatePath: service.yaml, namespace: team}\n"
    path = scenario(tmp_path, ops)
    assert run(["bench", path, "--case", "A/a"]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"error: {path}:5: createAny: Service: this kind has no counterpart",
        f"error: {path}:6: updateAny: Service: only nodes and pods are updated",
        "hint: --lenient skips it with a note",
        "code: unsupported",
    ]


def test_a_run_that_waits_for_what_was_left_out_reports_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "gated.yaml").write_text(
        "kind: Pod\nmetadata: {name: 'a-{{.Index}}'}\nspec: {schedulingGates: [{name: hold}], containers: [{name: a}]}"
    )
    ops = NODES + "  - {opcode: createPods, count: 1, podTemplatePath: gated.yaml, namespace: team, "
    (tmp_path / "service.yaml").write_text("kind: Service")
    ops += "skipWaitToCompletion: true}\n  - {opcode: createAny, templatePath: service.yaml}\n"
    ops += "  - {opcode: barrier}\n"
    assert run(["bench", scenario(tmp_path, ops), "--case", "A/a", "--lenient", "--timeout", "1s"]) == 1
    said = capsys.readouterr().err
    assert "hint: what was left out may be why: createAny: Service: this kind has no counterpart" in said


def test_a_run_that_does_not_end_lists_waiting_instances(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ops = "  - {opcode: createNodes, count: 1, nodeTemplatePath: node.yaml}\n  - {opcode: createPods, count: 3}\n"
    (tmp_path / "node.yaml").write_text(
        "status: {capacity: {cpu: 50m, memory: 1Gi}, conditions: [{type: Ready, status: 'True'}]}"
    )
    assert run(["bench", scenario(tmp_path, ops), "--case", "A/a", "--timeout", "2s"]) == 1
    said = capsys.readouterr().err
    assert "after 2 s 3 instances have no node" in said
    assert "NodeResourcesFit" in said


def test_nodes_are_updated_and_pods_deleted_while_others_wait(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "closed.yaml").write_text(
        "metadata: {name: 'n-{{.Index}}'}\nspec: {unschedulable: true}\n"
        "status: {capacity: {cpu: 1, memory: 8Gi}, conditions: [{type: Ready, status: 'True'}]}"
    )
    (tmp_path / "open.yaml").write_text(
        (tmp_path / "closed.yaml").read_text().replace("true", "false") + "\nkind: Node"
    )
    ops = """\
  - {opcode: createNamespaces, prefix: team, count: 1}
  - {opcode: createNodes, count: 2, nodeTemplatePath: closed.yaml}
  - {opcode: startCollectingMetrics, namespaces: [team-0]}
  - {opcode: createPods, count: 20, namespace: team-0, skipWaitToCompletion: true}
  - {opcode: barrier, stageRequirement: Attempted}
  - {opcode: updateAny, count: 2, templatePath: open.yaml}
  - {opcode: barrier}
  - {opcode: createPods, count: 5, namespace: team-0, skipWaitToCompletion: true}
  - {opcode: barrier, stageRequirement: Attempted}
  - {opcode: deletePods, namespace: team-0}
  - {opcode: barrier}
  - {opcode: stopCollectingMetrics}
"""
    found = told(capsys, scenario(tmp_path, ops), "--case", "A/a", "--timeout", "60s")
    assert found["bound"] >= 20


UPDATES = """\
  - {opcode: createNodes, count: 1}
  - {opcode: startCollectingMetrics, namespaces: [team]}
  - {opcode: createPods, count: 3, podTemplatePath: gated.yaml, namespace: team, skipWaitToCompletion: true}
  - {opcode: barrier, stageRequirement: Attempted}
  - {opcode: updateAny, count: 3, templatePath: open.yaml, namespace: team}
  - {opcode: barrier}
  - {opcode: stopCollectingMetrics}
"""


def pod(folder: Path, file: str, spec: str) -> None:
    text = f"kind: Pod\nmetadata: {{name: 'a-{{{{.Index}}}}'}}\nspec: {{{spec}containers: [{{name: a, image: b}}]}}"
    (folder / file).write_text(text)


def test_updated_pods_are_replaced_by_instances_with_the_new_template(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pod(tmp_path, "gated.yaml", "schedulingGates: [{name: hold}], ")
    pod(tmp_path, "open.yaml", "")
    found = told(capsys, scenario(tmp_path, UPDATES), "--case", "A/a", "--timeout", "60s")
    assert found["bound"] == 3
    assert found["notes"] == ["updateAny: Pod: replaced by a new instance instead of changed in place"]


def test_pods_whose_update_has_no_counterpart_are_removed_and_the_run_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pod(tmp_path, "gated.yaml", "schedulingGates: [{name: hold}], ")
    pod(tmp_path, "open.yaml", "schedulingGates: [{name: hold}], volumes: [], ")
    found = told(capsys, scenario(tmp_path, UPDATES), "--case", "A/a", "--lenient", "--timeout", "60s")
    assert found["bound"] == 0
    assert "updateAny: open.yaml: `spec.volumes`: has no counterpart" in found["notes"]


@pytest.mark.parametrize(("room", "bound"), [("350m", 3), ("250m", 0)])
def test_pods_of_a_group_get_their_nodes_together_or_not_at_all(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, room: str, bound: int
) -> None:
    ready = "conditions: [{type: Ready, status: 'True'}]"
    (tmp_path / "node.yaml").write_text(f"status: {{capacity: {{cpu: {room}, memory: 8Gi}}, {ready}}}")
    (tmp_path / "group.yaml").write_text(
        "metadata: {name: 'g-{{.Index}}'}\nspec: {schedulingPolicy: {gang: {minCount: 3}}}"
    )
    (tmp_path / "pod.yaml").write_text(
        "metadata:\n  name: pod-{{.Index}}\nspec:\n  schedulingGroup: {podGroupName: 'g-{{DivideInt .Index 3}}'}\n"
        "  containers: [{name: a, image: b, resources: {requests: {cpu: 100m}}}]\n"
    )
    ops = """\
  - {opcode: createNodes, count: 1, nodeTemplatePath: node.yaml}
  - {opcode: createPodGroups, count: 1, namespace: team, templatePath: group.yaml}
  - {opcode: startCollectingMetrics, namespaces: [team]}
  - {opcode: createPods, count: 3, namespace: team, podTemplatePath: pod.yaml, skipWaitToCompletion: true}
  - {opcode: barrier, stageRequirement: Attempted}
  - {opcode: stopCollectingMetrics}
"""
    found = told(capsys, scenario(tmp_path, ops), "--case", "A/a", "--timeout", "60s")
    assert (found["bound"], found["instances"]) == (bound, 3)
