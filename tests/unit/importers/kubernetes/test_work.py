"""Each kind that runs pods, and what other objects add to it."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.errors import Invalid
from mandor.importers.base import knows
from mandor.model.batch import Batch
from tests.unit.importers.kubernetes.imports import deployment, imported, indented, only, pod, service, told

TEMPLATE = "template: {metadata: {labels: {app: web}}, spec: {containers: [{name: main, image: nginx:1}]}}"
ONCE = TEMPLATE.replace("spec: {", "spec: {restartPolicy: Never, ")


API = dict.fromkeys(("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet"), "apps/v1") | {
    "Job": "batch/v1",
    "CronJob": "batch/v1",
    "PriorityClass": "scheduling.k8s.io/v1",
    "PodDisruptionBudget": "policy/v1",
    "HorizontalPodAutoscaler": "autoscaling/v2",
}


def work(kind: str, spec: str, name: str = "web") -> str:
    return f"apiVersion: {API.get(kind, 'v1')}\nkind: {kind}\nmetadata: {{name: {name}}}\nspec:\n{indented(spec, 2)}"


@pytest.mark.req("S0-32")
def test_a_deployment_is_a_service_with_the_labels_of_its_pods() -> None:
    found = imported(deployment("replicas: 3"))
    assert found.made[0].manifest == {
        "name": "web",
        "labels": {"app": "web"},
        "replicas": 3,
        "engine": ["docker", "podman", "cri"],
        "image": "nginx:1",
        "stop": {"grace": "30s"},
    }
    assert (found.report.share, found.report.notes) == (1.0, ())


KINDS: list[tuple[str, str, str, Any]] = [
    (
        "Deployment",
        "strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 25%}}",
        "update",
        {"max_surge": 1, "max_unavailable": "25%"},
    ),
    ("Deployment", "strategy: {type: Recreate}", "update", {"order": "stop-first", "max_unavailable": "100%"}),
    (
        "Deployment",
        "minReadySeconds: 3\nprogressDeadlineSeconds: 60",
        "update",
        {"min_healthy": "3s", "deadline": "1m"},
    ),
    ("Deployment", "progressDeadlineSeconds: 5", "update", {"min_healthy": "0s", "deadline": "5s"}),
    ("StatefulSet", "replicas: 2", "update", {"order": "stop-first", "max_unavailable": 1}),
    (
        "StatefulSet",
        "persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete}\n"
        "volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: "
        "{requests: {storage: 1Gi}}}}]",
        "volumes",
        {"data": {"size": "1Gi", "per_instance": True, "reclaim": "delete"}},
    ),
    (
        "Job",
        "completions: 5\nparallelism: 2\nbackoffLimit: 1\nactiveDeadlineSeconds: 90",
        "batch",
        {"completions": 5, "parallelism": 2, "retries": 1, "deadline": "1m30s"},
    ),
    ("Job", "", "batch", {"retries": 6}),
    ("Job", "", "restart", {"policy": "never"}),
    ("Job", "backoffLimit: 2", "batch", {"retries": 2}),
    ("ReplicaSet", "replicas: 2", "replicas", 2),
    ("ReplicationController", "selector: {app: web}", "type", None),
]


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(("kind", "spec", "key", "wanted"), KINDS, ids=lambda each: str(each)[:40])
def test_a_kind_that_runs_pods_is_a_workload(kind: str, spec: str, key: str, wanted: Any) -> None:
    template = ONCE if kind == "Job" else TEMPLATE
    if "data" in spec:
        template = template.replace("image: nginx:1", "image: a, volumeMounts: [{name: data, mountPath: /d}]")
    assert only(work(kind, f"{spec}\n{template}")).get(key) == wanted


CRONS: list[tuple[str, dict[str, Any]]] = [
    ("", {"overlap": "allow", "missed": "run"}),
    ("concurrencyPolicy: Forbid\nstartingDeadlineSeconds: 60", {"overlap": "forbid"}),
    ("concurrencyPolicy: Replace\nsuspend: true", {"overlap": "replace", "missed": "run", "paused": True}),
    ("timeZone: Asia/Jakarta\nsuccessfulJobsHistoryLimit: 5", {"timezone": "Asia/Jakarta", "keep": 5}),
]


@pytest.mark.parametrize(("spec", "wanted"), CRONS)
def test_a_cronjob_is_a_batch_with_a_schedule(spec: str, wanted: dict[str, Any]) -> None:
    job = "jobTemplate:\n  spec:\n" + indented(ONCE, 4)
    made = only(work("CronJob", f"schedule: '*/5 * * * *'\n{spec}\n{job}"))
    assert made["type"] == "batch"
    assert {"cron": "*/5 * * * *", **wanted}.items() <= made["schedule"].items()
    assert ("missed" in made["schedule"]) == ("startingDeadlineSeconds" not in spec)


def config(spec: str) -> str:
    return (
        f"apiVersion: apps.openshift.io/v1\nkind: DeploymentConfig\nmetadata: {{name: web}}\nspec:\n{indented(spec, 2)}"
    )


@pytest.mark.req("S0-32")
def test_a_deployment_config_of_openshift_is_a_deployment() -> None:
    spec = (
        f"replicas: 2\nselector: {{app: web}}\n{TEMPLATE}\ntriggers: [{{type: ConfigChange}}, {{type: ImageChange}}]\n"
        "strategy:\n  type: Rolling\n"
        "  rollingParams: {maxSurge: 1, maxUnavailable: 0, timeoutSeconds: 60, intervalSeconds: 1}"
    )
    found = imported(config(spec))
    made = found.made[0].manifest
    assert (made["name"], made["replicas"], made["image"]) == ("web", 2, "nginx:1")
    assert made["update"] == {"max_surge": 1, "max_unavailable": 0, "deadline": "1m"}
    assert set(told(found)) == {"spec.triggers[1].type", "spec.strategy.rollingParams.intervalSeconds"}
    recreated = only(config(f"{TEMPLATE}\nstrategy: {{type: Recreate, recreateParams: {{timeoutSeconds: 90}}}}"))
    assert recreated["update"] == {"order": "stop-first", "max_unavailable": "100%", "deadline": "1m30s"}


def test_an_empty_pull_policy_is_the_default() -> None:
    assert "options" not in only(deployment("", "", "imagePullPolicy: ''"))


@pytest.mark.req("S0-32")
@pytest.mark.parametrize("spec", ["suspend: true", "parallelism: 0"])
def test_a_job_that_kubernetes_does_not_run_waits_at_a_gate(spec: str) -> None:
    assert only(work("Job", f"{spec}\n{ONCE}"))["gates"] == ["suspended"]
    runs = "schedule: '* * * * *'\njobTemplate:\n  spec:\n" + indented(f"{spec}\n{ONCE}", 4)
    assert only(work("CronJob", runs))["gates"] == ["suspended"]
    assert "gates" not in only(work("Job", f"suspend: false\nparallelism: 1\n{ONCE}"))


def test_a_paused_deployment_waits_at_a_gate_beside_the_gates_of_its_pods() -> None:
    template = TEMPLATE.replace("spec: {", "spec: {schedulingGates: [{name: a}], ")
    assert only(deployment("paused: true").replace(TEMPLATE, template))["gates"][-1] == "paused"
    assert "gates" not in only(deployment("paused: false"))


def test_an_indexed_job_is_what_this_version_can_do() -> None:
    made = imported(work("Job", f"completionMode: Indexed\ncompletions: 2\n{ONCE}"))
    assert made.made[0].manifest["batch"].get("indexed", False) == knows(Batch, "indexed")


def test_a_daemon_set_is_on_every_node_and_none_of_it_is_started_beside_another() -> None:
    spread = "topologySpreadConstraints: [{maxSkew: 1, topologyKey: a, whenUnsatisfiable: ScheduleAnyway}]"
    template = TEMPLATE.replace("spec: {", f"spec: {{{spread}, ")
    found = imported(work("DaemonSet", f"updateStrategy: {{rollingUpdate: {{maxSurge: 1}}}}\n{template}"))
    made = found.made[0].manifest
    assert (made["type"], made["update"]) == ("daemon", {"order": "stop-first", "max_unavailable": 1})
    assert {"spec.updateStrategy.rollingUpdate.maxSurge", "spec.template.spec.topologySpreadConstraints"} <= set(
        told(found)
    )


def test_objects_of_one_name_and_two_kinds_get_two_names() -> None:
    found = imported(deployment() + "---\n" + work("Job", ONCE))
    assert [each.manifest["name"] for each in found.made] == ["web", "web-job"]
    assert "it is called web-job here" in told(found)["metadata.name"]


def test_the_same_object_twice_is_refused() -> None:
    with pytest.raises(Invalid, match="is defined twice"):
        imported(deployment(), deployment())


def test_objects_of_other_namespaces_stay_apart() -> None:
    one, other = (deployment().replace("{name: web}", f"{{name: web, namespace: {name}}}") for name in "ab")
    assert [each.manifest["namespace"] for each in imported(one, other).made] == ["a", "b"]


def test_a_list_counts_as_its_items_and_a_name_that_is_too_long_is_cut() -> None:
    long = "x" * 80
    found = imported("kind: List\napiVersion: v1\nitems:\n-" + indented(deployment(name=long), 2)[1:])
    assert found.made[0].manifest["name"] == long[:63]
    assert found.report.dropped == 0


def budget(rule: str) -> str:
    return (
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: b}\n"
        f"spec: {{{rule}, selector: {{matchExpressions: [{{key: app, operator: In, values: [web, x]}}]}}}}\n"
    )


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        ("maxUnavailable: 1", 1),
        ("maxUnavailable: 20%", "20%"),
        ("minAvailable: 4", 1),
        ("minAvailable: 50%", 2),
        ("minAvailable: 100%", 0),
    ],
)
def test_a_budget_is_kept_whatever_way_it_is_written(rule: str, wanted: Any) -> None:
    assert only(deployment("replicas: 5"), budget(rule))["disruption"] == {"max_unavailable": wanted}


def test_a_budget_of_nothing_leaves_room_for_an_update_that_stops_first() -> None:
    found = imported(deployment("replicas: 5\nstrategy: {type: Recreate}"), budget("maxUnavailable: 0"))
    assert found.made[0].manifest["disruption"] == {"max_unavailable": 1}
    assert "spec.maxUnavailable" in told(found)


def test_an_autoscaler_is_joined_with_its_target() -> None:
    scaler = """\
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: s}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 2
  maxReplicas: 5
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}]
  behavior: {scaleDown: {stabilizationWindowSeconds: 60, policies: [{type: Pods, value: 1, periodSeconds: 30}]}}
