"""Manifests: the forms people write, and what they get for a mistake."""

from pathlib import Path
from typing import Any

import pytest

from mandor.errors import Invalid, TooLarge
from mandor.lib.quantity import Cpu, Seconds, Size
from mandor.lib.yaml12 import dump
from mandor.model.codec import decode, encode, to_plain
from mandor.model.group import Group, Port
from mandor.model.manifest import load_files, load_manifests
from mandor.model.record import Namespace
from mandor.model.workload import Workload

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*.yaml"))


def workload(text: str) -> Workload:
    (document,) = load_manifests(text)
    assert isinstance(document.object, Workload)
    return document.object


def group(text: str) -> Group:
    (found,) = workload(text).spec.groups.values()
    return found


def mistakes(text: str | bytes, **options: Any) -> list[dict[str, Any]]:
    with pytest.raises(Invalid) as caught:
        load_manifests(text, filename="x.yaml", **options)
    error = caught.value
    found = error.facts["errors"]
    assert isinstance(found, list)
    assert found, "an error without a mistake"
    assert (error.message, error.hint) == (found[0]["message"], found[0]["hint"])
    assert (error.facts["file"], error.facts["line"]) == ("x.yaml", found[0]["line"])
    return found


def mistake(text: str | bytes, **options: Any) -> dict[str, Any]:
    (found,) = mistakes(text, **options)
    return found


# The forms.


@pytest.mark.req("S0-32", "S2-22")
def test_a_flat_manifest_is_one_group_with_one_task() -> None:
    found = workload(
        "name: web\nimage: nginx:1.27\nreplicas: 3\nports: {http: 80}\nresources: {cpu: 500m, memory: 1Gi}"
    )
    assert found.meta.name == "web"
    assert found.meta.namespace == "default"
    assert found.spec.type == "service"
    main = found.spec.groups["main"]
    assert main.replicas == 3
    assert main.ports == {"http": Port(80)}
    assert main.tasks["main"].image == "nginx:1.27"
    assert main.tasks["main"].resources.cpu == Cpu(500)
    assert main.tasks["main"].resources.memory == Size(1 << 30)


@pytest.mark.req("S0-32")
def test_groups_hold_several_tasks() -> None:
    found = workload("""
name: shop
namespace: team-a
type: batch
priority: 5
labels: {app: shop, release: 1.10}
batch: {completions: 10, parallelism: 3, deadline: 1h}
groups:
  web:
    count: 2
    engine: [docker, process]
    restart: {policy: never}
    tasks:
      app: {command: [/app], stop: {signal: SIGINT, grace: 1m}}
      log: {role: sidecar, image: vector}
""")
    assert found.meta.namespace == "team-a"
    assert found.meta.labels == {"app": "shop", "release": "1.10"}
    assert found.spec.batch is not None
    assert found.spec.batch.deadline == Seconds(3600)
    web = found.spec.groups["web"]
    assert (web.replicas, web.engine) == (2, ("docker", "process"))
    assert list(web.tasks) == ["app", "log"]
    assert web.tasks["app"].stop.grace == Seconds(60)


def test_short_forms_mean_the_long_ones() -> None:
    short = "name: a\nimage: x\ncount: 2\nengine: docker\nports: {http: 80}\nplacement: {where: [zone == a]}"
    long = """
name: a
image: x
replicas: 2
engine: [docker]
ports: {http: {port: 80}}
placement: {where: [{rule: zone == a}]}
"""
    assert workload(short) == workload(long)
    assert encode(workload(short)) == encode(workload(long))


def test_numbers_where_text_belongs_are_taken_as_typed() -> None:
    task = group("""
name: a
command: [serve, 8080]
args: [-v, 1.10, true]
env: {PORT: 8080, VERSION: 1.10, DEBUG: true, MASK: 010, ANSWER: no}
files: [{path: a, content: 5, mode: 0600}]
""").tasks["main"]
    assert task.command == ("serve", "8080")
    assert task.args == ("-v", "1.10", "true")
    assert task.env == {"PORT": "8080", "VERSION": "1.10", "DEBUG": "true", "MASK": "010", "ANSWER": "no"}
    assert (task.files[0].content, task.files[0].mode) == ("5", "0600")


def test_json_is_a_manifest_too() -> None:
    assert workload('{"name": "a",\n\t"image": "x"}') == workload("name: a\nimage: x")


