"""An attacker in one restricted namespace, against another tenant of the same node, the node and the control plane."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.components.containerd import Containerd
from tests.components.docker import RunningDocker
from tests.components.image import NAME
from tests.components.incus import IMAGE, Incus
from tests.components.podman import Podman
from tests.e2e.cluster import eventually
from tests.security.tenants import ATTACKER, ENGINES, VICTIM, Tenants

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.real("docker", "podman", "containerd", "incus"),
    pytest.mark.skipif(os.geteuid() != 0, reason="five engines on one node need root: run the tests as root"),
]

PWNED = "PWNED"
CHANGED = "/usr/bin/changed-by-an-attacker"


@pytest.fixture(scope="module")
def tenants(docker: RunningDocker, podman: Podman, containerd: Containerd, incus: Incus) -> Iterator[Tenants]:
    options = {
        "docker.socket": docker.socket,
        "podman.socket": podman.socket,
        "cri.socket": containerd.socket,
        "incus.url": incus.url,
    }
    words = tuple(word for key, value in options.items() for word in ("--engine-option", f"{key}={value}"))
    images = {"docker": NAME, "podman": NAME, "cri": NAME, "incus": IMAGE}
    # A folder that every user may pass through, as /var/lib is.
    with tempfile.TemporaryDirectory(prefix="mandor-tenants-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        running = Tenants(Path(folder, "cluster"), words, images)
        try:
            running.start()
            running.start_victims()
            yield running
        except BaseException:
            running.print_logs()
            raise
        finally:
            running.stop()


# Inside a task. Each command prints PWNED, or the marker, if the attack succeeds.


def attacks_inside(tenants: Tenants) -> dict[str, str]:
    # As a regular expression that does not match its own text.
    marker = tenants.marker.replace("3", "[3]", 1)
    agent, server = tenants.agent_home, tenants.server_home
    volumes = " ".join(str(path) for path in agent.rglob("note"))
    sockets = " ".join(
        ["/var/run/docker.sock", "/run/containerd/containerd.sock", "/var/lib/incus/unix.socket"]
        + [word.partition("=")[2].removeprefix("unix://") for word in tenants.options if "=" in word]
    )
    search = "/tmp /var /run /home /root /etc /srv /opt /mnt /media /dev/shm /data"
    return {
        "search-files": f"grep -rsl '{marker}' {search}",
        "read-environments": f"cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep '{marker}'",
        "read-command-lines": f"cat /proc/[0-9]*/cmdline | tr '\\0' '\\n' | grep '{marker}'",
        "enter-other-roots": "for p in /proc/[0-9]*; do cat $p/root/data/note $p/root/tmp/pin $p/cwd/pin; done",
        "read-other-memory": "for p in /proc/[0-9]*; do head -c 1 $p/mem && echo PWNED; done; true",
        "see-the-agent": "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -q 'mandor[.]roots' && echo PWNED",
        "read-victims-volume": f"cat {volumes}",
        "write-victims-volume": f"for f in {volumes}; do echo x >> $f && echo PWNED; done",
        "read-agents-credential": f"find {agent} -maxdepth 1 -type f -exec cat {{}} + | grep -a 'mdr_' && echo PWNED",
        "read-agents-journal": f"cat {agent}/orders/* && echo PWNED",
        "read-other-launches": f"find {agent}/engines -type f -exec cat {{}} + | grep -a '{marker}'",
        "read-admin-token": f"cat {server}/admin.token && echo PWNED",
        "read-secrets-key": f"cat {server}/secrets.key && echo PWNED",
        "read-database": f"head -c 100 {server}/state.db && echo PWNED",
        "read-shadow": "grep -q '^root:' /etc/shadow && echo PWNED",
        "write-passwd": "echo 'evil::0:0::/:/bin/sh' >> /etc/passwd && echo PWNED",
        "write-programs": f"touch {CHANGED} && echo PWNED",
        "engine-sockets": f"for s in {sockets}; do [ -S $s ] && echo PWNED $s; done; true",
        "be-root": "awk '$1 == 0 && $2 == 0' /proc/self/uid_map | grep -q . && [ $(id -u) = 0 ] && echo PWNED",
        "hold-root-group-of-host": "awk '$1 == 0 && $2 == 0' /proc/self/gid_map | grep -q . && "
        "id -G | tr ' ' '\\n' | grep -qx 0 && [ -w /etc ] && echo PWNED",
        "have-capabilities": "awk '$1 == 0 && $2 == 0' /proc/self/uid_map | grep -q . && "
        "grep -q '^CapEff:.*[1-9a-f]' /proc/self/status && echo PWNED",
        "gain-privileges": "awk '$1 == 0 && $2 == 0' /proc/self/uid_map | grep -q . && "
        "grep -q '^NoNewPrivs:.*0' /proc/self/status && echo PWNED",
        "without-seccomp": "grep -q '^Seccomp:.*0' /proc/self/status && echo PWNED",
        "setuid-shell": "cp $(command -v busybox || command -v dash) /tmp/sh && chmod 6755 /tmp/sh && "
        "/tmp/sh sh -c 'id -u' | grep -qx 0 && [ $(id -u) != 0 ] && echo PWNED",
        "substitute-user": "echo | su root -c id | grep -q 'uid=0' && [ $(id -u) != 0 ] && echo PWNED",
        "mount-cgroup": "mkdir -p /tmp/cg && mount -t cgroup -o memory none /tmp/cg && "
        "[ -w /tmp/cg/release_agent ] && echo PWNED",
        "bind-host-root": "mkdir -p /tmp/r && mount -t ext4 /dev/vda /tmp/r && echo PWNED",
        "make-device": "mknod /tmp/disk b 254 0 && head -c 16 /tmp/disk && echo PWNED",
        "raw-disks": "for d in /dev/vda /dev/sda /dev/nvme0n1 /dev/mem /dev/port; do "
        "[ $(head -c 16 $d 2>/dev/null | wc -c) -gt 0 ] && echo PWNED $d; done; true",
        "kernel-memory": "[ $(head -c 16 /proc/kcore 2>/dev/null | wc -c) -gt 0 ] && echo PWNED",
        "kernel-module": "echo > /tmp/evil.ko; insmod /tmp/evil.ko && echo PWNED",
        "kernel-setting": "echo 1 > /proc/sys/kernel/sysrq && echo PWNED",
        "core-pattern": "echo '|/tmp/evil' > /proc/sys/kernel/core_pattern && echo PWNED",
        "sysrq": "echo h > /proc/sysrq-trigger && echo PWNED",
        "set-clock": "date -s '2001-01-01 00:00:00'; [ $(date +%Y) = 2001 ] && echo PWNED",
        "enter-init": "nsenter -t 1 -m -p -- true && [ $(id -u) != 0 ] && echo PWNED",
        "api-without-token": f"wget -q -T 5 -O - {tenants.url}/v1/instances | grep -q items && echo PWNED",
        "agent-metadata": "find / -maxdepth 4 -name 'join.token' -o -maxdepth 4 -name 'secrets.key' | grep -q . "
        "&& echo PWNED",
    }


def test_there_are_forty_attacks_or_more(tenants: Tenants) -> None:
    assert len(attacks_inside(tenants)) + len(FOREIGN_READS) + len(FOREIGN_WRITES) + len(FORBIDDEN_WORK) >= 40


@pytest.mark.parametrize("engine", ENGINES)
def test_a_task_reaches_neither_the_other_tenant_nor_the_node(tenants: Tenants, engine: str) -> None:
    name = socket.gethostname()
    output = tenants.run_attacks(engine, attacks_inside(tenants))
    found = {
        attack: text
        for attack, text in output.items()
        if PWNED in text or tenants.marker in text or (attack == "search-files" and text.strip())
    }
    assert not found, f"attacks that succeeded on {engine}: {json.dumps(found, indent=1)}"
    assert not Path(CHANGED).exists()
    assert socket.gethostname() == name
    assert_victims_run(tenants)


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "incus"])
def test_a_task_that_kills_all_it_can_kills_nothing_of_others(tenants: Tenants, engine: str) -> None:
    """Not on Incus, where the attacker would kill the script that reports its own end."""
    script = "[ $(id -u) = 0 ] || kill -9 -1; exit 7"
    more = "type: batch\nbatch: {retries: 0}\n"
    tenants.apply(tenants.manifest(ATTACKER, f"killer-{engine}", engine, script, more), token=tenants.tokens[ATTACKER])
    eventually("it ended", lambda: tenants.phases(ATTACKER).get(f"killer-{engine}-0") == "Failed", patience=120)
    assert_victims_run(tenants)


def assert_victims_run(tenants: Tenants) -> None:
    found = tenants.items("instances", query=f"?namespace={VICTIM}")
    assert {each["status"]["phase"] for each in found} == {"Running"}
    assert not any(each["status"].get("restarts") for each in found)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_container_of_a_restricted_namespace_still_does_its_work(tenants: Tenants, engine: str) -> None:
    """The counterpart: confinement that stops all work would pass every attack."""
    folder = "data" if engine == "process" else "/data"
    output = tenants.run_attacks_as(
        engine,
        "work",
        {"write": f"echo saved > {folder}/own && cat {folder}/own", "temporary": "echo x > /tmp/own && cat /tmp/own"},
        f"volumes: {{data: {{type: local, size: 1Mi}}}}\nmounts: [{{volume: data, path: {folder}}}]\n",
    )
    assert output["write"].strip() == "saved"
    assert output["temporary"].strip() == "x"


# Through the API, with the token of an operator of the attacker's namespace.

FOREIGN_READS = [
    f"/v1/secrets?namespace={VICTIM}",
    f"/v1/secrets/pin?namespace={VICTIM}",
    f"/v1/instances?namespace={VICTIM}",
    f"/v1/instances/vault-docker-0?namespace={VICTIM}",
    f"/v1/workloads?namespace={VICTIM}",
    f"/v1/workloads/vault-docker?namespace={VICTIM}",
    f"/v1/releases?namespace={VICTIM}",
    f"/v1/volumes?namespace={VICTIM}",
    f"/v1/events?namespace={VICTIM}",
    f"/v1/instances/vault-docker-0/logs?namespace={VICTIM}",
    f"/v1/explain/instances/vault-docker-0?namespace={VICTIM}",
    f"/v1/namespaces/{VICTIM}",
    "/v1/instances",
    "/v1/workloads",
    "/v1/events",
    "/v1/volumes",
    "/v1/secrets",
    "/v1/namespaces",
    "/v1/usage",
    "/v1/audits",
    "/v1/tokens",
    "/v1/sessions",
    "/v1/backup",
    "/v1/debug/table",
    "/metrics",
]


@pytest.mark.parametrize("path", FOREIGN_READS)
def test_an_operator_reads_nothing_of_another_namespace(tenants: Tenants, path: str) -> None:
    status, text = tenants.call("GET", path, token=tenants.tokens[ATTACKER])
    assert status < 500, text
    assert tenants.marker not in text
    items = json.loads(text).get("items", []) if status == 200 and path.startswith("/v1") else []
    assert not [each for each in items if VICTIM in {each.get("namespace"), *_names(each.get("meta", {}))}]


def _names(meta: Mapping[str, str]) -> tuple[str | None, str | None]:
    return meta.get("namespace"), meta.get("name")


FOREIGN_WRITES: list[tuple[str, str, object]] = [
    ("DELETE", f"/v1/workloads/vault-docker?namespace={VICTIM}", None),
    ("DELETE", f"/v1/instances/vault-docker-0?namespace={VICTIM}", None),
    ("DELETE", f"/v1/secrets/pin?namespace={VICTIM}", None),
    ("DELETE", f"/v1/namespaces/{VICTIM}", None),
    ("DELETE", "/v1/nodes/n1", None),
    ("POST", "/v1/tokens", {"role": "admin", "identity": "user:evil"}),
    ("POST", "/v1/tokens", {"role": "operator", "identity": "user:evil", "namespaces": [VICTIM]}),
    ("POST", "/v1/tokens", {"role": "join", "identity": "join:evil"}),
    ("POST", "/v1/tokens", {"role": "node", "identity": "node:n1"}),
    ("POST", "/v1/nodes/n1/heartbeat", {}),
    ("POST", "/v1/nodes/n1/drain", {}),
]


@pytest.mark.parametrize(("method", "path", "body"), FOREIGN_WRITES)
def test_an_operator_changes_nothing_beyond_the_own_namespace(
    tenants: Tenants, method: str, path: str, body: object
) -> None:
    status, text = tenants.call(method, path, body, token=tenants.tokens[ATTACKER])
    assert 400 <= status < 500, text
    assert "token" not in json.loads(text)


CONTAINER = f"namespace: {ATTACKER}\nengine: docker\nimage: {NAME}\ncommand: [sleep, '1']\n"
FORBIDDEN_WORK: Mapping[str, str] = {
    "another namespace": CONTAINER.replace(ATTACKER, VICTIM),
    "a wider level": f"kind: namespace\nname: {ATTACKER}\nlevel: privileged\n",
    "a node pool": "kind: node-pool\nname: mine\n",
    "root": CONTAINER + "security: {user: 0}\n",
    "root by name": CONTAINER + "security: {user: root}\n",
    "a privileged container": CONTAINER + "security: {privileged: true}\n",
    "an added capability": CONTAINER + "security: {cap_add: [SYS_ADMIN]}\n",
    "a host path": CONTAINER + "volumes: {h: {type: host, path: /}}\nmounts: [{volume: h, path: /host}]\n",
    "the engine's socket": CONTAINER
    + "volumes: {h: {type: host, path: /var/run/docker.sock}}\nmounts: [{volume: h, path: /s}]\n",
    "a low port of the node": CONTAINER + "ports: {http: {port: 80, host: 80}}\n",
    "the node's network": CONTAINER + "options: {docker: {network_mode: host}}\n",
    "another registry": CONTAINER.replace(NAME, "registry.example/evil:1"),
    "an engine that is not allowed": CONTAINER.replace("docker", "fake"),
    "a node of the control plane": CONTAINER
    + "placement: {tolerate: [{key: node-role.kubernetes.io/control-plane, operator: Exists}]}\n",
    "a setuid user of the node": CONTAINER.replace("docker", "process").replace(f"image: {NAME}\n", "")
    + "security: {user: root}\n",
}


@pytest.mark.parametrize("what", FORBIDDEN_WORK)
def test_a_restricted_namespace_admits_no_work_with(tenants: Tenants, what: str) -> None:
    manifest = FORBIDDEN_WORK[what]
    named = manifest if manifest.startswith("kind") else f"name: evil\n{manifest}"
    status, text = tenants.call("POST", "/v1/apply", named, token=tenants.tokens[ATTACKER], content="application/yaml")
    assert 400 <= status < 500, text
    assert json.loads(text)["code"] in {"forbidden", "invalid"}, text


def test_the_secret_of_another_namespace_cannot_be_named(tenants: Tenants) -> None:
    """A reference is looked up in the namespace of the workload alone."""
    manifest = tenants.manifest(ATTACKER, "borrow", "docker", "echo $PIN; sleep 1000", "secrets: {PIN: pin/env}\n")
    tenants.call("POST", "/v1/apply", manifest, token=tenants.tokens[ATTACKER], content="application/yaml")
    told = tenants.items("events", query=f"?namespace={ATTACKER}", token=tenants.tokens[ATTACKER])
    assert tenants.marker not in json.dumps(told)
    assert tenants.phases(ATTACKER).get("borrow-0") != "Running"


def test_a_volume_of_the_same_name_is_another_volume(tenants: Tenants) -> None:
    volume = "volumes: {data: {type: local, size: 1Mi}}\nmounts: [{volume: data, path: /data}]\n"
    output = tenants.run_attacks_as("docker", "vault-docker", {"read": "cat /data/note"}, volume)
    assert tenants.marker not in output["read"]
