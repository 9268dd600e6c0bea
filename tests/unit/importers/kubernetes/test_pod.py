"""What a pod says of itself and its containers, and where a manifest has it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.errors import Invalid
from mandor.importers.kubernetes.amounts import amount, cpu, size
from mandor.importers.kubernetes.env import Environment
from tests.unit.importers.kubernetes.imports import imported, only, pod, told

CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {a.conf: 'x=1', LEVEL: debug}\n"


SECOND = {"timeout": "1s"}
"""What Kubernetes waits for an answer, unless somebody says otherwise."""


def each_engine(**options: Any) -> dict[str, Any]:
    return dict.fromkeys(("docker", "podman", "cri"), options)


CONTAINERS: list[tuple[str, str, Any]] = [
    ("command: [run]\nargs: [-v]", "command", ["run"]),
    ("workingDir: /srv", "working_dir", "/srv"),
    ("env: [{name: A, value: '1'}, {name: B, value: $(A)2}]", "env", {"A": "1", "B": "12"}),
    ("env: [{name: P, value: x}]\nargs: ['$(P)', '$$(P)', '$(Q)']", "args", ["x", "$(P)", "$(Q)"]),
    (
        "env: [{name: N, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]\nargs: ['--id=$(N)']",
        "args",
        ["--id=${MANDOR_INSTANCE}"],
    ),
    ("env: [{name: L, valueFrom: {fieldRef: {fieldPath: \"metadata.labels['app']\"}}}]", "env", {"L": "web"}),
    (
        "resources: {limits: {memory: 64Mi}}\n"
        "env: [{name: M, valueFrom: {resourceFieldRef: {resource: limits.memory, divisor: 1Mi}}}]",
        "env",
        {"M": "64"},
    ),
    (
        "ports: [{containerPort: 80, name: http}, {containerPort: 53, protocol: UDP}]",
        "ports",
        {"http": 80, "port-53-udp": {"port": 53, "protocol": "udp"}},
    ),
    ("ports: [{containerPort: 80, hostPort: 8080}]", "ports", {"port-80": {"port": 80, "host": 8080}}),
    ("resources: {requests: {cpu: 0, memory: '0'}}", "resources", {"cpu": "0", "memory": "0"}),
    (
        "resources: {requests: {hugepages-2Mi: 5Mi}, limits: {hugepages-2Mi: 5Mi, hugepages-1Gi: 1Gi}}",
        "resources",
        {"devices": [{"kind": "hugepages-2mi", "count": 3}, {"kind": "hugepages-1gi", "count": 1}]},
    ),
    (
        "resources: {requests: {cpu: 100m, memory: 64Mi}, limits: {cpu: 1, nvidia.com/gpu: 2}}",
        "resources",
        {
            "cpu": "100m",
            "memory": "64Mi",
            "limits": {"cpu": "1"},
            "devices": [{"kind": "gpu", "vendor": "nvidia", "count": 2}],
        },
    ),
    (
        "ports: [{containerPort: 80, name: http}]\nlivenessProbe: {httpGet: {path: /ok, port: http}, periodSeconds: 5}",
        "health",
        {"http": "/ok", "port": "http", "interval": "5s", "timeout": "1s"},
    ),
    (
        "readinessProbe: {tcpSocket: {port: 80}, failureThreshold: 2}",
        "readiness",
        {"tcp": 80, "timeout": "1s", "failures": 2},
    ),
    ("livenessProbe: {exec: {command: [ok]}, timeoutSeconds: 3}", "health", {"command": ["ok"], "timeout": "3s"}),
    (
        "livenessProbe: {grpc: {port: 9}, initialDelaySeconds: 3}",
        "health",
        {"tcp": 9, "timeout": "1s", "start_period": "3s"},
    ),
    ("startupProbe: {tcpSocket: {port: 80}, failureThreshold: 30}", "startup", {"tcp": 80, "failures": 30} | SECOND),
    ("securityContext: {runAsUser: 1000, runAsGroup: 2000}", "security", {"user": "1000:2000"}),
    ("imagePullPolicy: Always", "options", each_engine(pull="always")),
    ("securityContext: {allowPrivilegeEscalation: false}", "security", {"no_new_privileges": True}),
    ("securityContext: {privileged: true}", "security", {"privileged": True}),
    (
        "securityContext: {readOnlyRootFilesystem: true, capabilities: {add: [CAP_NET_ADMIN], drop: [all]}}",
        "security",
        {"read_only_root": True, "cap_add": ["NET_ADMIN"], "cap_drop": ["ALL"]},
    ),
]


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(("text", "key", "wanted"), CONTAINERS, ids=lambda each: each if isinstance(each, str) else "")
def test_what_a_container_shows_is_in_the_manifest(text: str, key: str, wanted: Any) -> None:
    assert only(pod("", text))[key] == wanted


PODS: list[tuple[str, str, Any]] = [
    ("terminationGracePeriodSeconds: 5", "stop", {"grace": "5s"}),
    ("restartPolicy: Always", "stop", {"grace": "30s"}),
    ("priorityClassName: high", "priority", "high"),
    ("overhead: {cpu: 250m, memory: 120Mi}", "overhead", {"cpu": "250m", "memory": "120Mi"}),
    ("priorityClassName: system-node-critical", "priority", 2_000_001_000),
    ("schedulerName: packer", "profile", "packer"),
    ("schedulingGates: [{name: example.com/wait}]", "gates", ["example.com-wait"]),
    ("restartPolicy: Never", "batch", {"retries": 0}),
    ("restartPolicy: OnFailure\nactiveDeadlineSeconds: 60", "restart", {"policy": "on-failure"}),
    ("hostNetwork: true", "options", each_engine(network="host")),
]


@pytest.mark.parametrize(("text", "key", "wanted"), PODS, ids=lambda each: each if isinstance(each, str) else "")
def test_what_a_pod_shows_is_in_the_manifest(text: str, key: str, wanted: Any) -> None:
    assert only(pod(text))[key] == wanted


@pytest.mark.parametrize(
    ("volume", "wanted"),
    [
        ("emptyDir: {}", {"type": "scratch", "mode": "0777"}),
        ("emptyDir: {sizeLimit: 1Gi}", {"type": "scratch", "size": "1Gi", "mode": "0777"}),
        ("emptyDir: {medium: Memory, sizeLimit: 64Mi}", {"type": "tmpfs", "size": "64Mi"}),
        ("hostPath: {path: /data}", {"type": "host", "path": "/data"}),
        ("persistentVolumeClaim: {claimName: c}", {"volume": "c"}),
        (
            "ephemeral: {volumeClaimTemplate: {spec: {resources: {requests: {storage: 1G}}}}}",
            {"size": "1GB", "per_instance": True, "reclaim": "delete"},
        ),
    ],
)
def test_a_volume_is_one_of_the_group_and_the_task_mounts_it(volume: str, wanted: dict[str, Any]) -> None:
    made = only(pod(f"volumes: [{{name: data, {volume}}}]", "volumeMounts: [{name: data, mountPath: /data}]"))
    assert made["volumes"] == {"data": wanted}
    assert made["mounts"] == [{"volume": "data", "path": "/data"}]


@pytest.mark.parametrize(
    ("volume", "mount", "files"),
    [
        ("configMap: {name: conf, items: [{key: a.conf, path: b.conf}]}", "", [("/etc/x/b.conf", "x=1", None)]),
        ("configMap: {name: conf}", "subPath: a.conf", [("/etc/x", "x=1", None)]),
        (
            "configMap: {name: conf, defaultMode: 0400, items: [{key: LEVEL, path: l}]}",
            "",
            [("/etc/x/l", "debug", "0400")],
        ),
        ("projected: {sources: [{configMap: {name: conf}}]}", "subPath: LEVEL", [("/etc/x", "debug", None)]),
        (
            "downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}",
            "",
            [("/etc/x/labels", 'app="web"', None)],
        ),
    ],
)
def test_a_configmap_becomes_files(volume: str, mount: str, files: list[tuple[str, str, str | None]]) -> None:
    mounted = f"volumeMounts: [{{name: v, mountPath: /etc/x, {mount}}}]"
    made = only(CONFIG, pod(f"volumes: [{{name: v, {volume}}}]", mounted))
    assert [(each["path"], each["content"], each.get("mode")) for each in made["files"]] == files


def test_a_configmap_becomes_variables_and_what_the_container_shows_itself_counts_more() -> None:
    container = """\
