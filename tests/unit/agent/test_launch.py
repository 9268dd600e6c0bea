"""Launches of tasks."""

from __future__ import annotations

import msgspec
import pytest

from mandor.agent.launch import make_launch, pick_engine
from mandor.model.codec import from_plain
from mandor.model.group import GroupTemplate
from mandor.model.meta import TraceMark
from mandor.model.node import NO_COMMANDS, Capabilities
from mandor.model.task import Task
from tests.unit.agent.make import NOTHING_SEEN, make_order

PROCESS = Capabilities()
DOCKER = Capabilities(images=True)
BOTH = Capabilities(images=True, extras=frozenset({"commands"}))


def template(engine: list[str] | None = None, *, image: bool = False) -> GroupTemplate:
    task = {"image": "nginx:1"} if image else {"command": ["run"]}
    return from_plain({"engine": engine or [], "tasks": {"main": task}}, GroupTemplate)


def test_a_launch_has_everything_resolved_and_names_the_instance() -> None:
    task = {
        "command": ["run"],
        "args": ["-v"],
        "env": {"MANDOR_NODE": "mine", "B": "2"},
        "working_dir": "/srv",
        "security": {"user": 1000},
        "stop": {"signal": "SIGINT"},
        "resources": {"cpu": 1, "limits": {"cpu": 2, "memory": "64Mi", "processes": 9}},
        "options": {"fake": {"after": "1s"}, "docker": {"x": 1}},
    }
    ports = {"http": {"port": 8080, "host": 80}, "web-admin": {"port": 9}}
    whole = from_plain({"ports": ports, "tasks": {"main": task}}, GroupTemplate)
    launch = make_launch(msgspec.structs.replace(make_order(), template=whole), "main", "fake", NOTHING_SEEN)
    assert (launch.name, launch.namespace) == ("web-0", "default")
    assert (launch.command, launch.args) == (("run",), ("-v",))
    assert (launch.cpu_milli, launch.memory_bytes, launch.processes) == (2000, 64 << 20, 9)
    assert (launch.user, launch.working_dir, launch.stop_signal) == (1000, "/srv", "SIGINT")
    assert launch.options == {"after": "1s"}
    assert launch.ports == {"http": 8080, "web-admin": 9}
    assert launch.host_ports == {"http": 80}
    assert launch.env["MANDOR_INSTANCE"] == "web-0"
    assert launch.env["MANDOR_PORT_WEB_ADMIN"] == "9"
    assert launch.env["MANDOR_NODE"] == "mine", "what the author wrote counts"


def test_a_task_gets_opentelemetry_variables_if_the_node_has_a_receiver() -> None:
    inputs = msgspec.structs.replace(NOTHING_SEEN, otlp="http://${MANDOR_NODE}:4318")
    env = make_launch(make_order(), "main", "fake", inputs).env
    assert env["OTEL_EXPORTER_OTLP_ENDPOINT"] == f"http://{env['MANDOR_NODE']}:4318"
    assert env["OTEL_SERVICE_NAME"] == "web"
    about = dict(each.split("=") for each in env["OTEL_RESOURCE_ATTRIBUTES"].split(","))
    assert about["service.namespace"] == "default"
    assert about["service.instance.id"] == "web-0"
    assert about["mandor.task"] == "main"
    mine = {"main": {"command": ["run"], "env": {"OTEL_SERVICE_NAME": "mine"}}}
    assert make_launch(make_order(mine), "main", "fake", inputs).env["OTEL_SERVICE_NAME"] == "mine"
    assert not [each for each in make_launch(make_order(), "main", "fake", NOTHING_SEEN).env if each.startswith("OTEL")]


@pytest.mark.req("S2-43")
def test_only_the_first_start_of_a_task_gets_the_trace() -> None:
    mark, order = TraceMark("00-" + "a" * 32 + "-" + "b" * 16 + "-01"), make_order()
    instance = order.instance.changed(meta=msgspec.structs.replace(order.instance.meta, trace=mark))
    order = msgspec.structs.replace(order, instance=instance)
    inputs = msgspec.structs.replace(NOTHING_SEEN, otlp="http://collector:4318")
    assert make_launch(order, "main", "fake", inputs).env["TRACEPARENT"] == mark.parent
    ran = msgspec.structs.replace(inputs, status=msgspec.structs.replace(inputs.status, started_at=5.0))
    assert "TRACEPARENT" not in make_launch(order, "main", "fake", ran).env
    assert "TRACEPARENT" not in make_launch(order, "main", "fake", NOTHING_SEEN).env


