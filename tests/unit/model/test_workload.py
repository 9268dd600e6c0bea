"""Workloads: what they refuse, what they ask for, and the hash of their template."""

from typing import Any

import msgspec
import pytest

from mandor.lib.quantity import NEVER, Cpu, Seconds, Size
from mandor.model.codec import decode, encode, from_plain
from mandor.model.group import Group, GroupTemplate, Port
from mandor.model.manifest import load_manifests
from mandor.model.meta import Meta
from mandor.model.resources import Resources, TaskResources
from mandor.model.task import Probe, Task
from mandor.model.workload import Workload, WorkloadSpec, make_release, template_hash

FULL = """
name: shop
namespace: team-a
labels: {app: shop}
priority: 7
groups:
  web:
    replicas: 3
    engine: [docker, process]
    ports: {http: {port: 80, host: 8080}}
    placement:
      pool: web
      where: ["zone in [a, b]", {any: [disk == ssd, arch != arm64], strength: prefer, weight: 50}]
      tolerate: [{key: dedicated, effect: NoSchedule}]
    restart: {policy: on-failure, attempts: 4}
    reschedule: {delay: 1m}
    disconnect: {lost_after: 2m, stop_after: 30s}
    tasks:
      app:
        image: acme/shop:1.4
        command: [/app/run]
        args: [--port, 80]
        env: {DB: postgres://db, MODE: "1"}
        files: [{path: /etc/shop.conf, content: "a = 1", mode: "0600"}]
        working_dir: /app
        resources: {cpu: 500m, memory: 256Mi, limits: {memory: 512Mi, processes: 10}}
        health: {http: /healthz, port: http, interval: 5s, failures: 5}
        readiness: {tcp: http}
        stop: {signal: SIGINT, grace: 30s}
        security: {user: 1000}
        options: {docker: {shm_size: 256m}}
      init: {role: init, image: migrate, resources: {cpu: 2, memory: 64Mi}}
      log: {role: sidecar, image: vector, resources: {cpu: 100m, memory: 64Mi}}
"""


def load(text: str) -> Workload:
    (document,) = load_manifests(text)
    assert isinstance(document.object, Workload)
    return document.object


def hashed(text: str) -> str:
    return template_hash(load(text).spec.template)


def test_the_hash_of_a_template_never_changes_between_versions() -> None:
    # If this fails, every workload of every cluster would be rolled out anew by an upgrade.
    assert hashed("name: web\nimage: nginx:1.27\nreplicas: 3\nports: {http: 80}") == "65f93c460ef786c5"
    assert hashed(FULL) == "bb7c4d4a981da4c8"
    assert template_hash(load(FULL).spec.template, restarted=1) == "fb8d4a0bcf08560c"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("replicas: 3", "replicas: 5"),
        ("priority: 7", "priority: 8"),
        ("app: shop}", "app: shop, more: words}"),
        ("attempts: 4", "attempts: 5"),
        ("delay: 1m", "delay: 2m"),
        ("lost_after: 2m", "lost_after: 3m"),
        ("name: shop", "name: other"),
        ("[docker, process]", "[docker,   process]"),
        ("cpu: 500m", "cpu: 0.5"),
        ("grace: 30s", "grace: 0.5m"),
    ],
)
def test_what_is_not_part_of_the_template_does_not_change_the_hash(before: str, after: str) -> None:
    assert before in FULL
    assert hashed(FULL.replace(before, after, 1)) == hashed(FULL)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("acme/shop:1.4", "acme/shop:1.5"),
        ("[docker, process]", "[process, docker]"),
        ("host: 8080", "host: 8081"),
        ("pool: web", "pool: other"),
        ("weight: 50", "weight: 51"),
        ("cpu: 500m", "cpu: 501m"),
        ('MODE: "1"', 'MODE: "2"'),
        ("grace: 30s", "grace: 31s"),
        ("failures: 5", "failures: 6"),
        ("  web:\n", "  www:\n"),
    ],
)
def test_every_part_of_the_template_changes_the_hash(before: str, after: str) -> None:
    assert before in FULL
    assert hashed(FULL.replace(before, after, 1)) != hashed(FULL)


def test_the_order_of_keys_does_not_change_the_hash() -> None:
    assert hashed("name: a\nimage: x\nenv: {A: 1, B: 2}") == hashed("env: {B: 2, A: 1}\nimage: x\nname: a")


