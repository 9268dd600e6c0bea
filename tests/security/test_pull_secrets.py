"""Pull secrets: the login for a registry is used for that registry only, and reaches only nodes that need it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mandor.api.access import read
from mandor.api.caller import Caller
from mandor.engines.base import UnitPhase
from mandor.engines.containers.credentials import given_login, login_for
from mandor.errors import NotFound
from mandor.importers.base import Options, Source
from mandor.importers.registry import import_files
from mandor.model.group import GroupTemplate
from mandor.model.instance import Instance, InstanceSpec
from mandor.model.manifest import load_manifests
from mandor.model.meta import InvalidField, Key, Meta
from mandor.model.record import Namespace, NamespaceSpec
from mandor.model.secret import Secret, SecretSpec, pick, whole
from mandor.model.task import Task
from mandor.model.workload import Release, ReleaseSpec
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from tests.components.docker import Docker
from tests.components.image import busybox_layer
from tests.components.registry import ADDRESS, start_registry, write_image
from tests.integration.containers.conftest import new_ship
from tests.integration.containers.ship import NewShip

__all__ = ["new_ship"]

LOGIN = json.dumps({"registry": "r.example", "username": "me", "password": "pass:word"})


def docker_config(host: str) -> str:
    auth = base64.b64encode(b"me:pass:word").decode()
    return json.dumps({".dockerconfigjson": json.dumps({"auths": {host: {"auth": auth}}})})


@pytest.mark.parametrize("text", [LOGIN, docker_config("r.example")])
def test_a_login_is_used_for_its_own_registry_only(text: str) -> None:
    expected = {"username": "me", "password": "pass:word", "serveraddress": "r.example"}
    assert given_login("r.example", text) == expected
    assert given_login("evil.example", text) == {}
    assert given_login("docker.io", text) == {}
    assert login_for("r.example", [], text) == expected


@pytest.mark.parametrize("text", ["", "nonsense", "[]", '{"a": 1}', '{".dockerconfigjson": "nonsense"}'])
def test_a_pull_secret_that_makes_no_sense_is_no_login(text: str) -> None:
    assert given_login("r.example", text) == {}


def test_a_login_without_a_registry_is_for_docker_hub() -> None:
    text = json.dumps({"username": "me", "password": "x"})
    assert given_login("docker.io", text)["username"] == "me"
    assert given_login("r.example", text) == {}


def test_a_task_without_an_image_takes_no_pull_secret() -> None:
    with pytest.raises(InvalidField):
        Task(command=("true",), pull_secret="r")
    assert Task(image="r.example/a", pull_secret="r").secret_references == {"r/*"}


def test_a_whole_secret_is_picked_as_json() -> None:
    assert json.loads(pick(whole("r"), {"username": "me", "password": "x"}) or "") == {
        "username": "me",
        "password": "x",
    }


def imported(text: str, form: str) -> tuple[list[dict[str, Any]], list[str]]:
    """The manifests of a foreign file, and the notes about it."""
    found = import_files([Source(f"file.{form}", text)], Options())
    return [each.manifest for each in found.made], [str(note) for note in found.report.notes]


POD = """
apiVersion: v1
kind: Secret
metadata: {{name: regcred}}
type: kubernetes.io/dockerconfigjson
data: {{.dockerconfigjson: {config}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: web}}
spec:
  imagePullSecrets: [{{name: {first}}}]
  initContainers: [{{name: prepare, image: r.example/prepare}}]
  containers: [{{name: web, image: r.example/web}}]