def test_without_limits_there_is_no_limit() -> None:
    launch = make_launch(make_order(), "main", "fake", NOTHING_SEEN)
    assert (launch.cpu_milli, launch.memory_bytes, launch.processes) == (None, None, None)


def test_the_launch_name_contains_the_task_if_there_are_several() -> None:
    order = make_order({"a": {"command": ["a"]}, "b": {"command": ["b"]}})
    assert make_launch(order, "b", "fake", NOTHING_SEEN).name == "web-0/b"


@pytest.mark.parametrize(
    ("wanted", "image", "engines", "chosen"),
    [
        ([], False, {"process": PROCESS, "docker": DOCKER}, "process"),
        ([], True, {"process": PROCESS, "docker": DOCKER}, "docker"),
        ([], True, {"process": PROCESS}, ""),
        ([], False, {"docker": DOCKER}, ""),
        ([], False, {"both": BOTH}, "both"),
        (["podman", "docker"], True, {"docker": DOCKER, "podman": DOCKER}, "podman"),
        (["podman", "docker"], True, {"docker": DOCKER}, "docker"),
        (["podman", "docker"], True, {"docker": DOCKER, "podman": Capabilities(images=True, up=False)}, "docker"),
        (["podman"], True, {"podman": Capabilities(images=True, up=False)}, "podman"),
        (["podman"], True, {"docker": DOCKER}, ""),
        (["process"], True, {"process": PROCESS}, ""),
        ([], False, {}, ""),
    ],
)
def test_the_first_wanted_engine_that_can_run_it_is_taken(
    wanted: list[str], image: bool, engines: dict[str, Capabilities], chosen: str
) -> None:
    found, why = pick_engine(template(wanted, image=image), engines)
    assert found == chosen
    assert bool(why) == (not chosen)


def test_an_engine_that_runs_only_the_programs_of_images_takes_no_command() -> None:
    engines = {"incus": Capabilities(images=True, extras=frozenset({NO_COMMANDS}))}
    assert pick_engine(template(image=True), engines) == ("incus", "")
    commanded = from_plain({"tasks": {"main": {"image": "x", "command": ["run"]}}}, GroupTemplate)
    assert pick_engine(commanded, engines) == ("", "no engine of this node runs images with a command: incus")


def test_mandor_variables_are_replaced_everywhere_and_no_others() -> None:
    task = {
        "command": ["run", "--id=${MANDOR_INSTANCE}"],
        "args": ["${MANDOR_PORT_HTTP}", "${HOME}", "${MANDOR_UNHEARD_OF}", "$MANDOR_NODE"],
        "env": {"WHERE": "on ${MANDOR_NODE}", "OTHER": "${WHERE}"},
    }
    whole = from_plain({"ports": {"http": {"port": 8080}}, "tasks": {"main": task}}, GroupTemplate)
    order = msgspec.structs.replace(make_order(), template=whole)
    launch = make_launch(order, "main", "fake", NOTHING_SEEN)
    assert launch.command == ("run", "--id=web-0")
    assert launch.args == ("8080", "${HOME}", "${MANDOR_UNHEARD_OF}", "$MANDOR_NODE")
    assert (launch.env["WHERE"], launch.env["OTHER"]) == (f"on {order.instance.spec.node}", "${WHERE}")


def test_secrets_within_variables_and_texts_are_filled_in_when_it_starts() -> None:
    task = {
        "command": ["run", "${secret:db/password}"],
        "env": {"URL": "me:${secret:db/password}@${MANDOR_NODE}", "PLAIN": "${HOME}"},
        "files": [
            {"path": "a", "content": "${MANDOR_INSTANCE} ${secret:token}", "fill": True},
            {"path": "b", "content": "${MANDOR_INSTANCE}"},
        ],
    }
    order = make_order({"main": task})
    assert order.template is not None
    assert order.template.tasks["main"].secret_references == {"db/password", "token"}
    inputs = msgspec.structs.replace(NOTHING_SEEN, secrets={"db/password": "s3cret", "token": "${MANDOR_NODE}"})
    launch = make_launch(order, "main", "fake", inputs)
    assert launch.command == ("run", "${secret:db/password}"), "commands can be seen by others"
    assert (launch.env["URL"], launch.env["PLAIN"]) == ("me:s3cret@n1", "${HOME}")
    assert [each.content for each in launch.files] == ["web-0 ${MANDOR_NODE}", "${MANDOR_INSTANCE}"]


@pytest.mark.parametrize(
    "task",
    [
        {"env": {"A": "${secret:}"}},
        {"files": [{"path": "a", "content": "${secret:a/b/c}", "fill": True}]},
    ],
)
def test_a_reference_to_a_missing_secret_is_refused(task: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        from_plain({"command": ["run"], **task}, Task)
