"""Nomad's job files, block by block: what becomes of each, and that no key is lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mandor.errors import Invalid
from mandor.importers.base import Imported, Options, Source
from mandor.importers.nomad import NomadImporter
from mandor.importers.registry import convert, detect
from mandor.lib.yaml12 import dump
from mandor.model.codec import from_plain
from mandor.model.manifest import load_files
from mandor.model.workload import WorkloadSpec

ROOT = Path(__file__).resolve().parents[3]
CONFIG = 'driver = "docker"\nconfig { image = "redis" }'


def imported(text: str, files: Mapping[str, str] | None = None, **options: Any) -> Imported:
    around = files or {}
    return convert(NomadImporter(), [Source("a.nomad", text)], Options(read=around.get, **options))


def job(inside: str = "", group: str = "", task: str = CONFIG, **options: Any) -> dict[str, Any]:
    text = f'job "shop" {{\n{inside}\ngroup "web" {{\n{group}\ntask "app" {{\n{task}\n}}\n}}\n}}\n'
    return imported(text, **options).made[-1].manifest


def group_of(group: str = "", task: str = CONFIG, inside: str = "") -> dict[str, Any]:
    found: dict[str, Any] = job(inside, group, task)["groups"]["web"]
    return found


def task_of(task: str, group: str = "") -> dict[str, Any]:
    found: dict[str, Any] = group_of(group, task)["tasks"]["app"]
    return found


def told(found: Imported) -> list[tuple[int, str, str]]:
    return [(note.line, note.path, note.fate) for note in found.report.notes]


@pytest.mark.req("S0-32")
def test_a_job_is_a_workload_with_its_groups_and_tasks() -> None:
    made = job('namespace = "team"\npriority = 70\nmeta { owner = "me" }', "count = 3")
    assert (made["name"], made["namespace"], made["priority"]) == ("shop", "team", 20)
    web = made["groups"]["web"]
    assert (web["replicas"], web["engine"]) == (3, ["docker"])
    assert web["tasks"]["app"]["image"] == "redis"
    assert web["tasks"]["app"]["env"] == {"NOMAD_META_owner": "me"}


def test_a_stopped_job_waits_at_a_gate() -> None:
    task = {"Name": "t", "Driver": "docker", "Config": {"image": "a"}}
    text = json.dumps({"Job": {"ID": "a", "Stop": True, "TaskGroups": [{"Name": "g", "Tasks": [task]}]}})
    assert imported(text).made[-1].manifest["gates"] == ["stopped"]
    assert "gates" not in imported(text.replace("true", "false")).made[-1].manifest


@pytest.mark.parametrize(("kind", "policy", "attempts"), [("service", "always", 2), ("batch", "on-failure", 3)])
@pytest.mark.req("S0-32")
def test_what_a_job_leaves_open_depends_on_its_type(kind: str, policy: str, attempts: int) -> None:
    restart = group_of(inside=f'type = "{kind}"')["restart"]
    assert (restart["policy"], restart["attempts"]) == (policy, attempts)


def test_a_system_job_is_a_daemon_without_a_count() -> None:
    made = job('type = "system"\nupdate { max_parallel = 2 }\nspread { attribute = "${meta.a}" }', "count = 1")
    assert made["type"] == "daemon"
    assert "replicas" not in made["groups"]["web"]
    assert made["groups"]["web"]["update"]["max_unavailable"] == 2


@pytest.mark.parametrize("periodic", [False, True])
def test_a_sysbatch_job_is_a_batch_on_every_node_also_on_a_schedule(periodic: bool) -> None:
    times = 'periodic {\ncron = "0 3 * * *"\n}' if periodic else ""
    made = job(f'type = "sysbatch"\n{times}', "count = 1")
    assert (made["type"], made["batch"]) == ("batch", {"per_node": True, "retries": 0})
    assert "replicas" not in made["groups"]["web"]
    assert ("schedule" in made) == periodic
    from_plain({key: made[key] for key in ("type", "batch", "groups")}, WorkloadSpec)


def test_scaling_follows_the_load() -> None:
    scaling = "scaling {\nmin = 2\nmax = 5\npolicy { any = 1 }\n}"
    assert group_of(scaling)["autoscale"] == {"min": 2, "max": 5, "cpu": "70%"}


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('attribute = "${attr.kernel.name}"\nvalue = "linux"', "os == linux"),
        ('attribute = "${attr.cpu.arch}"\noperator = "!="\nvalue = "arm64"', "arch != arm64"),
        ('attribute = "${node.class}"\noperator = "regexp"\nvalue = "web.*"', "class =~ /web.*/"),
        ('attribute = "${attr.kernel.version}"\nversion = ">= 5.4"', "kernel.version version >= 5.4"),
        ('attribute = "${attr.driver.docker}"\nvalue = "1"', "engine.docker.up == true"),
        ('attribute = "${attr.cpu.numcores}"\noperator = ">="\nvalue = "4"', "cpu.count >= 4"),
        ('attribute = "${meta.gpu}"\noperator = "is_set"', "gpu exists"),
        ('attribute = "${meta.gpu}"\noperator = "is_not_set"', "gpu not exists"),
        ('attribute = "${meta.tags}"\nset_contains = "a"', "tags =~ /(^|,) *a *(,|$)/"),
        ('attribute = "${meta.tags}"\nset_contains_any = "a,b"', "tags =~ /(^|,) *(a|b) *(,|$)/"),
    ],
)
@pytest.mark.parametrize("where", ["job", "group", "task"])
def test_a_constraint_is_a_rule_wherever_it_stands(text: str, rule: str, where: str) -> None:
    block = f"constraint {{\n{text}\n}}\n"
    places = {"inside": "", "group": "", "task": CONFIG}
    key = "inside" if where == "job" else where
    places[key] += "\n" + block
    assert group_of(places["group"], places["task"], places["inside"])["placement"]["where"] == [{"rule": rule}]


def test_a_pessimistic_version_is_a_range() -> None:
    web = group_of('constraint {\nattribute = "${attr.os.version}"\noperator = "version"\nvalue = "~> 1.2.3"\n}')
    assert web["placement"]["where"] == [{"rule": "os.version version >= 1.2.3"}, {"rule": "os.version version < 1.3"}]


def test_distinct_hosts_and_properties_are_kept_apart() -> None:
    web = group_of('constraint { distinct_hosts = true }\nconstraint { distinct_property = "${meta.rack}" }')
    assert web["placement"]["apart"] == [{"workload": "self"}, {"workload": "self", "over": "rack"}]


def test_a_distinct_property_with_a_count_is_a_limit() -> None:
    web = group_of(
        'constraint {\ndistinct_property = "${meta.rack}"\n}\n'
        'constraint {\noperator = "distinct_property"\nattribute = "${meta.zone}"\nvalue = "3"\n}'
    )
    assert web["placement"]["apart"] == [
        {"workload": "self", "over": "rack"},
        {"workload": "self", "over": "zone", "limit": 3},
    ]


def test_targets_of_a_spread_are_shares() -> None:
    web = group_of(
        'spread {\nattribute = "${node.datacenter}"\n'
        'target "dc1" {\npercent = 70\n}\ntarget "dc2" {\npercent = 20\n}\n}'
    )
    assert web["placement"]["spread"] == [
        {"over": "datacenter", "targets": {"dc1": 70, "dc2": 20}, "strength": "prefer"}
    ]


def test_wishes_have_weights_and_those_against_are_turned_round() -> None:
    web = group_of(
        'affinity {\nattribute = "${meta.disk}"\nvalue = "ssd"\nweight = 70\n}\n'
        'affinity {\nattribute = "${meta.disk}"\nvalue = "hdd"\nweight = -20\n}\n'
        'spread { attribute = "${node.datacenter}" }'
    )
    assert web["placement"] == {
        "where": [
            {"rule": "disk == ssd", "strength": "prefer", "weight": 70},
            {"rule": "disk != hdd", "strength": "prefer", "weight": 20},
        ],
        "spread": [{"over": "datacenter", "strength": "prefer"}],
    }


def test_ports_and_checks() -> None:
    web = group_of(
        'network {\nmode = "bridge"\nport "http" { to = 80 }\nport "admin" { static = 9000 }\n}\n'
        'service {\nname = "shop"\nport = "http"\ntags = ["a", "b"]\n'
        'check {\ntype = "http"\npath = "/up"\ninterval = "5s"\ntimeout = "1s"\n'
        'check_restart {\nlimit = 4\ngrace = "30s"\n}\n}\n}'
    )
    assert web["ports"] == {"http": {"port": 80, "host": "auto"}, "admin": {"host": 9000}}
    asked = {"http": "/up", "port": "http", "interval": "5s", "timeout": "1s"}
    assert web["tasks"]["app"]["readiness"] == asked
    assert web["tasks"]["app"]["health"] == asked | {"failures": 4, "start_period": "30s"}


def test_a_service_is_kept_as_labels() -> None:
    made = job(group='service {\nname = "shop"\nport = 80\ntags = ["a", "b"]\n}')
    assert made["labels"] == {"service/shop": "80", "service-tags/shop": "a,b"}


@pytest.mark.req("S0-32", "S2-28")
@pytest.mark.parametrize(
    ("port", "wanted"),
    [
        ('port "http" {\nstatic = 80\nto = 8080\n}', 80),
        ('port "http" {\nto = 8080\n}', 8080),
        ('port "http" {\nstatic = 8080\n}', 8080),
        ('port "http" {}', 80),
    ],
)
def test_a_service_has_its_name_and_the_number_that_clients_know(port: str, wanted: int) -> None:
    made = job(group=f'network {{\n{port}\n}}\nservice {{\nname = "Shop_Front"\nport = "http"\n}}')
    assert made["services"] == [{"name": "shop_front", "port": {"http": wanted}}]
    load_files([("a", dump(made))])


def test_a_numbered_port_of_a_service_is_declared_and_an_unknown_label_is_reported() -> None:
    made = job(group='service {\nname = "api"\nport = "9001"\n}')
    assert (made["services"], made["groups"]["web"]["ports"]) == (
        [{"name": "api", "port": {"port-9001": 9001}}],
        {"port-9001": {"port": 9001}},
    )
    assert "services" not in job(group='service {\nname = "api"\nport = "gone"\n}')


def test_services_of_one_name_are_one_service() -> None:
    network = 'network {\nport "a" {}\nport "b" {}\n}\n'
    services = "".join(f'service {{\nname = "api"\nport = "{port}"\n}}\n' for port in "aba")
    assert job(group=network + services)["services"] == [{"name": "api", "port": {"a": 80, "b": 81}}]


def test_resources_of_a_task() -> None:
    found = task_of(
        CONFIG + '\nresources {\ncpu = 500\nmemory = 128\nmemory_max = 256\ndevice "nvidia/gpu" { count = 2 }\n}'
    )
    assert found["resources"] == {
        "cpu": "250m",
        "memory": "128Mi",
        "devices": [{"kind": "gpu", "vendor": "nvidia", "count": 2}],
        "limits": {"memory": "256Mi"},
    }
    assert task_of(CONFIG)["resources"]["memory"] == "300Mi", "Nomad's own default"


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ('driver = "raw_exec"\nconfig {\ncommand = "/bin/date"\nargs = ["-u"]\n}', "command", ["/bin/date"]),
        ('driver = "exec"\nconfig {\ncommand = "/bin/date"\nargs = ["-u"]\n}', "args", ["-u"]),
        (
            'driver = "java"\nconfig {\njar_path = "a.jar"\njvm_options = ["-Xmx1g"]\n}',
            "command",
            ["java", "-Xmx1g", "-jar", "a.jar"],
        ),
        (CONFIG + '\nkill_timeout = "20s"\nkill_signal = "SIGINT"', "stop", {"grace": "20s", "signal": "SIGINT"}),
        (CONFIG + '\nuser = "1000"', "security", {"user": 1000}),
        (
            CONFIG + '\nenv {\nA = "${NOMAD_TASK_NAME}"\nB = "${NOMAD_TASK_DIR}/x"\n}',
            "env",
            {"A": "app", "B": "/local/x"},
        ),
        (
            CONFIG + "\nlogs {\nmax_files = 3\nmax_file_size = 5\n}",
            "options",
            {"docker": {"log_files": 3, "log_size": "5Mi"}},
        ),
        (
            CONFIG + '\ntemplate {\ndata = "x=1"\ndestination = "local/a.conf"\nperms = "600"\n}',
            "files",
            [{"path": "/local/a.conf", "content": "x=1", "mode": "600"}],
        ),
        (CONFIG + '\ntemplate {\ndata = "A=1"\ndestination = "x"\nenv = true\n}', "env", {"A": "1"}),
        (
            'driver = "docker"\nconfig {\nimage = "a"\nvolumes = ["/srv/x:/x:ro"]\n}',
            "mounts",
            [{"volume": "srv-x", "path": "/x", "read_only": True}],
        ),
    ],
)
def test_a_key_of_a_task_has_its_place(text: str, key: str, value: Any) -> None:
    assert task_of(text)[key] == value


def test_a_file_made_in_the_own_folder_is_put_where_it_is_mounted() -> None:
    found = task_of(
        'driver = "docker"\nconfig {\nimage = "a"\nvolumes = ["local/a.conf:/etc/a.conf"]\n}\n'
        'template {\ndata = "x"\ndestination = "local/a.conf"\n}'
    )
    assert [each["path"] for each in found["files"]] == ["/local/a.conf", "/etc/a.conf"]


def test_a_template_in_nomads_language_is_reported_and_not_written() -> None:
    found = imported(
        'job "a" {\ngroup "g" {\ntask "t" {\n'
        + CONFIG
        + '\ntemplate {\ndata = "{{ key }}"\ndestination = "local/a"\n}\n}\n}\n}'
    )
    assert "files" not in found.made[0].manifest["groups"]["g"]["tasks"]["t"]
    assert (7, "job.a.group.g.task.t.template[0].data", "dropped") in told(found)


def test_hooks_and_leaders_are_roles() -> None:
    text = """