def test_a_namespace_has_its_own_kind() -> None:
    (document,) = load_manifests("kind: namespace\nname: team-a\nlabels: {a: b}\nengines: [process]\npriority_most: 5")
    found = document.object
    assert isinstance(found, Namespace)
    assert (found.meta.name, found.meta.namespace) == ("team-a", "")
    assert found.spec.engines == ("process",)


def test_the_callers_namespace_is_for_objects_that_name_none() -> None:
    found = load_manifests("name: a\nimage: x\n---\nname: b\nimage: x\nnamespace: mine", namespace="theirs")
    assert [each.object.meta.namespace for each in found] == ["theirs", "mine"]


def test_options_of_an_engine_are_passed_on_as_they_are() -> None:
    task = group("name: a\nimage: x\noptions: {docker: {shm_size: 256m, list: [1, {b: null}]}}").tasks["main"]
    assert task.options == {"docker": {"shm_size": "256m", "list": [1, {"b": None}]}}
    assert type(task.options["docker"]) is dict


def test_anchors_save_typing() -> None:
    found = workload("""
name: a
groups:
  one: {tasks: {t: &t {image: x, env: {A: b}}}}
  two: {tasks: {t: *t, u: {<<: *t, image: y}}}
""")
    assert found.spec.groups["two"].tasks["t"] == found.spec.groups["one"].tasks["t"]
    assert found.spec.groups["two"].tasks["u"].env == {"A": "b"}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
@pytest.mark.req("S0-32")
def test_what_is_exported_can_be_applied_again(path: Path) -> None:
    documents = load_manifests(path.read_bytes(), filename=path.name)
    stored = [each.object.stamped(version=7, uid="u1", created_at=5.0) for each in documents]
    exported = dump({"items": [to_plain(each) for each in stored], "revision": 9})
    again = load_manifests(exported)
    assert [each.object for each in again] == [each.object for each in documents]
    assert [encode(each.object) for each in again] == [encode(each.object) for each in documents]


def test_a_single_exported_object_can_be_applied_again() -> None:
    before = workload("name: a\nimage: x\nlabels: {a: b}\nnamespace: n")
    after = workload(dump(to_plain(before.stamped(version=3, uid="u"))))
    assert after == before
    assert after.meta.version == 0


def test_an_object_survives_the_codec() -> None:
    before = workload("name: a\nimage: x\ndisconnect: {lost_after: 90s, stop_after: 30s}\nresources: {cpu: 0.1}")
    assert decode(encode(before)) == before


# Mistakes.

A = "name: a\nimage: x\n"