def test_the_hash_survives_the_store() -> None:
    stored = decode(encode(load(FULL)))
    assert isinstance(stored, Workload)
    assert template_hash(stored.spec.template) == hashed(FULL)


def test_a_restart_makes_another_release_of_the_same_template() -> None:
    before = load(FULL)
    after = before.changed(spec=msgspec.structs.replace(before.spec, restarted=1))
    one, two = make_release(before, 1), make_release(after, 2)
    assert (one.meta.name, two.meta.name) == ("shop.1", "shop.2")
    assert one.meta.namespace == "team-a"
    assert one.spec.hash != two.spec.hash
    assert one.spec.groups == two.spec.groups


def test_init_tasks_are_counted_one_at_a_time() -> None:
    assert load(FULL).spec.groups["web"].request == Resources(2000, (256 + 64) << 20, 0)


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ({"tasks": {}}, "at least one task"),
        ({"tasks": {f"t{n}": {"image": "x"} for n in range(33)}}, "33 tasks; at most 32"),
        ({"tasks": {"a": {"image": "x", "role": "init"}}}, "role `main`"),
        ({"tasks": {"A": {"image": "x"}}}, "not a task name"),
        ({"tasks": {"a": {"image": "x"}}, "ports": {"A": {"port": 1}}}, "not a port name"),
        ({"tasks": {"a": {"image": "x"}}, "engine": ["D ocker"]}, "not a engine name"),
        ({"tasks": {"a": {"image": "x", "health": {"tcp": "web"}}}}, "uses the port 'web'"),
        ({"tasks": {"a": {"image": "x", "role": "init", "health": {"tcp": 80}}, "b": {"image": "x"}}}, "init task"),
        ({"tasks": {"a": {"image": "x"}}, "restart": {"delay": "10s", "max_delay": "5s"}}, "shorter than delay"),
        ({"tasks": {"a": {"image": "x"}}, "disconnect": {"lost_after": "45s", "stop_after": "30s"}}, "too short"),
    ],
)
def test_a_group_that_cannot_work_is_refused(plain: dict[str, Any], says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        from_plain(plain, Group)


def test_a_singleton_never_runs_twice_because_of_its_times() -> None:
    plain = {"tasks": {"a": {"image": "x"}}, "disconnect": {"lost_after": "50s", "stop_after": "30s"}}
    assert from_plain(plain, Group).disconnect.stop_after == Seconds(30)


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ({"groups": {}}, "at least one group"),
        ({"groups": {"a": {"tasks": {"a": {"image": "x"}}}}, "batch": {}}, "requires `type: batch`"),
        (
            {"type": "batch", "groups": {"a": {"tasks": {"a": {"image": "x"}}, "restart": {"policy": "always"}}}},
            "a batch runs to its end",
        ),
    ],
)
def test_a_workload_that_cannot_work_is_refused(plain: dict[str, Any], says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        from_plain(plain, WorkloadSpec)


def test_the_restart_policy_follows_the_type() -> None:
    assert load("name: a\nimage: x").spec.restart_policy("main") == "always"
    assert load("name: a\nimage: x\ntype: batch").spec.restart_policy("main") == "on-failure"
    assert load("name: a\nimage: x\nrestart: {policy: never}").spec.restart_policy("main") == "never"


def test_a_count_left_out_is_one() -> None:
    group = load("name: a\nimage: x").spec.groups["main"]
    assert group.replicas is None
    assert group.count == 1
    assert load("name: a\nimage: x\nreplicas: 0").spec.groups["main"].count == 0


@pytest.mark.req("S2-44")
@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ({}, "exactly one of"),
        ({"http": "/", "tcp": 80}, "exactly one of"),
        ({"http": "x", "port": 80}, "starts with `/`"),
        ({"http": "/"}, "requires `port`"),
        ({"tcp": 80, "port": 80}, "is only for `http` probes"),
        ({"command": []}, "must not be empty"),
        ({"tcp": 80, "interval": "1ms"}, "at least 100ms"),
        ({"tcp": 80, "timeout": 0}, "at least 100ms"),
        ({"tcp": 0}, ">= 1"),
        ({"tcp": 80, "failures": 0}, ">= 1"),
    ],
)
def test_a_probe_that_asks_nothing_or_too_much_is_refused(plain: dict[str, Any], says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        from_plain(plain, Probe)


@pytest.mark.parametrize(
    ("plain", "says"),
    [
        ({}, "`image` or a `command`"),
        ({"image": "x", "stop": {"signal": "SIGNOPE"}}, "is not a signal"),
        ({"image": "x", "stop": {"signal": "SIG_DFL"}}, "is not a signal"),
        ({"image": "x", "stop": {"grace": "2d"}}, "at most 1d"),
        ({"image": "x", "files": [{"path": "../x", "content": ""}]}, "must not contain"),
        ({"image": "x", "files": [{"path": "x", "content": "", "mode": "999"}]}, "file mode"),
        ({"image": "x", "resources": {"cpu": 2, "limits": {"cpu": 1}}}, "below the request"),
        ({"image": "x", "resources": {"memory": "2Gi", "limits": {"memory": "1Gi"}}}, "below the request"),
        ({"image": "x", "resources": {"limits": {"processes": 0}}}, "at least 1"),
        ({"image": "x", "options": {"Docker!": {}}}, "engine"),
    ],
)
def test_a_task_that_cannot_work_is_refused(plain: dict[str, Any], says: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=says):
        from_plain(plain, Task)


def test_a_template_leaves_out_what_a_release_does_not_fix() -> None:
    group = Group(tasks={"a": Task(image="x")}, replicas=3, ports={"http": Port(80)})
    assert group.template == GroupTemplate(tasks={"a": Task(image="x")}, ports={"http": Port(80)})
    assert not hasattr(group.template, "replicas")


def test_a_request_is_plain_numbers() -> None:
    assert TaskResources(cpu=Cpu(500), memory=Size(7)).request == Resources(500, 7, 0)


def test_never_survives_the_codec() -> None:
    workload = load("name: a\nimage: x\ndisconnect: {stop_after: never, lost_after: 5s}")
    again = decode(encode(workload))
    assert isinstance(again, Workload)
    assert again.spec.groups["main"].disconnect.stop_after == NEVER
    assert again == workload
    assert again.meta == Meta(name="a", namespace="default")


def test_the_template_of_a_group_has_all_its_fields() -> None:
    task = {"image": "a", "mounts": [{"volume": "v", "path": "/v"}]}
    given = {
        "engine": ["docker"],
        "ports": {"http": {"port": 80}},
        "network": "backend",
        "aliases": ["database"],
        "volumes": {"v": {}},
        "placement": {"pool": "ssd"},
        "tasks": {"main": task},
        "overhead": {"cpu": "1"},
        "alternatives": [{"engine": ["podman"]}],
    }
    group = from_plain(given, Group)
    fields = GroupTemplate.__struct_fields__
    assert {name: getattr(group.template, name) for name in fields} == {name: getattr(group, name) for name in fields}
    assert set(given) == set(fields), "a new field is given here, too"


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "x" * 300])
def test_an_alias_is_a_host_name(name: str) -> None:
    with pytest.raises(ValueError, match="is not a host name"):
        from_plain({"aliases": [name], "tasks": {"main": {"image": "a"}}}, GroupTemplate)


