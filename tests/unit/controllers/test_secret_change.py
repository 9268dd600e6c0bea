"""Changed secrets: which releases were made before the change, and whose workloads are restarted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from mandor.controllers.base import Controller
from mandor.controllers.runner import run_all
from mandor.controllers.secret_change import SecretChangeController
from mandor.controllers.secret_change_plan import changed_secrets, plan_change, plan_signals, with_content_ids
from mandor.controllers.secret_signal import SecretSignalController
from mandor.controllers.workload import WorkloadController
from mandor.lib.clock import ManualClock, settle
from mandor.model.group import Alternative, Group
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus, StopOrder
from mandor.model.meta import Key, Meta
from mandor.model.phase import Phase
from mandor.model.secret import Secret, SecretSpec, SecretStatus
from mandor.model.secret_change import restart_secrets
from mandor.model.task import File, OnChange, Task
from mandor.model.variant import TaskVariant
from mandor.model.workload import Release, ReleaseStatus, Workload, WorkloadSpec, make_release
from mandor.store.base import Delete, Put, Store
from mandor.store.memory import MemoryStore
from mandor.store.recorder import Recorder


def make(name: str = "web", *, namespace: str = "default", on_change: OnChange = "restart") -> Workload:
    task = Task(command=("true",), secrets={"DB": "db/password"}, on_change=on_change)
    meta = Meta(name=name, namespace=namespace)
    return Workload(meta=meta, spec=WorkloadSpec(groups={"main": Group(replicas=1, tasks={"main": task})}))


def release(**ids: str) -> Release:
    return make_release(make(), 1).changed(status=ReleaseStatus(secrets=ids))


# Pure.


def test_a_file_overrides_its_task_and_the_login_for_an_image_restarts_nothing() -> None:
    task = Task(
        image="r.example/a",
        pull_secret="login",
        secrets={"A": "variable"},
        env={"B": "x${secret:within/key}"},
        files=(
            File(path="/own", secret="own/key", on_change="none"),
            File(path="/asked", secret="asked", on_change="restart"),
            File(path="/filled", content="${secret:filled}", fill=True),
        ),
    )
    assert task.restart_references == {"asked"}
    assert replace(task, on_change="restart").restart_references == {"variable", "within/key", "asked", "filled"}


def test_the_secrets_of_all_forms_of_a_group_count() -> None:
    task = Task(command=("true",), secrets={"A": "a/key"}, on_change="restart")
    other = Alternative(tasks={"main": TaskVariant(command=("false",), secrets={"B": "b"})})
    assert restart_secrets([Group(tasks={"main": task}, alternatives=(other,))]) == {"a", "b"}


@pytest.mark.parametrize(
    ("known", "now", "expected"),
    [
        ({"db": "u.1"}, {"db": "u.1"}, []),
        ({"db": "u.1"}, {"db": "u.2"}, ["db"]),
        ({"db": "u.1"}, {"db": "v.0"}, ["db"]),
        ({"db": "u.1"}, {}, []),
        ({}, {"db": "u.0"}, []),
        ({}, {"db": "u.1"}, ["db"]),
    ],
    ids=["same", "changed", "made anew", "deleted", "created", "created and changed"],
)
def test_the_secrets_that_changed_since_a_release_are_found(
    known: dict[str, str], now: dict[str, str], expected: list[str]
) -> None:
    assert changed_secrets(release(**known), now) == expected


def test_a_change_raises_the_restarts_once_and_names_the_secret() -> None:
    draft = plan_change(make(), release(db="u.1"), {"db": "u.2"})
    (write,) = draft.writes
    assert isinstance(write, Put)
    assert isinstance(write.value, Workload)
    assert write.value.spec == replace(make().spec, restarted=1)
    (note,) = draft.notes
    assert (note.reason, note.message) == (
        "SecretChanged",
        "secret db changed: restarting the instances in a roll-out",
    )
    made = with_content_ids(make_release(write.value, 2, "restart"), release(db="u.1"), {"db": "u.2"}, {"db"})
    assert made.spec.cause == "restart: secret db changed"
    after = plan_change(write.value, made, {"db": "u.2"})
    assert (after.writes, after.notes) == ([], [])


def test_a_secret_that_is_created_later_is_written_down_without_a_restart() -> None:
    draft = plan_change(make(), release(), {"db": "u.0"})
    (write,) = draft.writes
    assert isinstance(write, Put)
    assert isinstance(write.value, Release)
    assert write.value.status.secrets == {"db": "u.0"}
    assert plan_change(make(), write.value, {"db": "v.0"}).notes


def test_a_restart_that_a_user_asked_for_keeps_its_cause() -> None:
    made = with_content_ids(make_release(make(), 2, "restart"), release(db="u.1"), {"db": "u.1"}, {"db"})
    assert made.spec.cause == "restart"


def signalled(name: str = "web") -> Workload:
    task = Task(command=("true",), files=(File(path="a/b", secret="db/password"),), on_change="signal")
    meta = Meta(name=name, namespace="default")
    return Workload(meta=meta, spec=WorkloadSpec(groups={"main": Group(replicas=2, tasks={"main": task})}))


def instance(index: int = 0, *, phase: Phase = Phase.RUNNING, **spec: Any) -> Instance:
    given: dict[str, Any] = {"workload": "web", "release": "web.1", "index": index, "node": "n1"} | spec
    meta = Meta(name=f"web-{index}", namespace="default", uid=f"i{index}")
    return Instance(meta=meta, spec=InstanceSpec(**given), status=InstanceStatus(phase=phase))


def test_a_change_is_written_to_placed_instances_that_have_not_ended_and_only_once() -> None:
    made = make_release(signalled(), 1).changed(status=ReleaseStatus(secrets={"db": "u.1", "unused": "u.1"}))
    instances = [
        instance(0),
        instance(1, secrets={"db": "u.2"}),
        instance(2, node="", phase=Phase.PENDING),
        instance(3, phase=Phase.FAILED),
        instance(4, stop=StopOrder(reason="scaled down")),
        instance(5, release="web.0"),
    ]
    draft = plan_signals(signalled(), instances, {"web.1": made}, {"db": "u.2", "unused": "u.2"})
    (write,) = draft.writes
    assert isinstance(write, Put)
    assert write.value == instances[0].changed(spec=replace(instances[0].spec, secrets={"db": "u.2"}))
    (note,) = draft.notes
    assert note.message == "secret db changed: files in 1 instance are being replaced"
    assert not plan_signals(signalled(), [instance()], {"web.1": made}, {"db": "u.1"}).writes


# With a store.


async def put_secret(store: Store, changes: int, *, namespace: str = "default", text: str = "sealed") -> None:
    key = Key(Secret.kind, namespace, "db")
    found = await store.get(key)
    meta = found.meta if found is not None else Meta(name="db", namespace=namespace)
    spec = SecretSpec(sealed={"password": text})
    await store.commit(Put(Secret(meta=meta, spec=spec, status=SecretStatus(changes=changes))))


@asynccontextmanager
async def controllers(store: Store) -> AsyncIterator[ManualClock]:
    clock = ManualClock()
    recorder = Recorder(store, "test", clock)
    tested: list[Controller[Any]] = [
        WorkloadController(store, clock, recorder),
        SecretChangeController(store, recorder),
        SecretSignalController(store, recorder),
    ]
    task = asyncio.ensure_future(run_all(tested, store, clock))
    try:
        await settle(300)
        yield clock
    finally:
        task.cancel()
        await asyncio.wait({task})


async def restarts(store: Store, name: str = "web", namespace: str = "default") -> int:
    await settle(300)
    found = await store.get(Key(Workload.kind, namespace, name))
    assert isinstance(found, Workload)
    return found.spec.restarted


async def test_only_a_changed_value_restarts_and_only_workloads_that_ask_for_it() -> None:
    store = MemoryStore()
    await put_secret(store, 3)
    await put_secret(store, 0, namespace="other")
    for each in (make(), make("still", on_change="none"), make(namespace="other")):
        await store.commit(Put(each))
    async with controllers(store):
        assert await restarts(store) == 0
        await put_secret(store, 3, text="sealed with another key")
        assert await restarts(store) == 0
        await put_secret(store, 4)
        assert await restarts(store) == 1
        assert await restarts(store, "still") == 0
        assert await restarts(store, namespace="other") == 0
        found = await store.get(Key(Release.kind, "default", "web.2"))
        assert isinstance(found, Release)
        assert found.spec.cause == "restart: secret db changed"


async def test_a_change_while_no_controller_runs_is_found_later() -> None:
    store = MemoryStore()
    await put_secret(store, 0)
    await store.commit(Put(make()))
    async with controllers(store):
        assert await restarts(store) == 0
    await put_secret(store, 1)
    async with controllers(store):
        assert await restarts(store) == 1
    async with controllers(store):
        assert await restarts(store) == 1


async def test_a_secret_that_comes_goes_and_comes_back_restarts_once() -> None:
    store = MemoryStore()
    await store.commit(Put(make()))
    async with controllers(store):
        await put_secret(store, 0)
        assert await restarts(store) == 0
        found = await store.get(Key(Secret.kind, "default", "db"))
        assert found is not None
        await store.commit(Delete(found.key, found.meta.version))
        assert await restarts(store) == 0
        await put_secret(store, 0)
        assert await restarts(store) == 1


async def wanted(store: Store) -> list[dict[str, str] | None]:
    await settle(300)
    found = (await store.list(Instance.kind)).items
    return [each.spec.secrets for each in found if isinstance(each, Instance)]


async def place(store: Store) -> None:
    """Give all instances a node, as the scheduler does."""
    for each in (await store.list(Instance.kind)).items:
        if isinstance(each, Instance) and not each.spec.node:
            await store.commit(Put(each.bound("n1", at=0.0)))


async def test_instances_get_the_content_id_of_a_changed_secret_and_nothing_restarts() -> None:
    store = MemoryStore()
    await put_secret(store, 3)
    await store.commit(Put(signalled()))
    async with controllers(store):
        await settle(300)
        await place(store)
        assert await wanted(store) == [None, None]
        await put_secret(store, 3, text="sealed with another key")
        assert await wanted(store) == [None, None]
        await put_secret(store, 4)
        secret = await store.get(Key(Secret.kind, "default", "db"))
        assert isinstance(secret, Secret)
        assert await wanted(store) == [{"db": secret.content_id}] * 2
        assert await restarts(store) == 0
    await put_secret(store, 5)
    async with controllers(store):
        secret = await store.get(Key(Secret.kind, "default", "db"))
        assert isinstance(secret, Secret)
        assert await wanted(store) == [{"db": secret.content_id}] * 2
