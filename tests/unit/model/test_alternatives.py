"""Alternatives: what a form takes over from the main form, what it says anew, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.errors import Invalid
from mandor.model.codec import decode, encode
from mandor.model.group import FLAT, Group
from mandor.model.manifest import load_manifests
from mandor.model.workload import Workload, make_release, template_hash

SHOP = """
name: shop
image: shop:1
command: [/app/run]
args: [--verbose]
env: {MODE: container, DB: db}
engine: docker
ports: {http: 80}
files: [{path: /etc/shop.conf, content: a}]
resources: {cpu: 1, memory: 1Gi}
alternatives:
  - engine: incus
    image: images:shop/vm
    resources: {cpu: 2, memory: 2Gi}
    options: {incus: {type: virtual-machine}}
  - engine: [process, fake]
    command: [/opt/shop]
    env: {MODE: process}
    files: []
    ports: {http: {port: 80, host: 8080}}
  - args: [--slow]
"""


def group_of(text: str, name: str = FLAT) -> Group:
    (document,) = load_manifests(text)
    assert isinstance(document.object, Workload)
    return document.object.spec.groups[name]


def mistake(text: str) -> dict[str, Any]:
    with pytest.raises(Invalid) as refused:
        load_manifests(text, engines={"docker", "process"})
    errors = refused.value.facts["errors"]
    assert isinstance(errors, list)
    return dict(errors[0])


@pytest.mark.req("S0-2")
def test_a_form_shows_anew_what_it_names_and_is_else_as_the_main_form() -> None:
    main, machine, process, slow = group_of(SHOP).forms
    assert main.tasks[FLAT].image == "shop:1"
    assert not main.alternatives

    task = machine.tasks[FLAT]
    assert (machine.engine, task.image, task.command, task.args) == (("incus",), "images:shop/vm", (), ())
    assert (machine.ports, task.env, task.files) == (main.ports, main.tasks[FLAT].env, main.tasks[FLAT].files)
    assert machine.request.cpu_milli == 2000

    task = process.tasks[FLAT]
    assert (process.engine, task.image, task.command, task.args) == (("process", "fake"), None, ("/opt/shop",), ())
    assert task.env == {"MODE": "process", "DB": "db"}
    assert task.files == ()
    assert process.ports["http"].host == 8080
    assert process.request == main.request

    task = slow.tasks[FLAT]
    assert (slow.engine, task.image, task.command, task.args) == (("docker",), "shop:1", ("/app/run",), ("--slow",))


def test_with_several_tasks_each_is_named() -> None:
    text = """
name: shop
groups:
  web:
    tasks:
      app: {image: shop:1}
      log: {role: sidecar, image: vector:1}
    alternatives:
      - engine: process
        tasks: {app: {command: [/opt/shop]}, log: {command: [/opt/vector]}}
"""
    other = group_of(text, "web").forms[1]
    assert [task.image for task in other.tasks.values()] == [None, None]
    assert other.tasks["log"].role == "sidecar"


def test_alternatives_are_part_of_the_release_and_change_no_hash_where_there_are_none() -> None:
    (with_them,) = load_manifests(SHOP)
    (without,) = load_manifests(SHOP.partition("alternatives:")[0])
    assert isinstance(with_them.object, Workload)
    assert isinstance(without.object, Workload)
    assert template_hash(with_them.object.spec.template) != template_hash(without.object.spec.template)
    assert b"alternatives" not in encode(without.object)
    release = make_release(with_them.object, 1)
    again = decode(encode(release))
    assert again == release
    assert again.spec.groups[FLAT].form(2).engine == ("process", "fake")


@pytest.mark.parametrize(
    ("text", "line", "path", "says"),
    [
        ("alternatives:\n  - {engine: docker}\n  - {}", 5, "alternatives[1]", "does not differ from the main form"),
        ("alternatives:\n  - {engine: docker}\n  - {engine: porcess}", 5, "alternatives[1].engine", "unknown engine"),
        ("alternatives: [{tasks: {app: {image: b}}}]", 3, "alternatives[0]", "unknown task 'app'; the group has: main"),
        (
            "alternatives: [{image: b, tasks: {main: {args: [c]}}}]",
            3,
            "alternatives[0]",
            "put the differences under `tasks`",
        ),
        ("alternatives: [{image: b, identity: {name: b}}]", 3, "alternatives[0]", "unknown key `identity`"),
        ("alternatives: [{role: init}]", 3, "alternatives[0]", "unknown key `role`"),
        ("alternatives: [{placement: {pool: a}}]", 3, "alternatives[0]", "unknown key `placement`"),
        ("alternatives: [{mounts: [{volume: data, path: /d}]}]", 3, "alternatives[0]", "not in `volumes`"),
        ("gang: {min: 1}\nalternatives: [{engine: docker}]", 4, "alternatives", "gang with `alternatives`"),
        (f"alternatives: [{', '.join(['{engine: docker}'] * 9)}]", 3, "alternatives", "9 alternatives; at most 8"),
    ],
)
def test_what_is_no_form_is_refused_with_its_line(text: str, line: int, path: str, says: str) -> None:
    found = mistake(f"name: a\nimage: x\n{text}")
    assert says in found["message"]
    assert (found["line"], found["path"]) == (line, path)