def _request(tasks: dict[str, Any], **fields: Any) -> tuple[int, int]:
    made = from_plain({"tasks": tasks, **fields}, GroupTemplate).request
    return made.cpu_milli, made.memory_bytes


def _task(cpu: str, role: str = "main", **more: Any) -> dict[str, Any]:
    return {"command": ["run"], "role": role, "resources": {"cpu": cpu, "memory": "0", **more}}


@pytest.mark.req("S0-10")
def test_the_request_is_the_largest_sum_at_any_time_as_in_kubernetes() -> None:
    """The formula of Kubernetes for sidecars: an init task runs beside the sidecars that started before it."""
    early = {"init-1": _task("5", "init"), "mesh": _task("2", "sidecar"), "init-2": _task("4", "init")}
    assert _request({**early, "app": _task("1")})[0] == 6000, "init-2 beside mesh"
    assert _request({**early, "app": _task("5")})[0] == 7000, "app beside mesh"
    late = {"app": _task("1"), "mesh": _task("2", "sidecar"), "init": _task("4", "init")}
    assert _request(late)[0] == 4000, "a sidecar after a main task starts with it"
    assert _request({"app": _task("1"), "init": _task("4", "init")})[0] == 4000


@pytest.mark.req("S0-10")
def test_the_overhead_of_a_group_is_added_to_its_request() -> None:
    tasks = {"init": _task("4", "init"), "app": _task("1")}
    assert _request(tasks, overhead={"cpu": "250m", "memory": "1Gi"}) == (4250, 1024**3)