"""


def test_the_pull_secret_of_a_pod_is_that_of_each_of_its_tasks() -> None:
    config = base64.b64encode(json.loads(docker_config("r.example"))[".dockerconfigjson"].encode()).decode()
    (secret, workload), notes = imported(POD.format(config=config, first="regcred"), "yaml")
    tasks = workload["groups"]["main"]["tasks"]
    assert [each["pull_secret"] for each in tasks.values()] == ["regcred", "regcred"]
    assert given_login("r.example", json.dumps(secret["data"]))["password"] == "pass:word"
    assert not [note for note in notes if "imagePullSecrets" in note or "type" in note]

    (_, workload), notes = imported(POD.format(config=config, first="elsewhere"), "yaml")
    assert workload["groups"]["main"]["tasks"]["web"]["pull_secret"] == "elsewhere"
    assert [note for note in notes if "secret elsewhere must exist" in note]


NOMAD = """
job "shop" {{
  namespace = "team"
  group "web" {{
    task "front" {{
      driver = "docker"
      config {{
        image = "{image}"
        auth {{
          username = "me"
          password = "{password}"
          {more}
        }}
      }}
    }}
  }}
}}
"""


@pytest.mark.parametrize(
    ("image", "more", "host"),
    [
        ("r.example/web:1", "", "r.example"),
        ("r.example/web:1", 'server_address = "r.example"', "r.example"),
        ("acme/web", "", "docker.io"),
        ("acme/web", 'server_address = "https://index.docker.io/v1/"', "docker.io"),
    ],
)
def test_the_login_of_a_nomad_task_becomes_its_pull_secret(image: str, more: str, host: str) -> None:
    (secret, workload), notes = imported(NOMAD.format(image=image, password="pass:word", more=more), "nomad")
    assert secret["namespace"] == workload["namespace"] == "team"
    assert workload["groups"]["web"]["tasks"]["front"]["pull_secret"] == secret["name"]
    assert given_login(host, json.dumps(secret["data"]))["password"] == "pass:word"
    assert "pass:word" not in str(notes)
    (stored,) = load_manifests(json.dumps(secret))
    assert isinstance(stored.object, Secret)


def test_a_nomad_login_whose_password_is_elsewhere_is_reported_by_the_name_of_its_secret() -> None:
    text = NOMAD.format(image="r.example/web", password="$${REGISTRY_PASSWORD}", more="")
    (workload,), notes = imported(text, "nomad")
    name = workload["groups"]["web"]["tasks"]["front"]["pull_secret"]
    assert [note for note in notes if f"secret {name} must exist" in note]


async def test_only_a_node_that_runs_the_namespace_reads_its_pull_secret() -> None:
    store = MemoryStore()
    group = GroupTemplate(tasks={"main": Task(image="r.example/a")})
    for name in ("shop", "other"):
        await store.commit(Put(Namespace(meta=Meta(name=name), spec=NamespaceSpec(pull_secret="login"))))
        secret = Secret(meta=Meta(name="login", namespace=name), spec=SecretSpec(sealed={"username": "sealed"}))
        await store.commit(Put(secret))
    spec = ReleaseSpec(workload="web", sequence=1, hash="h", groups={"main": group})
    await store.commit(
        Put(
            Release(
                meta=Meta(name="web-1", namespace="shop"),
                spec=spec,
            )
        ),
        Put(
            Instance(
                meta=Meta(name="web-0", namespace="shop"),
                spec=InstanceSpec(workload="web", release="web-1", group="main", index=0, node="n1"),
            )
        ),
    )
    node = Caller("node:n1", "node")
    assert isinstance(await read(store, node, Key("secret", "shop", "login")), Secret)
    with pytest.raises(NotFound):
        await read(store, node, Key("secret", "other", "login"))
    with pytest.raises(NotFound):
        await read(store, Caller("node:n2", "node"), Key("secret", "shop", "login"))


@pytest.mark.real("docker")
async def test_docker_pulls_a_private_image_with_the_login_of_the_task(
    new_docker: Callable[..., Docker],
    tmp_path: Path,
    new_ship: NewShip,
) -> None:
    docker = new_docker()
    write_image(tmp_path / "registry", busybox_layer())
    registry = start_registry(docker.enclosure.command([]), tmp_path / "registry", login="me:secret", pause=0.0)
    try:
        ship = new_ship(docker, credentials=[])
        wrong = json.dumps({"registry": ADDRESS, "username": "me", "password": "wrong"})
        refused = await ship.start(image=registry.image, login=wrong)
        ended = await ship.ended(refused)
        assert ended.reason == "StartFailed"
        assert "wrong" not in ended.message
        right = json.dumps({"registry": ADDRESS, "username": "me", "password": "secret"})
        unit = await ship.start(image=registry.image, login=right)
        assert (await ship.look(unit)).phase is UnitPhase.RUNNING
    finally:
        registry.close()