@pytest.mark.req("S2-12")
@pytest.mark.parametrize(
    ("text", "line", "path", "says", "hint"),
    [
        ("name: a\nimage: x\nreplcias: 3", 3, "", "unknown key `replcias`", "did you mean `replicas`?"),
        ("name: a\nimage: x\n\nreplicas: -1", 4, "replicas", "-1 is below the minimum of 0", None),
        ("name: a\nimage: x\nreplicas: 10000000", 3, "replicas", "above the maximum of 100000", None),
        ("name: a\nimage: x\nreplicas: many", 3, "replicas", "expected a whole number, got the text 'many'", None),
        ("name: a\nimage: x\nreplicas: 1.5", 3, "replicas", "expected a whole number, got the number 1.5", None),
        ("name: a\nimage: x\nresources:\n  cpu: 5x", 4, "resources.cpu", "is not an amount of CPU", None),
        ("name: a\nimage: x\nresources:\n  memory: 5Zi", 4, "resources.memory", "is not a size", None),
        ("name: a\nimage: x\nresources:\n  memory: -5", 4, "resources.memory", "out of range", None),
        ("name: a\nimage: x\nresources: {memory: [1]}", 3, "resources.memory", "amount", None),
        ("name: a\nimage: x\nresources: 5", 3, "resources", "expected a mapping", None),
        ("name: a\nimage: x\nresources:", 3, "resources", "expected a mapping", None),
        ("name: a\nimage: x\nenv:\n  A: 1\n  B:", 5, "env.B", "has no value", "remove the key, or set a value"),
        ("name: a\nimage: x\nenv: {A b: 1}", 1, "", "'A b' is not a valid name of an environment variable", None),
        ("name: a\ncommand: sleep 5", 2, "command", "expected a list", "write it as a list: [sleep, 5]"),
        ("name: a\nimage: x\nhealthcheck: {}", 3, "", "unknown key `healthcheck`", "write `health`"),
        ("name: a\nimage: x\ncpu: 1", 3, "", "unknown key `cpu`", "write `resources: {cpu: …}`"),
        ("name: a\nimage: x\nstop:\n  grace: 5 weeks", 4, "stop.grace", "is not a duration", None),
        (A + "restart: {policy: onfailure}", 3, "restart.policy", "not one of", "did you mean `on-failure`?"),
        ("name: a\nimage: x\ntype: srvice", 3, "type", "not one of service, batch", "did you mean `service`?"),
        ("name: a\nimage: x\nports: {http: 99999}", 3, "ports.http.port", "99999 is above the maximum of 65535", None),
        ("name: a\nimage: x\nports: {http: web}", 3, "ports.http", "expected a mapping", None),
        ("name: a\nimage: x\nhealth: {http: /}", 3, "health", "requires `port`", None),
        ("name: a\nimage: x\nhealth: {tcp: web}", 1, "", "uses the port 'web'", None),
        ("name: a\nimage: x\nplacement:\n  where:\n  - zone = a", 5, "placement.where[0]", "is not a rule", None),
        ("name: a", 1, "", "requires an `image` or a `command`", None),
        ("image: x", 1, "", "`name` is missing", None),
        ("name: " + "x" * 300 + "\nimage: x", 1, "name", "has 300 characters; at most 63", None),
        ("name: Web_\nimage: x", 1, "name", "'Web_' is not a name", None),
        ("name: [a]\nimage: x", 1, "name", "expected text, got a list", None),
        ("name: a\nimage: x\nlabels: {'': b}", 3, "labels", "is not a label key", None),
        ("name: a\nimage: x\nlabels: {a: {}}", 3, "labels.a", "expected text, got a mapping", None),
        ("name: a\nimage: x\nnamespace: ''", 3, "namespace", "is not a namespace", None),
        ("name: a\nimage: " + "x" * 5000, 2, "image", "5,000 characters; at most 4,096", None),
        ("name: a\ngroups:\n  w:\n    tasks:\n      t:\n        imge: x\n        image: x", 6,
         "groups.w.tasks.t", "unknown key `imge`", "did you mean `image`?"),
        ("name: a\ngroups:\n  w: {replicas: 1}", 3, "groups.w", "`tasks` is missing", None),
        ("name: a\ngroups: {w: {tasks: {}}}", 2, "groups.w", "at least one task", None),
        ("name: a\ngroups: {W: {tasks: {t: {image: x}}}}", 1, "", "'W' is not a group name", None),
        ("name: a\ngroups: {w: {tasks: {t: {image: x}}}}\nimage: y", 3,
         "", "`image` belongs to a task", "move it to the task, under `groups`"),
        ("name: a\ngroups: {w: {tasks: {t: {image: x}}}}\nreplicas: 2", 3,
         "", "`replicas` belongs to a group", "move it to the group, under `groups`"),
        ("name: a\ntasks: {t: {image: x}}", 2, "", "`tasks` belongs to a group", None),
        ("name: a\nimage: x\ncount: 1\nreplicas: 2", 3, "", "unknown key `count`", None),
        ("name: a\nimage: x\nreplicas: 2\ngang:\n  min: 3", 5, "gang.min",
         "the gang requires at least 3 instances, but there are only 2 replicas", "set `gang.min` to at most 2"),
        ("name: a\nimage: x\ngang: {timeout: 2d}", 3, "gang.timeout", "the timeout 2d is out of range", "1s to 24h"),
        ("name: a\nimage: x\ngang: {min: 0}", 3, "gang.min", "0 is below the minimum of 1", None),
        ("name: a\nimage: x\ngang: {mn: 2}", 3, "gang", "unknown key `mn`", "did you mean `min`?"),
        ("name: a\ntype: batch\nbatch: {completions: 5, parallelism: 3}\ngroups:\n  w:\n    tasks: {t: {image: x}}\n"
         "    gang: {min: 4}", 7, "groups.w.gang.min", "but only 3 run at a time", "set `gang.min` to at most 3"),
        ("- a\n- b", 1, "", "an object must be a mapping", None),
        ("just text", 1, "", "an object must be a mapping", None),
        ("# nothing\n", 1, "", "contains no object", None),
        ("kind: wrokload\nname: a", 1, "kind", "unknown kind 'wrokload'", "did you mean `workload`?"),
        ("kind: 5\nname: a", 1, "kind", "unknown kind '5'", None),
        ("name: a\nkind: node", 2, "kind", "nodes are created by the cluster", None),
        ("kind: namespace\nname: a\nnamespace: b", 3, "namespace", "is cluster-wide and has no namespace", None),
        ("kind: namespace\nname: a\nengine: [b]", 3, "", "unknown key `engine`", "did you mean `engines`?"),
        ("kind: workload\nmeta: {name: a, lables: {}}\nspec: {groups: {m: {tasks: {m: {image: x}}}}}", 2,
         "meta", "unknown key `lables`", "did you mean `labels`?"),
        ("kind: workload\nmeta: {name: a}\nspec: {groups: {m: {tasks: {m: {image: 1, x: 1}}}}}", 3,
         "spec.groups.m.tasks.m", "unknown key `x`", None),
        ("kind: workload\nmeta: {name: a}", 1, "", "`spec` is missing", None),
        ("apiVersion: apps/v1\nkind: Deployment", 2, "", "Kubernetes", None),
        ("services:\n  web: {image: x}", 1, "", "Compose", None),
    ],
)  # fmt: skip
def test_a_mistake_gets_its_line_its_path_and_a_hint(
    text: str, line: int, path: str, says: str, hint: str | None
) -> None:
    found = mistakes(text)[0]
    assert says in found["message"]
    assert (found["line"], found["path"]) == (line, path)
    if hint is not None:
        assert found["hint"] == hint