envFrom: [{prefix: C_, configMapRef: {name: conf}}]
env: [{name: C_LEVEL, value: info}, {name: L, valueFrom: {configMapKeyRef: {name: conf, key: LEVEL}}}]"""
    made = only(CONFIG, pod("", container))
    assert made["env"] == {"C_a.conf": "x=1", "C_LEVEL": "info", "L": "debug"}


def test_init_containers_and_sidecars_have_their_roles() -> None:
    spec = """\
initContainers:
- {name: first, image: a}
- {name: beside, image: b, restartPolicy: Always, readinessProbe: {tcpSocket: {port: 1}}}"""
    tasks = only(pod(spec))["groups"]["main"]["tasks"]
    assert {name: task.get("role", "main") for name, task in tasks.items()} == {
        "first": "init",
        "beside": "sidecar",
        "main": "main",
    }


def test_two_containers_may_call_different_ports_the_same() -> None:
    spec = "initContainers: [{name: a, image: a, restartPolicy: Always, ports: [{name: http, containerPort: 1}]}]"
    probe = "readinessProbe: {httpGet: {port: http}}"
    group = only(pod(spec, f"ports: [{{name: http, containerPort: 2}}]\n{probe}"))["groups"]["main"]
    assert group["ports"] == {"http": 1, "http-2": 2}
    assert group["tasks"]["main"]["readiness"]["port"] == "http-2"


DROPPED = [
    ("", "lifecycle: {preStop: {exec: {command: [x]}}}", "spec.containers[0].lifecycle.preStop"),
    (
        "",
        "env: [{name: S, valueFrom: {secretKeyRef: {name: s, key: k, optional: true}}}]",
        "spec.containers[0].env[0].valueFrom.secretKeyRef.name",
    ),
    ("", "envFrom: [{secretRef: {name: gone}}]", "spec.containers[0].envFrom[0].secretRef.name"),
    (
        "",
        "env: [{name: S, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]",
        "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath",
    ),
    ("", "envFrom: [{configMapRef: {name: gone}}]", "spec.containers[0].envFrom[0].configMapRef.name"),
    ("", "securityContext: {procMount: Default}", "spec.containers[0].securityContext.procMount"),
    ("", "colour: red", "spec.containers[0].colour"),
    ("serviceAccountName: me", "", "spec.serviceAccountName"),
    (
        "volumes: [{name: v, gitRepo: {repository: a}}]",
        "volumeMounts: [{name: v, mountPath: /c}]",
        "spec.volumes[0].gitRepo",
    ),
    ("shareProcessNamespace: true", "", "spec.shareProcessNamespace"),
]


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(("spec", "container", "path"), DROPPED, ids=lambda each: str(each)[:40])
def test_what_has_no_place_is_in_the_report_with_its_line(spec: str, container: str, path: str) -> None:
    text = pod(spec, container)
    found = imported(text)
    note = next(each for each in found.report.notes if each.path == path)
    assert note.fate in {"dropped", "unknown"}
    assert path.rpartition(".")[2].partition("[")[0] in text.splitlines()[note.line - 1]
    assert found.report.dropped


def test_what_shows_what_is_so_anyway_is_no_loss() -> None:
    spec = "dnsPolicy: ClusterFirst\nhostPID: false\nserviceAccountName: default\nautomountServiceAccountToken: false"
    container = "securityContext: {allowPrivilegeEscalation: true}\nstdin: false\nterminationMessagePolicy: File"
    found = imported(pod(spec, container))
    assert (found.report.dropped, found.report.notes) == (0, ())


@pytest.mark.parametrize(
    ("text", "cores", "amount_text"),
    [
        ("100m", "100m", "1"),
        ("1.5", "1500m", "2"),
        ("1Gi", None, "1Gi"),
        ("129e6", None, "129MB"),
        ("0.0001", "1m", "1"),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(text: str, cores: str | None, amount_text: str) -> None:
    assert cores is None or cpu(text) == cores
    assert size(text) == amount_text


@given(st.text(max_size=12))
def test_a_quantity_is_a_number_or_no_quantity(text: str) -> None:
    with suppress(ValueError):
        assert amount(text) >= 0


@given(st.text("$()AB", max_size=20))
def test_references_are_replaced_and_nothing_else(text: str) -> None:
    assert Environment().expanded(text).replace("$", "") == text.replace("$", "")


@pytest.mark.parametrize(
    ("container", "words"),
    [
        ("resources: {limits: {cpu: lots}}", "'lots' is not a quantity"),
        ("imagePullPolicy: Sometimes", "there is no policy"),
        ("livenessProbe: {httpGet: {port: 80}, periodSeconds: soon}", "expected a number"),
        ("env: {A: b}", "expected a list of mappings"),
    ],
)
def test_nonsense_is_refused_with_its_line(container: str, words: str) -> None:
    with pytest.raises(Invalid) as error:
        imported(pod("", container))
    assert words in str(error.value)
    assert error.value.facts["line"] == 8


def test_names_that_are_known_only_when_it_starts_are_reported_by_the_agent() -> None:
    found = imported(pod("", "env: [{name: H, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]"))
    assert found.made[0].manifest["env"] == {"H": "${MANDOR_NODE}"}
    assert told(found) == {}


SHARED = [
    ("hostPID: true", "", {"pid": "host"}),
    ("hostIPC: true", "", {"ipc": "host"}),
    ("hostAliases: [{ip: 10.0.0.1, hostnames: [a, b]}]", "", {"extra_hosts": ["a:10.0.0.1", "b:10.0.0.1"]}),
    ("hostname: h", "", {"hostname": "h"}),
    ("dnsConfig: {nameservers: [1.1.1.1], searches: [x], options: [{name: ndots, value: '2'}, {name: rotate}]}", "",
     {"dns": ["1.1.1.1"], "dns_search": ["x"], "dns_options": ["ndots:2", "rotate"]}),
    ("securityContext: {supplementalGroups: [5], sysctls: [{name: net.core.somaxconn, value: '9'}]}", "",
     {"groups": ["5"], "sysctls": {"net.core.somaxconn": "9"}}),
    ("securityContext: {seccompProfile: {type: Unconfined}}", "", {"security_opt": ["seccomp=unconfined"]}),
    ("", "stdin: true", {"stdin": True}),
    ("", "tty: true", {"stdin": True}),
]  # fmt: skip


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(("spec", "container", "options"), SHARED)
def test_what_only_docker_and_podman_can_do_is_asked_of_them(
    spec: str, container: str, options: dict[str, Any]
) -> None:
    found = imported(pod(spec, container))
    made = found.made[0].manifest
    assert made["engine"] == ["docker", "podman"]
    assert made["options"] == {"docker": options, "podman": options}
    assert found.report.dropped == 0


def test_a_pod_in_the_network_of_its_node_has_its_address() -> None:
    env = "env: [{name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}]"
    assert only(pod("hostNetwork: true", env))["env"] == {"IP": "${MANDOR_NODE_ADDRESS}"}


SUBPATHS = [
    ("persistentVolumeClaim: {claimName: c}", {"volume": "c"}),
    ("emptyDir: {}", {"type": "scratch", "mode": "0777"}),
    ("nfs: {server: a, path: /b}", {}),
]


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(("source", "volume"), SUBPATHS)
def test_each_subpath_of_a_volume_is_mounted(source: str, volume: dict[str, Any]) -> None:
    mounts = "[{name: v, mountPath: /var/lib/mysql, subPath: mysql}, {name: v, mountPath: /web, subPath: a/./b/}]"
    made = only(pod(f"volumes: [{{name: v, {source}}}]", f"volumeMounts: {mounts}"))
    assert made["volumes"] == {"v": volume}
    assert made["mounts"] == [
        {"volume": "v", "path": "/var/lib/mysql", "subpath": "mysql"},
        {"volume": "v", "path": "/web", "subpath": "a/b"},
    ]


def test_a_subpath_of_a_folder_of_the_node_is_a_folder_of_the_node() -> None:
    made = only(
        pod("volumes: [{name: v, hostPath: {path: /srv}}]", "volumeMounts: [{name: v, mountPath: /a, subPath: b/c}]")
    )
    assert made["volumes"] == {"v-b-c": {"type": "host", "path": "/srv/b/c"}}
    assert made["mounts"] == [{"volume": "v-b-c", "path": "/a"}]


def test_a_subpath_may_name_variables_of_the_container() -> None:
    env = "env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}, {name: A, value: b}]"
    mount = "volumeMounts: [{name: v, mountPath: /a, subPathExpr: $(A)/$(POD)}]"
    made = only(pod("volumes: [{name: v, emptyDir: {}}]", f"{env}\n{mount}"))
    assert made["mounts"] == [{"volume": "v", "path": "/a", "subpath": "b/${MANDOR_INSTANCE}"}]
    with pytest.raises(Invalid, match="has no value here"):
        only(pod("volumes: [{name: v, emptyDir: {}}]", mount))
    with pytest.raises(Invalid, match="not a path below the volume"):
        only(pod("volumes: [{name: v, emptyDir: {}}]", mount.replace("subPathExpr: $(A)/$(POD)", "subPath: ../a")))