job "a" {
  group "g" {
    task "init" {
      driver = "docker"
      config { image = "a" }
      lifecycle { hook = "prestart" }
    }
    task "proxy" {
      driver = "docker"
      config { image = "a" }
      lifecycle {
        hook = "prestart"
        sidecar = true
      }
    }
    task "app" {
      driver = "docker"
      config { image = "a" }
      leader = true
    }
    task "ship" {
      driver = "docker"
      config { image = "a" }
    }
  }
}
"""
    tasks = imported(text).made[0].manifest["groups"]["g"]["tasks"]
    assert {name: each.get("role") for name, each in tasks.items()} == {
        "init": "init",
        "proxy": "sidecar",
        "app": None,
        "ship": "sidecar",
    }


def test_update_reschedule_migrate_and_disconnect() -> None:
    web = group_of(
        'count = 4\nmigrate { max_parallel = 2 }\nreschedule {\ndelay = "10s"\ndelay_function = "constant"\n}\n'
        'update {\nmax_parallel = 2\nmin_healthy_time = "5s"\nhealthy_deadline = "2m"\n'
        "auto_revert = true\ncanary = 1\n}\n"
        'disconnect {\nlost_after = "2m"\nreplace = false\n}'
    )
    assert web["update"] == {
        "min_healthy": "5s",
        "canary": 1,
        "auto_rollback": True,
        "max_unavailable": 2,
        "deadline": "2m",
    }
    assert web["reschedule"] == {"delay": "10s", "max_delay": "10s"}
    assert web["disruption"] == {"max_unavailable": 2}
    assert web["disconnect"] == {"lost_after": "2m", "replace": False}


def test_as_many_canaries_as_instances_are_blue_and_green() -> None:
    assert group_of("count = 2\nupdate { canary = 2 }")["update"]["strategy"] == "blue-green"


def test_periodic_is_a_schedule_and_parameterized_waits_behind_a_gate() -> None:
    made = job(
        'type = "batch"\nperiodic {\ncrons = ["*/5 * * * *"]\nprohibit_overlap = true\ntime_zone = "Asia/Jakarta"\n}'
    )
    assert made["schedule"] == {"cron": ["*/5 * * * *"], "timezone": "Asia/Jakarta", "overlap": "forbid"}
    assert made["batch"] == {"completions": 1, "parallelism": 1, "retries": 1}
    assert job('type = "batch"\nparameterized { payload = "required" }')["gates"] == ["parameterized"]


def test_volumes_of_a_group() -> None:
    found = imported(
        'job "a" {\ngroup "g" {\nvolume "data" {\ntype = "host"\nsource = "pg"\n}\n'
        'task "t" {\n' + CONFIG + '\nvolume_mount {\nvolume = "data"\ndestination = "/d"\n}\n}\n}\n}'
    )
    assert found.made[0].manifest == {"kind": "volume", "name": "pg"}
    group = found.made[1].manifest["groups"]["g"]
    assert group["volumes"] == {"data": {"volume": "pg"}}
    assert group["tasks"]["t"]["mounts"] == [{"volume": "data", "path": "/d"}]


def test_variables_locals_functions_and_dynamic_blocks_are_evaluated() -> None:
    text = """