@pytest.mark.parametrize(
    "text",
    [
        "placement: {clusters: [a]}",
    ],
)
def test_what_a_later_version_will_know_is_not_called_unknown(text: str) -> None:
    found = mistakes(f"name: a\nimage: x\n{text}")[0]
    assert "is not supported yet" in found["message"]
    assert found["line"] == 3


def test_devices_are_read_and_counted_by_kind_and_by_vendor() -> None:
    (document,) = load_manifests(
        """
name: a
groups:
  g:
    tasks:
      prepare: {role: init, image: x, resources: {devices: [{kind: gpu, count: 3}]}}
      main: {image: x, resources: {devices: [{kind: gpu, vendor: nvidia}, {kind: fpga, count: 2}]}}
      beside: {role: sidecar, image: x, resources: {devices: [{kind: gpu}]}}
"""
    )
    assert isinstance(document.object, Workload)
    request = document.object.spec.groups["g"].request
    assert request.devices == {"gpu": 3, "nvidia/gpu": 1, "fpga": 2}


@pytest.mark.parametrize("device", ["{kind: cpu}", "{kind: GPU}", "{kind: gpu, count: 0}", "{kind: gpu, vendor: ''}"])
def test_what_is_no_device_is_refused_with_its_line(device: str) -> None:
    found = mistakes(f"name: a\nimage: x\nresources:\n  devices: [{device}]")
    assert found[0]["line"] == 4


@pytest.mark.req("S3-30", "S3-31")
def test_rules_about_other_instances_are_read() -> None:
    (document,) = load_manifests(
        """
name: a
image: x
placement:
  pool: {name: web, strength: should}
  dedicated: true
  near: [{workload: cache, over: zone, strength: prefer, weight: 30}]
  apart: [{match: {app: 1.10}, namespaces: [team-a], strength: should}]
  spread: [{over: zone, max_skew: 2, strength: should}]
"""
    )
    placement = document.object.spec.groups["main"].placement
    assert [rule.texts[0] for rule in placement.rules] == [
        "pool == web",
        "near cache over zone",
        "apart from app=1.10 over node",
        "spread over zone",
    ]
    assert (placement.dedicated, placement.only_pool, placement.order) == (True, None, ())


def test_the_order_in_which_rules_are_written_is_kept() -> None:
    text = "name: a\nimage: x\nplacement:\n  spread: [{over: zone}]\n  where: [disk == ssd]\n  near: [{workload: b}]"
    (document,) = load_manifests(text)
    placement = document.object.spec.groups["main"].placement
    assert [rule.texts[0] for rule in placement.rules] == ["spread over zone", "disk == ssd", "near b over node"]