"""
    made = only(deployment("replicas: 3", container="resources: {requests: {cpu: 100m}}"), scaler)
    down = {"window": "1m", "instances": 1, "per": "30s"}
    assert made["autoscale"] == {"min": 2, "max": 5, "cpu": "60%", "down": down}
    assert made["replicas"] == 3


POLICIES: list[tuple[str, str, dict[str, Any]]] = [
    ("Namespace", "", {"kind": "namespace", "name": "x"}),
    (
        "PriorityClass",
        "value: 1000\nglobalDefault: true\npreemptionPolicy: Never\ndescription: fast",
        {
            "kind": "priority-class",
            "name": "x",
            "value": 1000,
            "default": True,
            "preempt": "never",
            "description": "fast",
        },
    ),
    ("PriorityClass", "value: 1000000000", {"kind": "priority-class", "name": "x", "value": 1_000_000_000}),
    ("PriorityClass", "value: 999999999", {"kind": "priority-class", "name": "x", "value": 999_999_999}),
    ("PriorityClass", "value: -2147483648", {"kind": "priority-class", "name": "x", "value": -(2**31)}),
    (
        "ResourceQuota",
        "spec: {hard: {pods: 10, requests.cpu: 4, memory: 8Gi, requests.nvidia.com/gpu: 2}}",
        {"kind": "quota", "name": "x", "instances": 10, "cpu": "4", "memory": "8Gi", "devices": {"nvidia/gpu": 2}},
    ),
    (
        "LimitRange",
        "spec: {limits: [{type: Container, default: {cpu: 1}, defaultRequest: {cpu: 100m}, max: {memory: 1Gi}}]}",
        {
            "kind": "limit-defaults",
            "name": "x",
            "resources": {"cpu": "100m", "limits": {"cpu": "1"}},
            "most": {"memory": "1Gi"},
        },
    ),
    (
        "PersistentVolumeClaim",
        "spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 5Gi}}}",
        {"kind": "volume", "name": "x", "size": "5Gi"},
    ),
]


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(("kind", "more", "wanted"), POLICIES, ids=[each[0] for each in POLICIES])
def test_objects_of_their_own_have_their_counterparts(kind: str, more: str, wanted: dict[str, Any]) -> None:
    found = imported(f"apiVersion: {API.get(kind, 'v1')}\nkind: {kind}\nmetadata: {{name: x}}\n{more}\n")
    assert [each.manifest for each in found.made] == [wanted]
    assert found.report.dropped == 0


@pytest.mark.parametrize("kind", ["Ingress", "ServiceAccount", "ClusterRole", "Widget"])
def test_an_object_without_a_counterpart_is_reported(kind: str) -> None:
    found = imported(f"apiVersion: v1\nkind: {kind}\nmetadata: {{name: x}}\ndata: {{a: b}}\n")
    assert (found.made, found.report.mapped) == ((), 0)
    assert [(note.path, note.fate, note.line) for note in found.report.notes] == [("kind", "dropped", 2)]


def test_a_template_that_is_not_rendered_is_reported_what_to_do() -> None:
    with pytest.raises(Invalid) as error:
        imported("apiVersion: v1\nkind: Pod\nmetadata: {name: {{ .Release.Name }}}\n")
    assert "helm template" in str(error.value.hint)


def test_a_job_that_is_restarted_in_place_fails_after_as_many_failures_as_there() -> None:
    made = only(work("Job", f"backoffLimit: 2\n{ONCE.replace('Never', 'OnFailure')}"))
    assert (made["restart"], made["batch"]) == ({"policy": "on-failure", "attempts": 2}, {"retries": 0})


def test_labels_of_an_object_that_is_none_here_are_reported_unless_its_workload_has_them() -> None:
    same, other = (
        service().replace("name: web", "name: web, labels: {app: web}"),
        service().replace("name: web", "name: web, labels: {app: web, tier: front}"),
    )
    assert "metadata.labels" not in told(imported(deployment(), same))
    assert "metadata.labels" in told(imported(deployment(), other))


def test_an_unmounted_volume_is_reported() -> None:
    found = imported(deployment(pod_spec="volumes: [{name: a, emptyDir: {}}]"))
    assert "no container mounts it" in told(found)["spec.template.spec.volumes[0].name"]
    assert "volumes" not in found.made[0].manifest


def test_a_kind_of_another_api_is_another_thing() -> None:
    found = imported("apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: a}\nspec: {template: {}}\n")
    assert not found.made
    assert "serving.knative.dev/v1" in told(found)["kind"]


def test_an_unknown_version_is_refused_with_the_known_ones() -> None:
    with pytest.raises(Invalid, match="apps/v9") as caught:
        imported(deployment().replace("apps/v1", "apps/v9"))
    assert caught.value.facts["line"] == 1
    assert "apps/v1beta2" in str(caught.value.hint)


def test_a_selector_of_other_pods_is_refused() -> None:
    with pytest.raises(Invalid, match="own template"):
        imported(deployment().replace("matchLabels: {app: web}", "matchLabels: {app: other}"))


def test_annotations_are_kept_as_labels_where_they_fit() -> None:
    text = deployment().replace("{name: web}", f"{{name: web, annotations: {{note: short, long: {'x' * 300}}}}}", 1)
    found = imported(text)
    assert found.made[0].manifest["labels"] == {"app": "web", "note": "short"}
    assert [note.fate for note in found.report.notes if note.path == "metadata.annotations"] == ["dropped", "guessed"]


def test_the_older_form_of_an_autoscaler_is_read() -> None:
    scaler = (
        "apiVersion: autoscaling/v2beta1\nkind: HorizontalPodAutoscaler\nmetadata: {name: a}\n"
        "spec:\n  scaleTargetRef: {kind: Deployment, name: web}\n  maxReplicas: 5\n"
        "  metrics: [{type: Resource, resource: {name: cpu, targetAverageUtilization: 60}}]\n"
    )
    found = imported(deployment(), scaler)
    assert found.made[0].manifest["autoscale"] == {"max": 5, "cpu": "60%"}
    assert found.report.dropped == 0


def test_a_kind_that_was_mistyped_is_reported_with_the_one_of_that_api() -> None:
    own = imported("apiVersion: apps/v1\nkind: Deplyment\nmetadata: {name: a}\n").report
    assert [(note.line, note.fate, note.hint) for note in own.notes] == [(2, "dropped", "did you mean `Deployment`?")]
    others = imported("apiVersion: example.org/v1\nkind: Deplyment\nmetadata: {name: a}\n").report
    assert [note.hint for note in others.notes] == [""], "what others call their kinds is their business"


def test_objects_without_a_namespace_are_in_default() -> None:
    scaler = (
        "apiVersion: autoscaling/v1\nkind: HorizontalPodAutoscaler\nmetadata: {name: a, namespace: default}\n"
        "spec: {scaleTargetRef: {kind: Deployment, name: web}, maxReplicas: 5, targetCPUUtilizationPercentage: 60}\n"
    )
    elsewhere = scaler.replace("namespace: default", "namespace: other")
    assert imported(deployment(), scaler).made[0].manifest["autoscale"] == {"max": 5, "cpu": "60%"}
    assert "autoscale" not in imported(deployment(), elsewhere).made[0].manifest
    config = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c, namespace: default}\ndata: {LEVEL: info}\n"
    found = only(config, pod("", "envFrom: [{configMapRef: {name: c}}]"))
    assert found["env"] == {"LEVEL": "info"}


def test_labels_that_controllers_give_are_what_mandor_fills_in() -> None:
    path = "metadata.labels['apps.kubernetes.io/pod-index']"
    variable = f'env: [{{name: A, valueFrom: {{fieldRef: {{fieldPath: "{path}"}}}}}}]'
    assert only(pod("", variable))["env"] == {"A": "${MANDOR_INDEX}"}


@pytest.mark.parametrize(
    ("pace", "cron"), [("15m", "*/15 * * * *"), ("2h", "0 */2 * * *"), ("24h", "0 0 * * *"), ("1m0s", "*/1 * * * *")]
)
def test_a_pace_is_times_of_the_clock(pace: str, cron: str) -> None:
    text = f"apiVersion: batch/v1\nkind: CronJob\nmetadata: {{name: a}}\nspec:\n  schedule: '@every {pace}'\n"
    text += "  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: b}]}}}}\n"
    found = imported(text)
    assert found.made[0].manifest["schedule"]["cron"] == cron
    assert [(note.line, note.path, note.fate) for note in found.report.notes] == [(5, "spec.schedule", "guessed")]
    with pytest.raises(Invalid, match="every 50m falls on no regular times") as caught:
        imported(text.replace(f"@every {pace}", "@every 50m"))
    assert caught.value.facts["line"] == 5


def test_claims_of_instances_belong_to_the_user_of_their_pods() -> None:
    text = """apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      securityContext: {fsGroup: 1001}
      containers:
      - {name: a, image: b, securityContext: {runAsUser: 999}, volumeMounts: [{name: data, mountPath: /data}]}
  volumeClaimTemplates:
  - {metadata: {name: data}, spec: {resources: {requests: {storage: 1Gi}}}}