variable "tag" { default = "1" }
variable "ports" {
  type = map(number)
  default = { http = 80, admin = 9000 }
}
locals {
  full  = "${local.image}:${var.tag}"
  image = join("/", ["acme", lower("SHOP")])
  count = var.tag == "1" ? 2 + 1 : 5
}
job "a" {
  group "g" {
    count = local.count
    network {
      dynamic "port" {
        for_each = var.ports
        labels   = [port.key]
        content { to = port.value }
      }
    }
    task "t" {
      driver = "docker"
      config {
        image = local.full
        args  = [for name, number in var.ports : "${name}=${number}" if number > 100]
      }
    }
  }
}
"""
    group = imported(text).made[0].manifest["groups"]["g"]
    assert group["replicas"] == 3
    assert group["ports"] == {"http": {"port": 80, "host": "auto"}, "admin": {"port": 9000, "host": "auto"}}
    assert group["tasks"]["t"]["image"] == "acme/shop:1"
    assert group["tasks"]["t"]["args"] == ["admin=9000"]
    other = imported(text, variables={"tag": "9"}).made[0].manifest["groups"]["g"]
    assert (other["tasks"]["t"]["image"], other["replicas"]) == ("acme/shop:9", 5)


def test_what_only_a_node_knows_is_reported_and_left() -> None:
    found = imported(
        'job "a" {\ngroup "g" {\ntask "t" {\ndriver = "docker"\n'
        'config {\nimage = "a"\nargs = ["${attr.cpu.arch}"]\n}\n}\n}\n}'
    )
    assert found.made[0].manifest["groups"]["g"]["tasks"]["t"]["args"] == ["${attr.cpu.arch}"]
    assert (7, "job.a.group.g.task.t.config[0].args", "guessed") in told(found)


@pytest.mark.req("S0-32")
def test_an_unknown_key_is_reported_with_its_line() -> None:
    found = imported('job "a" {\ngroup "g" {\ncolour = "red"\ntask "t" {\n' + CONFIG + "\n}\n}\n}")
    assert told(found) == [(3, "job.a.group.g.colour", "unknown")]


def test_a_job_in_json_shows_the_same() -> None:
    source = {
        "Job": {
            "ID": "shop",
            "Name": "shop",
            "Type": "service",
            "Version": 3,
            "Constraints": [{"LTarget": "${attr.kernel.name}", "RTarget": "linux", "Operand": "="}],
            "TaskGroups": [
                {
                    "Name": "web",
                    "Count": 2,
                    "Networks": [{"DynamicPorts": [{"Label": "http", "To": 80}]}],
                    "RestartPolicy": {"Attempts": 5, "Interval": 600000000000, "Delay": 15000000000, "Mode": "fail"},
                    "Tasks": [
                        {
                            "Name": "app",
                            "Driver": "docker",
                            "Config": {"image": "redis", "ports": ["http"]},
                            "Resources": {"CPU": 500, "MemoryMB": 64},
                            "Vault": None,
                        }
                    ],
                }
            ],
        }
    }
    found = imported(json.dumps(source, indent=1))
    made = found.made[0].manifest
    web = made["groups"]["web"]
    assert (made["name"], web["replicas"], web["ports"]) == ("shop", 2, {"http": {"port": 80, "host": "auto"}})
    assert web["restart"]["attempts"] == 5
    assert web["restart"]["interval"] == "10m"
    assert web["placement"]["where"] == [{"rule": "os == linux"}]
    assert web["tasks"]["app"]["resources"]["memory"] == "64Mi"
    assert found.report.dropped == 0


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ('job "a" {\ngroup "g" {\n', "`}` is missing", 3),
        ('job "a" {\n', "`}` is missing", 2),
        ('job "a" {}', "at least one `group`", 1),
        ('job "a" {\ngroup "g" {}\n}', "at least one `task`", 2),
        ('variable "x" {}\njob "a" {}', "has no value", 1),
        ('job "a" {\ntype = "many"\n}', "is none of", 2),
        ('job "a" {\ngroup "g" {\ntask "t" {\ndriver = "qemu"\n}\n}\n}', "no engine for the driver", 4),
        ('job "a" {\ngroup "g" {\ncount = nofun(1)\n}\n}', "the function nofun is not known", 3),
        ('job "a" {\nx = "%{ if true }"\n}', "has no end", 2),
        ('job "a" {\nx = "%{ endfor }"\n}', "`%{endfor}` has no `%{for …}`", 2),
        ('job "a" {\nx = "%{ while }"\n}', "a directive is", 2),
        ('job "a" {\nx = var.nope\n}', r"no value: there is no 'nope'$", 2),
        ('variable "image" {\ndefault = "x"\n}\njob "a" {\nx = var.imgae\n}', "did you mean `image`", 5),
        ("locals {\na = local.b\nb = [upper(local.a)]\n}", "these locals need each other: a, b", 2),
        ("locals {\na = local.b\nb = var.nope\n}", "there is no 'nope'", 3),
        ('job "a" {\nx = "open\n}', "a quote is not closed", 2),
        ('job "a" {\nx = <<EOT\n}', "has no end", 2),
    ],
)
def test_what_makes_no_sense_is_an_error_with_its_line(text: str, message: str, line: int) -> None:
    with pytest.raises(Invalid, match=message) as caught:
        imported(text)
    assert (caught.value.facts["file"], caught.value.facts["line"]) == ("a.nomad", line)


@pytest.mark.parametrize(
    ("name", "text", "ours"),
    [
        ("a.hcl", '# one\njob "a" {\n}', True),
        ("a.json", '{"Job": {"ID": "a", "TaskGroups": []}}', True),
        ("a.json", '{"ID": "a", "TaskGroups": []}', True),
        ("a.yaml", "name: job\nimage: a\n", False),
        ("a.json", '{"name": "a", "image": "b"}', False),
    ],
)
def test_a_job_file_is_seen_for_what_it_is(name: str, text: str, ours: bool) -> None:
    found = detect(Source(name, text))
    assert (found is not None and found.name == "nomad") is ours


def test_the_example_is_imported_without_a_loss() -> None:
    path = ROOT / "examples" / "nomad" / "cache.nomad.hcl"
    found = convert(NomadImporter(), [Source(str(path), path.read_text(encoding="utf-8"))], Options())
    (made,) = found.made
    assert made.manifest["groups"]["redis"]["tasks"]["redis"]["files"][0]["content"].startswith("maxmemory 100mb\n")
    assert found.report.dropped == 0


WORDS = """job "a" {|group "g" {|task "t" {|}|
|=|count|"x"|"${attr.x}"|<<EOT
|EOT
|[|]|(|)|for|in|:|?|+|-|!|.|,|1|true|null|config {|driver = "docker"|"${|constraint {|attribute = "${meta.a}"
|value = "1"|resources {|cpu = 5|service {|check {|#|/*"""
TOKENS = st.sampled_from(WORDS.split("|"))


def outcome(text: str) -> Imported | Invalid:
    try:
        return imported(text)
    except Invalid as error:
        return error


@given(st.lists(TOKENS, max_size=40))
@settings(max_examples=150)
@pytest.mark.req("S0-32")
def test_any_text_is_imported_or_refused_with_a_line(tokens: list[str]) -> None:
    found = outcome(" ".join(tokens))
    assert isinstance(found, Imported) or found.facts.get("line")


BLOCKS = ["network", "restart", "update", "reschedule", "migrate", "service", "volume", "constraint", "affinity", "x"]
VALUES = ['"a"', "1", "true", '["a"]', '{ a = "b" }', '"5s"', '"${meta.a}"', "null", "-1", '"http"']
KEYS = [
    "count",
    "mode",
    "attempts",
    "interval",
    "port",
    "name",
    "attribute",
    "value",
    "weight",
    "type",
    "source",
    "tags",
    "y",
]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(BLOCKS), st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from(VALUES)), max_size=4)
        ),
        max_size=5,
    )
)
@settings(max_examples=150)
@pytest.mark.req("S0-32")
def test_no_key_of_any_group_is_lost(blocks: list[tuple[str, list[tuple[str, str]]]]) -> None:
    inside = ""
    for kind, keys in blocks:
        title = ' "v"' if kind == "volume" else ""
        inside += f"{kind}{title} {{\n" + "".join(f"{key} = {value}\n" for key, value in keys) + "}\n"
    found = outcome(f'job "shop" {{\ngroup "web" {{\n{inside}\ntask "app" {{\n{CONFIG}\n}}\n}}\n}}\n')
    if isinstance(found, Invalid):
        assert found.facts.get("line")
        return
    paths = {note.path.rpartition(".")[2] for note in found.report.notes}
    for kind, keys in blocks:
        assert kind != "x" or not keys or {"x"} & paths
        assert kind == "x" or "y" not in dict(keys) or "y" in paths or kind in paths


def test_all_at_once_is_a_gang() -> None:
    assert group_of("count = 3", inside="all_at_once = true")["gang"] == {"min": 3}


def test_a_volume_that_is_read_only_is_so_for_every_mount() -> None:
    volume = 'volume "d" {\ntype = "host"\nsource = "d"\nread_only = true\n}'
    task = f'{CONFIG}\nvolume_mount {{\nvolume = "d"\ndestination = "/d"\n}}'
    assert task_of(task, volume)["mounts"] == [{"volume": "d", "path": "/d", "read_only": True}]


def test_devices_and_names_of_checks_are_kept() -> None:
    device = 'devices = [{\nhost_path = "/dev/a"\ncontainer_path = "/dev/b"\n}]'
    assert task_of(f'driver = "docker"\nconfig {{\nimage = "a"\n{device}\n}}')["options"]["docker"]["devices"] == [
        "/dev/a:/dev/b"
    ]
    check = 'check {\nname = "alive"\ntype = "tcp"\ninterval = "9s"\ntimeout = "1s"\n}'
    service = f'network {{\nport "p" {{}}\n}}\nservice {{\nname = "s"\nport = "p"\n{check}\n}}'
    assert job("", service)["labels"]["service-check/s"] == "alive"


@pytest.mark.parametrize(
    "text",
    ['restart {\nmode = "x"\n}', 'reschedule {\ndelay_function = "x"\n}', 'update {\nhealth_check = "x"\n}'],
)
def test_a_word_that_nomad_does_not_know_is_an_error_with_its_line(text: str) -> None:
    with pytest.raises(Invalid, match="'x'") as caught:
        job("", text)
    assert caught.value.facts["line"] not in {None, 1}


@pytest.mark.parametrize(
    ("told", "cron", "notes"),
    [
        ("58 * * * * *", "58 * * * *", 0),
        ("0 */15 9-17 * * 1-5 *", "*/15 9-17 * * 1-5", 0),
        ("30 5 4 * * * 2027", "5 4 * * *", 2),
        ("@daily", "@daily", 0),
    ],
)
def test_a_schedule_may_have_seconds_and_a_year(told: str, cron: str, notes: int) -> None:
    found = imported(f"""job "a" {{
  type = "batch"
  periodic {{ crons = ["{told}"] }}
  group "g" {{ task "t" {{
    driver = "raw_exec"
    config {{ command = "/bin/true" }}
  }} }}
}}""")
    assert found.made[0].manifest["schedule"]["cron"] == [cron]
    assert len(found.report.notes) == notes


def test_podmans_own_forms_are_read() -> None:
    found = imported("""job "a" { group "g" { task "t" {
  driver = "podman"
  config {
    image = "b"
    shm_size = "512m"
    devices = ["/dev/dri:/dev/dri:rw"]
    volumes = ["/srv/c:/c:ro:rprivate", "/srv/d:/d:rprivate"]
  }
} } }""")
    task = found.made[0].manifest["groups"]["g"]["tasks"]["t"]
    assert task["options"]["podman"] == {"shm_size": "512Mi", "devices": ["/dev/dri:/dev/dri:rw"]}
    assert [each.get("read_only", False) for each in task["mounts"]] == [True, False]
    assert found.report.notes == ()


def test_an_artifact_may_have_another_name_and_headers() -> None:
    found = imported("""job "a" { group "g" { task "t" {
  driver = "docker"
  config { image = "b" }
  artifact {
    source = "https://example.com/a.sh"
    options { filename = "start.sh" }
    headers { X-Token = "c d" }
  }
} } }""")
    script = found.made[0].manifest["groups"]["g"]["tasks"]["t-fetch"]["command"][-1]
    assert "file=/local/start.sh;" in script
    assert "wget -q -O \"$file.part\" --header 'X-Token: c d' https://example.com/a.sh" in script
    assert [note.fate for note in found.report.notes] == ["guessed"]


def test_a_folder_of_a_repository_is_not_fetched_by_itself() -> None:
    found = imported("""job "a" { group "g" { task "t" {
  driver = "raw_exec"
  config { command = "b" }
  artifact { source = "git::https://example.com/c.git//d?ref=e" }
} } }""")
    assert [note.fate for note in found.report.notes] == ["dropped"]
    assert found.made[0].manifest["groups"]["g"]["tasks"]["t"]["command"] == ["b"]


GROUP = 'job "shop" {\ngroup "web" {\ntask "one" {\n%s\n}\ntask "two" {\n%s\n}\n}\n}\n'


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(
    ("drivers", "engine", "changed"),
    [
        (("podman", "docker"), "docker", "one"),
        (("docker", "containerd-driver"), "docker", "two"),
        (("containerd-driver", "podman"), "podman", "one"),
    ],
)
def test_tasks_with_several_drivers_of_images_run_on_one_engine(
    drivers: tuple[str, str], engine: str, changed: str
) -> None:
    tasks = tuple(f'driver = "{driver}"\nconfig {{ image = "redis" }}' for driver in drivers)
    found = imported(GROUP % tasks)
    group = found.made[-1].manifest["groups"]["web"]
    assert (group["engine"], list(group["tasks"])) == ([engine], ["one", "two"])
    notes = [note.path for note in found.report.notes if "as the other tasks" in note.text]
    assert notes == [f"job.shop.group.web.task.{changed}.driver"]
    load_files([("a", dump(found.made[-1].manifest))])


def test_a_program_beside_a_container_in_one_group_is_refused_with_a_way_out() -> None:
    program = 'driver = "raw_exec"\nconfig { command = "/bin/date" }'
    with pytest.raises(Invalid, match="not on docker and process") as caught:
        imported(GROUP % (CONFIG, program))
    assert "group of their own" in (caught.value.hint or "")