@pytest.mark.parametrize(
    ("placement", "message"),
    [
        ("{near: [{over: zone}]}", "set either `workload: NAME` (or `self`, `*`) or `match: {LABEL: VALUE}`"),
        ("{near: [{workload: a, match: {b: c}}]}", "set either `workload: NAME`"),
        ("{near: [{workload: self, group: b}]}", "`group` requires `workload: NAME`"),
        ("{apart: [{workload: self, namespaces: [a]}]}", "`namespaces` and `namespace_labels` cannot be combined"),
        ("{apart: [{workload: self, namespace_labels: [a exists]}]}", "cannot be combined with `workload: self`"),
        ("{apart: [{labels: [a > 1]}]}", "labels are compared with"),
        ("{near: [{match: {a: b}, namespace_labels: [a]}]}", "is not a rule"),
        ("{spread: [{over: zone, min_domains: 2, strength: prefer}]}", "`min_domains` requires"),
        ("{spread: [{over: zone, honor: [taint]}]}", "is not one of where, taints"),
        ("{tolerate: [{above: 3}]}", "`above` and `below` require `key`"),
        ("{apart: [{workload: a, weight: 5}]}", "`weight` requires `strength: prefer`"),
        ("{apart: [{workload: a, strength: maybe}]}", "is not one of must, should, prefer"),
        ("{spread: [{max_skew: 1}]}", "`over` is missing"),
        ("{spread: [{over: zone, max_skew: 0}]}", "0 is below the minimum of 1"),
        ("{spread: [{over: a b}]}", "is not a fact"),
        ("{pool: {strength: should}}", "`name` is missing"),
        ("{pool: {name: A}}", "is not a pool"),
        ("{pool: [a]}", "expected text, got a list"),
        ("{order: [near, near]}", "lists a kind of rules twice"),
        ("{dedicated: maybe}", "expected true or false, got"),
    ],
)
def test_a_wrong_rule_is_reported_with_its_line(placement: str, message: str) -> None:
    found = mistakes(f"name: a\nimage: x\nplacement: {placement}")[0]
    assert message in found["message"]
    assert found["line"] == 3


CYCLE = """name: web
image: x
placement:
  near:
    - {workload: cache, over: zone, strength: prefer}
    - {workload: db}
---
name: db
image: x
placement: {near: [{match: {app: web}}]}
"""


@pytest.mark.req("S3-30")
def test_groups_that_would_wait_for_each_other_for_ever_are_refused_with_line_and_hint() -> None:
    text = CYCLE.replace("name: web\n", "name: web\nlabels: {app: web}\n")
    found = mistake(text)
    assert found["line"] == 7
    assert found["path"] == "placement.near[1]"
    assert "web waits for db, db waits for web; none of these groups can be placed first" in found["message"]
    assert found["hint"] == "set `strength: should` on one of these rules"


@pytest.mark.parametrize(
    "other",
    [
        "name: db\nimage: x",
        "name: db\nimage: x\nplacement: {near: [{workload: web, strength: should}]}",
        "name: db\nimage: x\nplacement: {near: [{workload: self}]}",
        "name: db\ngroups:\n  a: {placement: {near: [{workload: web}]}, tasks: {t: {image: x}}}\n"
        "  b: {tasks: {t: {image: x}}}",
        "name: db\nnamespace: other\nimage: x\nplacement: {near: [{workload: web}]}",
    ],
)
def test_near_rules_with_a_possible_start_are_no_cycle(other: str) -> None:
    assert len(load_manifests(CYCLE.partition("---")[0] + "---\n" + other)) == 2


def test_three_can_wait_for_each_other_too() -> None:
    texts = [
        f"name: {one}\nimage: x\nplacement: {{near: [{{workload: {other}}}]}}" for one, other in ("ab", "bc", "ca")
    ]
    assert "a waits for b, b waits for c, c waits for a" in mistake("\n---\n".join(texts))["message"]


def test_kinds_of_later_versions_are_not_called_unknown() -> None:
    assert "`scheduler-config` is not supported yet" in mistake("kind: scheduler-config\nname: a")["message"]


def test_all_mistakes_are_reported_at_once_in_order() -> None:
    found = mistakes("name: A\nimge: x\ncommand: [a]\nreplicas: -1\nresources: {cpu: x, memory: y}\n---\nimage: x")
    assert [each["line"] for each in found] == [1, 2, 4, 5, 5, 7]


def test_mistakes_are_bounded() -> None:
    assert len(mistakes("name: a\nimage: x\n" + "".join(f"key{n}: 1\n" for n in range(500)))) == 50


def test_two_objects_of_one_name_are_an_error_that_names_both_places() -> None:
    found = mistake("name: a\nimage: x\n---\nname: b\nimage: x\n---\nname: a\nimage: y")
    assert found["line"] == 7
    assert "first in line 1" in found["message"]


def test_two_objects_of_one_name_are_found_across_files() -> None:
    with pytest.raises(Invalid, match=r"first in one\.yaml:1") as caught:
        load_files([("one.yaml", "name: a\nimage: x"), ("two.yaml", "\nname: a\nimage: x")])
    assert (caught.value.facts["file"], caught.value.facts["line"]) == ("two.yaml", 2)


