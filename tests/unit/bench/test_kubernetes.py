"""Kubernetes' templates as Mandor's nodes and groups."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.bench.kubernetes import Pod, Reader
from mandor.lib.quantity import Cpu, Seconds, Size
from mandor.lib.yaml12 import load_all
from mandor.model.node import Node, NodePhase, Taint
from mandor.model.placement import Apart, Near, Spread, Toleration, Where
from mandor.model.resources import Device

NAMESPACES = {"team": ("init-0", "init-1")}


class Refusals(list[tuple[str, str]]):
    def __call__(self, key: str, why: str) -> None:
        self.append((key, why))


def pod(spec: str, meta: str = "") -> tuple[Pod, Refusals]:
    refusals = Refusals()
    text = f"kind: Pod\nmetadata: {{generateName: pod-, {meta}}}\nspec:\n  containers: [{{name: main, image: web}}]\n"
    text += "".join(f"  {line}\n" for line in spec.splitlines())
    reader = Reader(refusals, lambda labels: NAMESPACES[next(iter(labels))], {"high": 1000})
    return reader.pod(load_all(text)[0].value), refusals


def node(text: str) -> tuple[Node, Refusals]:
    refusals = Refusals()
    return Reader(refusals).node(load_all(text)[0].value, "n1", {"topology.kubernetes.io/zone": "z1"}), refusals


def test_a_node_has_its_room_its_taints_and_its_labels_under_our_names() -> None:
    made, refusals = node(
        """\
metadata: {labels: {disk: ssd, kubernetes.io/hostname: n1}}
spec: {taints: [{key: gpu, effect: NoSchedule}]}
status:
  capacity: {cpu: "4", memory: 32Gi, pods: "110"}
  conditions: [{type: Ready, status: "True"}]
  images: [{names: ["web:1", "web:latest"], sizeBytes: 1000}]
"""
    )
    assert refusals == []
    assert (made.meta.name, made.meta.labels) == ("n1", {"disk": "ssd", "zone": "z1"})
    assert (made.status.capacity.cpu_milli, made.status.capacity.memory_bytes) == (4000, 32 << 30)
    assert made.spec.taints == (Taint("gpu", "", "NoSchedule"),)
    assert made.status.phase is NodePhase.READY
    assert made.status.images == {"web:1": 1000, "web:latest": 1000}


@pytest.mark.parametrize("text", ["spec: {unschedulable: true}", 'status: {capacity: {pods: "0"}}'])
def test_a_node_that_takes_nothing_is_cordoned(text: str) -> None:
    assert node(text)[0].spec.cordoned


def test_a_pod_asks_for_what_its_containers_request() -> None:
    made, refusals = pod(
        """\
initContainers: [{name: first, image: web, resources: {limits: {cpu: 2}}}]
priorityClassName: high
schedulingGates: [{name: test.k8s.io/hold}]
schedulerName: default-scheduler
terminationGracePeriodSeconds: 0""",
        "labels: {app: web}",
    )
    assert refusals == []
    assert made.group.tasks["first"].role == "init"
    assert made.group.tasks["first"].resources.cpu == Cpu(2000)
    assert made.group.tasks["main"].stop.grace == Seconds(0)
    assert (made.priority, made.gates, made.profile) == (1000, ("test.k8s.io-hold",), "default")
    assert (made.labels, made.finalizers) == ({"app": "web"}, False)


def test_requests_count_before_limits_and_host_ports_are_ports() -> None:
    refusals = Refusals()
    text = """\
spec:
  containers:
  - name: a
    image: web
    ports: [{containerPort: 80, hostPort: 8080, protocol: UDP}]
    resources: {requests: {cpu: 100m}, limits: {cpu: 1, memory: 500Mi}}
"""
    made = Reader(refusals).pod(load_all(text)[0].value)
    asked = made.group.tasks["a"].resources
    assert (asked.cpu, asked.memory) == (Cpu(100), Size(500 << 20))
    (port,) = made.group.ports.values()
    assert (port.port, port.host, port.protocol) == (80, 8080, "udp")


PLACES: list[tuple[str, str, tuple[Any, ...]]] = [
    ("nodeSelector: {disk: ssd}", "where", (Where(rule="disk == ssd"),)),
    (
        """\
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchFields: [{key: metadata.name, operator: In, values: [n1]}]
      - matchExpressions: [{key: cores, operator: Gt, values: ["4"]}]""",
        "where",
        (Where(any=("node in [n1]", "cores integer > 4")),),
    ),
    (
        """\
affinity:
  nodeAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - {weight: 5, preference: {matchExpressions: [{key: a, operator: Exists}]}}""",
        "where",
        (Where(rule="a exists", strength="prefer", weight=5),),
    ),
    (
        """\
affinity:
  podAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
    - topologyKey: topology.kubernetes.io/zone
      labelSelector: {matchLabels: {color: blue}}
      namespaceSelector: {matchLabels: {team: devops}}""",
        "near",
        (Near(match={"color": "blue"}, namespaces=("init-0", "init-1"), over="zone"),),
    ),
    (
        """\
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - weight: 1
      podAffinityTerm:
        topologyKey: kubernetes.io/hostname
        labelSelector: {matchExpressions: [{key: color, operator: In, values: [green]}]}
        namespaceSelector: {}""",
        "apart",
        (Apart(match={"color": "green"}, namespaces=("*",), over="node", strength="prefer", weight=1),),
    ),
    (
        """\
topologySpreadConstraints:
- maxSkew: 5
  topologyKey: topology.kubernetes.io/zone
  whenUnsatisfiable: ScheduleAnyway
  minDomains: 1
  nodeAffinityPolicy: Honor
  labelSelector: {matchLabels: {color: blue}}""",
        "spread",
        (Spread(over="zone", max_skew=5, match={"color": "blue"}, strength="prefer"),),
    ),
    (
        "tolerations: [{key: a, operator: Exists}, {key: b, value: c, effect: NoSchedule}]",
        "tolerate",
        (Toleration("a"), Toleration("b", "c", "NoSchedule")),
    ),
]


@pytest.mark.parametrize(("spec", "field", "rules"), PLACES, ids=lambda each: each if isinstance(each, str) else "")
def test_rules_of_placement_have_their_counterparts(spec: str, field: str, rules: tuple[Any, ...]) -> None:
    made, refusals = pod(spec)
    assert refusals == []
    assert getattr(made.group.placement, field) == rules


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ("volumes: [{name: v}]", "spec.volumes"),
        ("priorityClassName: unknown", "spec.priorityClassName"),
        ("tolerations: [{key: node.kubernetes.io/unschedulable, operator: Exists}]", "spec.tolerations.key"),
        (
            "affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: a}]}}",
            "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution.topologyKey",
        ),
    ],
)
def test_what_has_no_counterpart_is_named(spec: str, key: str) -> None:
    _, refusals = pod(spec)
    assert key in dict(refusals)


def test_extended_resources_are_devices() -> None:
    made, refusals = node("status: {capacity: {cpu: 1, example.com/gpu: 4}}")
    assert (made.status.capacity.devices, refusals) == ({"gpu": 4, "example.com/gpu": 4}, [])
    text = "spec: {containers: [{name: a, image: b, resources: {limits: {example.com/gpu: 2}}}]}"
    asked = Reader(Refusals()).pod(load_all(text)[0].value).group.tasks["a"].resources.devices
    assert asked == (Device("gpu", "example.com", 2),)