"""
    assert only(text)["volumes"] == {"data": {"size": "1Gi", "per_instance": True, "owner": "999:1001"}}
    both = text.replace("{fsGroup: 1001}", "{fsGroup: 1001, runAsUser: 5}")
    assert only(both)["volumes"]["data"]["owner"] == "5:1001"
    with pytest.raises(Invalid, match="expected a mapping"):
        imported(text.replace("securityContext: {runAsUser: 999}", "securityContext: root"))
    neither = imported(text.replace("securityContext: {runAsUser: 999}, ", ""))
    assert "owner" not in neither.made[0].manifest["volumes"]["data"]
    assert "spec.template.spec.securityContext.fsGroup" in {note.path for note in neither.report.notes}


def test_a_piece_of_a_job_finds_its_index_under_the_name_it_knows() -> None:
    text = "apiVersion: batch/v1\nkind: Job\nmetadata: {name: a}\nspec:\n  completions: 3\n  completionMode: Indexed\n"
    text += (
        "  template: {spec: {restartPolicy: Never, containers: [{name: a, image: b, env: [{name: C, value: d}]}]}}\n"
    )
    assert only(text)["env"] == {"JOB_COMPLETION_INDEX": "${MANDOR_INDEX}", "C": "d"}
    assert only(text.replace("Indexed", "NonIndexed"))["env"] == {"C": "d"}


def test_a_pod_without_containers_is_reported_with_its_line() -> None:
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n"
    text += "  initContainers: [{name: a, image: b}]\n  containers:\n"
    with pytest.raises(Invalid, match="at least one container") as caught:
        imported(text)
    assert caught.value.facts["line"] == 6