def test_one_name_in_two_namespaces_is_fine() -> None:
    assert len(load_manifests("name: a\nimage: x\n---\nname: a\nimage: x\nnamespace: b")) == 2


def test_an_engine_that_does_not_exist_is_refused_when_the_engines_are_known() -> None:
    found = mistake("name: a\nimage: x\nengine: [process, dokcer]", engines={"process", "docker"})
    assert "unknown engine 'dokcer'" in found["message"]
    assert found["hint"] == "did you mean `docker`?"
    assert load_manifests("name: a\nimage: x\nengine: dokcer")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("name: a\nimage: x\nengine: dokcer", 3),
        ("name: a\nimage: x\nengine:\n- process\n- dokcer", 5),
        ("name: a\ngroups:\n  web:\n    engine: dokcer\n    tasks: {app: {image: x}}", 4),
    ],
)
def test_an_engine_that_does_not_exist_is_reported_with_its_own_line(text: str, line: int) -> None:
    assert mistake(text, engines={"process"})["line"] == line


def test_a_huge_manifest_is_refused_as_too_large() -> None:
    with pytest.raises(TooLarge) as caught:
        load_manifests(b"# " + b"x" * (10 << 20), filename="big.yaml")
    assert caught.value.facts["file"] == "big.yaml"


def test_a_bomb_is_refused_as_too_large() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    with pytest.raises(TooLarge) as caught:
        load_manifests("\n".join(lines), filename="bomb.yaml")
    assert (caught.value.facts["file"], caught.value.facts["line"]) == ("bomb.yaml", 5)


def test_binary_garbage_is_refused_with_file_and_line() -> None:
    found = mistake(b"name: a\nimage: \xff\xfe\x00")
    assert (found["file"], found["line"]) == ("x.yaml", 2)
    assert found["hint"] == "check that this is not a binary file"


def test_one_bad_file_spoils_the_set() -> None:
    with pytest.raises(Invalid) as caught:
        load_files([("a.yaml", "name: a\nimage: x"), ("b.yaml", "name: b")])
    assert caught.value.facts["file"] == "b.yaml"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("schedule: often", 4, "five fields"),
        ("schedule: {cron: '0 0 30 2 *'}", 4, "no such day in its months"),
        ("schedule:\n  cron: '@daily'\n  timezone: Mars/Olympus", 6, "not a known time zone"),
        ("schedule:\n  cron: ['@daily', '61 * * * *']", 5, "bad minute"),
        ("schedule: {cron: '@daily', overlap: never}", 4, "not one of forbid, allow, replace"),
        ("schedule: {timezone: UTC}", 4, "`cron` is missing"),
    ],
)
def test_a_bad_schedule_is_refused_with_its_line(text: str, line: int, words: str) -> None:
    found = mistakes(f"name: a\ntype: batch\nimage: x\n{text}")[0]
    assert (found["line"], words in found["message"]) == (line, True), found


def test_a_schedule_belongs_to_a_batch_with_a_short_name() -> None:
    assert "requires `type: batch`" in mistakes("name: a\nimage: x\nschedule: '@daily'")[0]["message"]
    found = mistakes(f"name: {'a' * 49}\ntype: batch\nimage: x\nschedule: '@daily'")[0]
    assert "at most 48 are allowed" in found["message"]


def test_one_cron_expression_need_not_be_a_list() -> None:
    for text in ("'@daily'", "{cron: '@daily'}", "{cron: ['@daily']}"):
        made = load_manifests(f"name: a\ntype: batch\nimage: x\nschedule: {text}")[0].object
        assert made.spec.schedule.cron == ("@daily",)


@pytest.mark.parametrize(
    ("task", "line", "words"),
    [
        ("health:\n  tcp: 80\n  also:\n  - {tcp: 80}\n  - {http: x, port: 80}", 7, "must be a path"),
        ("health:\n  tcp: 80\n  also:\n  - {tcp: 80}\n  - {tpc: 80}", 7, "tcp"),
        ("placement:\n  spread:\n  - over: zone\n    honor: [taint]", 6, "is not one of where, taints"),
        ("aliases:\n- ok\n- [no]", 5, "expected"),
    ],
)
def test_an_error_in_a_field_of_a_feature_has_its_line(task: str, line: int, words: str) -> None:
    found = mistakes(f"name: web\ncommand: [x]\n{task}\n")[0]
    assert found["line"] == line
    assert words in f"{found['message']} {found.get('hint')}"
