"""Scenario files: what they hold, and mistakes in them with their line."""

from __future__ import annotations

from pathlib import Path

import pytest

from mandor.bench.scenario import find_case, read_cases
from mandor.errors import Invalid

GOOD = """\
- name: Basic
  defaultPodTemplatePath: ../pod.yaml
  featureGates: {SomethingNew: true}
  workloadTemplate:
  - opcode: createNodes
    countParam: $nodes
  - opcode: createPods
    countParam: $groups
    countMultiplierParam: $each
    collectMetrics: true
  workloads:
  - name: 5Nodes/small
    labels: [short]
    threshold: 12.5
    params: {nodes: 5, groups: 3, each: 4}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "performance-config.yaml"
    path.write_text(text)
    return path


def test_a_case_has_operations_and_workloads_with_their_parameters(tmp_path: Path) -> None:
    cases = read_cases(written(tmp_path, GOOD))
    case, workload = find_case(cases, "Basic/5Nodes/small")
    nodes, pods = case.ops(workload)
    assert (nodes.opcode, nodes.count()) == ("createNodes", 5)
    assert (pods.number, pods.count()) == (1, 12)
    assert (workload.labels, workload.threshold) == (("short",), 12.5)
    assert case.pod_template == tmp_path / "../pod.yaml"


@pytest.mark.parametrize(
    ("text", "line", "told"),
    [
        ("- name: {", 2, ""),
        ("name: x", 1, "a list of test cases"),
        ("[]", 1, "no test case"),
        ("- name: A\n  workloadTemplate: []\n", 1, "`workloads`"),
        ("- name: A\n  workloadTemplat: []\n", 2, "has no `workloadTemplat`"),
        (GOOD.replace("opcode: createPods", "opcode: createPod"), 7, "there is no operation 'createPod'"),
        (GOOD.replace("collectMetrics", "collectMetric"), 10, "createPods has no `collectMetric`"),
        (GOOD.replace("labels: [short]", "label: [short]"), 13, "a workload has no `label`"),
        (GOOD.replace("threshold: 12.5", "threshold: fast"), 14, "`threshold` is a number"),
    ],
)
def test_a_mistake_is_reported_with_its_line(tmp_path: Path, text: str, line: int, told: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(Invalid) as caught:
        read_cases(path)
    assert told in caught.value.message
    assert caught.value.facts == {"file": str(path), "line": line}


def test_a_parameter_that_the_workload_does_not_give_is_reported(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD.replace("params: {nodes: 5", "params: {node: 5"))
    case, workload = find_case(read_cases(path), "Basic/5Nodes/small")
    with pytest.raises(Invalid, match="gives no parameter `nodes`") as caught:
        case.ops(workload)[0].count()
    assert caught.value.facts["line"] == 6
    assert caught.value.hint == "did you mean `node`?"


@pytest.mark.parametrize(
    ("wanted", "told", "hint"),
    [
        ("Basik/5Nodes", "there is no case 'Basik'", "did you mean `Basic`?"),
        ("Basic/6Nodes", "has no workload '6Nodes'", "it has 5Nodes/small"),
        ("Basic", "Basic/WORKLOAD is missing", "it has 5Nodes/small"),
    ],
)
def test_an_unknown_case_is_reported_with_those_there_are(tmp_path: Path, wanted: str, told: str, hint: str) -> None:
    with pytest.raises(Invalid) as caught:
        find_case(read_cases(written(tmp_path, GOOD)), wanted)
    assert told in caught.value.message
    assert caught.value.hint == hint


def test_a_file_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="no such file"):
        read_cases(tmp_path / "none.yaml")
