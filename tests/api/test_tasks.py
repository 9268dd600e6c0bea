"""Machines for virtual machines over HTTP, with the real scheduler and the real worker behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from mandor.baremetal import worker
from mandor.baremetal.request_change import read_request, request_key
from mandor.lib.clock import SystemClock
from mandor.lib.delay import Delay
from mandor.lib.tasks import Background
from mandor.model.claim import DEDICATED
from mandor.model.instance import Instance
from mandor.model.node import Taint
from mandor.model.record import Event
from mandor.model.vm_request import VmRequest
from mandor.roots.settings import ServerSettings
from mandor.roots.tasks import lead
from mandor.scheduler.loop import Scheduler
from mandor.store.base import Delete, Put, Store
from mandor.store.recorder import Recorder
from tests.api.conftest import Api, StartApi
from tests.scenarios.make import make_node

GIB = 1024**3
Session = aiohttp.ClientSession
AT_ONCE = ServerSettings(task_attempts=1)


async def schedule_all(store: Store, settings: ServerSettings, crowded: worker.Crowded = worker.never_crowded) -> None:
    clock = SystemClock()
    async with Background() as tasks:
        pause = Delay(first_seconds=0.05, most_seconds=0.2)
        tasks.start(Scheduler(store, clock, Recorder(store, "scheduler", clock), pause=pause).run())
        tasks.start(lead(store, clock, settings, None, crowded))
        await tasks.wait()


@pytest.fixture
async def tasks() -> AsyncIterator[Background]:
    async with Background() as background:
        yield background


async def start(dev: Api, tasks: Background, settings: ServerSettings = AT_ONCE, machines: int = 2) -> Session:
    for index in range(machines):
        node = make_node(f"bm-{index}", cpu=8, memory=32 * GIB)
        await dev.store.commit(Put(node))
    tasks.start(schedule_all(dev.store, settings))
    return await dev.session()


def wanted(cpu: Any = 4, memory: Any = 8192, pool: str = "default", **more: Any) -> dict[str, Any]:
    return {"requested_cpu": cpu, "requested_memory": memory, "requested_pool": pool, **more}


async def ask(session: Session, body: dict[str, Any]) -> str:
    async with session.post("/schedule", json=body) as response:
        assert response.status == 200, await response.text()
        answer = await response.json()
        assert list(answer) == ["task_id"]
        return str(answer["task_id"])


async def read(session: Session, path: str, method: str = "GET") -> dict[str, Any]:
    async with session.request(method, path) as response:
        assert response.status == 200, await response.text()
        found: dict[str, Any] = await response.json()
        return found


async def result(session: Session, task: str) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while (found := await read(session, f"/result/{task}"))["status"] == "processing":
            assert found == {"status": "processing"}
            await asyncio.sleep(0.02)
    return found


@pytest.mark.req("S4-3")
@pytest.mark.req("S4-4")
@pytest.mark.req("S4-7")
@pytest.mark.req("S4-23")
async def test_a_request_gets_a_machine_and_its_history_is_recorded(dev: Api, tasks: Background) -> None:
    session = await start(dev, tasks, machines=1)
    task = await ask(session, wanted())
    assert await result(session, task) == {"status": "completed", "result": {"name": "bm-0", "ip": ""}}
    story = await read(session, f"/schedule/{task}")
    assert [step["state"] for step in story["history"]] == ["Queued", "Processing", "Placed"]
    assert (await read(session, f"/schedule/{task}/confirm", "POST"))["state"] == "Confirmed"
    assert (await read(session, f"/schedule/{task}", "DELETE"))["state"] == "Released"


@pytest.mark.req("S4-2")
@pytest.mark.req("S4-5")
async def test_without_a_worker_it_shows_that_it_is_being_processed(dev: Api) -> None:
    await dev.store.commit(Put(make_node("bm-0")))
    session = await dev.session()
    assert await read(session, f"/result/{await ask(session, wanted(1, 1))}") == {"status": "processing"}


async def check_recorded_with_its_failure(dev: Api, task: str) -> None:
    """The event and the failure are in one commit, so that no crash can separate them."""
    stored = await read_request(dev.store, request_key(task))
    events = [each for each in (await dev.store.list(Event.kind)).items if isinstance(each, Event)]
    told = [each for each in events if each.spec.reason == "TaskFailed" and each.spec.about == str(stored.key)]
    assert [each.meta.version for each in told] == [stored.meta.version]


@pytest.mark.req("S4-6")
@pytest.mark.req("S4-26")
async def test_what_fits_nowhere_fails_after_its_tries_and_leaves_nothing(dev: Api, tasks: Background) -> None:
    session = await start(dev, tasks, ServerSettings(task_attempts=2))
    task = await ask(session, wanted(cpu=1000))
    assert await result(session, task) == {"status": "failed", "error": "No available nodes"}
    story = await read(session, f"/schedule/{task}")
    assert story["attempts"] == 2
    assert not (await dev.store.list(Instance.kind)).items
    await check_recorded_with_its_failure(dev, task)


async def test_a_placed_virtual_machine_is_an_event_of_the_same_commit(dev: Api, tasks: Background) -> None:
    node = make_node("bm-0", cpu=8)
    await dev.store.commit(Put(node.changed(status=replace(node.status, address="10.0.0.7"))))
    session = await start(dev, tasks, machines=0)
    task = await ask(session, wanted(cpu=8, memory=1024))
    assert (await result(session, task))["status"] == "completed"
    stored = await read_request(dev.store, request_key(task))
    events = [each for each in (await dev.store.list(Event.kind)).items if isinstance(each, Event)]
    (event,) = [each for each in events if each.spec.about == str(stored.key)]
    assert (event.spec.reason, event.spec.type) == ("TaskPlaced", "normal")
    assert event.spec.message == "placed on bm-0 (10.0.0.7)"
    assert event.meta.version == stored.meta.version


@pytest.mark.req("S4-9")
@pytest.mark.parametrize(("meaning", "placed"), [("host", 1), ("class", 2)])
async def test_the_setting_decides_whether_dedicated_virtual_machines_share_a_dedicated_machine(
    start_api: StartApi, tasks: Background, meaning: str, placed: int
) -> None:
    made = await start_api(tokens_required=False, vm_dedicated=meaning)
    node = make_node("bm-0", cpu=16)
    node = node.changed(
        spec=replace(node.spec, taints=(Taint(DEDICATED),)), status=replace(node.status, facts={DEDICATED: "true"})
    )
    await made.store.commit(Put(node), Put(make_node("bm-1", cpu=16)))
    session = await start(made, tasks, machines=0)
    found = [await result(session, await ask(session, wanted(cpu=1, memory=1024, dedicated=True))) for _ in range(2)]
    on_class = [each for each in found if each["status"] == "completed" and each["result"]["name"] == "bm-0"]
    assert len(on_class) == placed


async def test_room_is_held_until_it_is_given_back(dev: Api, tasks: Background) -> None:
    session = await start(dev, tasks, machines=1)
    first = await ask(session, wanted(cpu=8))
    assert (await result(session, first))["status"] == "completed"
    assert (await result(session, await ask(session, wanted(cpu=8))))["status"] == "failed"
    assert (await read(session, f"/schedule/{first}/cancel", "POST"))["state"] == "Cancelled"
    assert (await result(session, await ask(session, wanted(cpu=8))))["status"] == "completed"


@pytest.mark.req("S4-34")
async def test_an_unconfirmed_machine_is_released(dev: Api, tasks: Background) -> None:
    session = await start(dev, tasks, machines=1)
    task = await ask(session, wanted(cpu=8, hold_seconds=0.01))
    async with asyncio.timeout(60):
        while (story := await read(session, f"/schedule/{task}"))["state"] != "Failed":
            await asyncio.sleep(0.05)
    assert (story["reason"], story["status"]) == ("Timeout", "failed")
    await check_recorded_with_its_failure(dev, task)
    assert (await result(session, await ask(session, wanted(cpu=8))))["status"] == "completed"


async def test_forty_at_once_never_get_the_same_room(dev: Api, tasks: Background) -> None:
    session = await start(dev, tasks, machines=3)
    names = await asyncio.gather(*(ask(session, wanted(cpu=2, memory=1024)) for _ in range(40)))
    found = [await result(session, name) for name in names]
    machines = [each["result"]["name"] for each in found if each["status"] == "completed"]
    assert sorted(machines) == sorted(["bm-0", "bm-1", "bm-2"] * 4)


async def test_a_crowd_that_never_goes_does_not_keep_tasks_from_their_machines(
    dev: Api, tasks: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "COURTESY_SECONDS", 0.2)
    await dev.store.commit(Put(make_node("bm-0", cpu=200, memory=200 * GIB)))
    session = await dev.session()
    names = await asyncio.gather(*(ask(session, wanted(cpu=1, memory=1)) for _ in range(2 * worker.ROUND + 1)))
    tasks.start(schedule_all(dev.store, AT_ONCE, lambda: True))
    assert {(await result(session, name))["status"] for name in names} == {"completed"}


@pytest.mark.req("S4-2")
async def test_tasks_that_were_left_undone_are_taken_up(dev: Api, tasks: Background) -> None:
    """Queued, or in the hands of a worker that died: the claim is there already."""
    node = make_node("bm-0", cpu=8, memory=32 * GIB)
    await dev.store.commit(Put(node))
    session = await dev.session()
    queued, begun = await ask(session, wanted()), await ask(session, wanted())
    stored = await dev.store.get(VmRequest(meta=node.meta, spec=None).key._replace(namespace="default", name=begun))  # type: ignore[arg-type]
    assert isinstance(stored, VmRequest)
    await dev.store.commit(Put(stored.moved("Processing", 1.0)), Put(stored.claim))
    tasks.start(schedule_all(dev.store, AT_ONCE))
    assert (await result(session, queued))["status"] == "completed"
    assert (await result(session, begun))["status"] == "completed"
    claims = (await dev.store.list(Instance.kind)).items
    assert {each.meta.name for each in claims} == {f"vm-{queued}", f"vm-{begun}"}


async def test_a_machine_that_is_gone_fails_what_was_placed_there(dev: Api, tasks: Background) -> None:
    session = await start(dev, tasks, machines=1)
    task = await ask(session, wanted())
    assert (await result(session, task))["status"] == "completed"
    node = await dev.store.get(make_node("bm-0").key)
    assert node is not None
    await dev.store.commit(Delete(node.key, node.meta.version))
    async with asyncio.timeout(60):
        while (story := await read(session, f"/schedule/{task}"))["state"] != "Failed":
            await asyncio.sleep(0.05)
    assert story["reason"] == "NodeGone"
    assert not (await dev.store.list(Instance.kind)).items


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (wanted(cpu=0), "$.requested_cpu"),
        (wanted(cpu=-1), "$.requested_cpu"),
        (wanted(memory=0), "$.requested_memory"),
        (wanted(cpu="four"), "$.requested_cpu"),
        (wanted(cpu=10**9), "$.requested_cpu"),
        (wanted(memory=10**30), "$.requested_memory"),
        (wanted(pool="nowhere"), "pool"),
        (wanted(pool="No Pool"), None),
        (wanted(where=["zone ~~ a"]), None),
        ({"requested_cpu": 1}, None),
    ],
)
async def test_bad_input_is_refused_with_a_code_and_a_hint(dev: Api, body: dict[str, Any], path: str | None) -> None:
    await dev.store.commit(Put(make_node("bm-0")))
    async with (await dev.session()).post("/schedule", json=body) as response:
        problem = await response.json()
    assert (response.status, problem["code"]) == (400, "invalid")
    assert path is None or problem["path"] == path
    assert not (await dev.store.list(VmRequest.kind)).items
    assert path is None or problem["hint"], problem


@pytest.mark.req("S4-46")
@pytest.mark.parametrize("path", ["/result/nobody", "/schedule/nobody"])
async def test_an_unknown_task_is_a_404_with_a_code(dev: Api, path: str) -> None:
    async with (await dev.session()).get(path) as response:
        assert (response.status, (await response.json())["code"]) == (404, "not_found")


async def test_what_has_ended_cannot_be_confirmed(dev: Api) -> None:
    await dev.store.commit(Put(make_node("bm-0")))
    session = await dev.session()
    task = await ask(session, wanted())
    await read(session, f"/schedule/{task}/cancel", "POST")
    async with session.post(f"/schedule/{task}/confirm") as response:
        assert (response.status, (await response.json())["code"]) == (409, "conflict")


async def test_tasks_are_listed_by_state_pool_and_machine(dev: Api, tasks: Background) -> None:
    session = await start(dev, tasks, machines=1)
    placed, failed = await ask(session, wanted()), await ask(session, wanted(cpu=999))
    for task in (placed, failed):
        await result(session, task)

    async def listed(query: str) -> set[str]:
        async with session.get(f"/tasks?{query}") as response:
            return {each["task_id"] for each in await response.json()}

    assert await listed("") == {placed, failed}
    assert await listed("state=failed") == {failed}
    assert await listed("node=bm-0") == {placed}
    assert await listed("pool=other") == set()


async def test_too_many_open_requests_are_refused_with_a_retry_time(dev: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mandor.api.tasks.OPEN_MOST", 3)
    await dev.store.commit(Put(make_node("bm-0", cpu=8, memory=32 * GIB)))
    session = await dev.session()
    for _ in range(3):
        await ask(session, wanted())
    async with session.post("/schedule", json=wanted()) as response:
        assert response.status == 429
        assert int(response.headers["Retry-After"]) >= 1
        assert (await response.json())["code"] == "too_many"
    assert len((await dev.store.list(VmRequest.kind)).items) == 3


async def test_a_viewer_may_look_and_not_ask(start_api: StartApi) -> None:
    api = await start_api(tokens_required=True)
    await api.store.commit(Put(make_node("bm-0")))
    viewer = await api.session(await api.token("viewer", "user:eve"))
    async with viewer.post("/schedule", json=wanted()) as response:
        assert response.status == 403
    async with viewer.get("/tasks") as response:
        assert response.status == 200
    async with (await api.session()).post("/schedule", json=wanted()) as response:
        assert response.status == 401
