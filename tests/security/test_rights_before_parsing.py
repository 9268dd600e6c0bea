"""Rights come before parsing: a caller without a right to an operation is refused before its body is read."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import pytest

from mandor.api.app import OPERATIONS
from mandor.api.caller import PARTS, Caller
from mandor.api.gate import READERS, WRITERS
from mandor.api.operation import Operation
from mandor.errors import Forbidden
from mandor.model.record import Role
from tests.api.conftest import Api

UNREADABLE = b"\xff[[[[{{{{: not anything & at: all"
FOR_JOIN = {("POST", "/v1/nodes/{name}/join"), ("GET", "/v1"), ("GET", "/v1/whoami"), ("GET", "/v1/can-i")}
"""All that a join token may use."""
FOR_NODES = {
    ("POST", "/v1/nodes/{name}/join"),
    ("POST", "/v1/nodes/{name}/heartbeat"),
    ("POST", "/v1/nodes/{name}/applied"),
    ("POST", "/v1/nodes/{name}/credential"),
    ("POST", "/v1/commit"),
    ("POST", "/v1/instances/{name}/identity"),
    ("POST", "/v1/nodes/{name}/certificate"),
}
"""Operations with a body that a node's credential may use."""
FOR_VIEWERS = {("POST", "/v1/plan"), ("POST", "/v1/simulate")}
"""Operations with a body that a viewer may use."""


def callers() -> dict[str, tuple[Role, str]]:
    return {"join": ("join", "join:a"), "node": ("node", "node:n1"), "viewer": ("viewer", "user:viewer")}


def allowed(role: str, operation: Operation) -> bool:
    place = (operation.method, operation.path)
    if role == "join":
        return place in FOR_JOIN
    return place in (FOR_NODES if role == "node" else FOR_VIEWERS)


def path_of(operation: Operation) -> str:
    path = operation.path
    for name in ("name", "id", "task_id"):
        path = path.replace(f"{{{name}}}", "n1")
    return path


BODIES = [each for each in OPERATIONS if each.body is not None]


@pytest.mark.parametrize("role", ["join", "node", "viewer"])
async def test_an_unreadable_body_of_a_caller_without_the_right_gets_403(api: Api, role: str) -> None:
    """The body could not be parsed by any operation: an answer other than 403 would come from a parser."""
    session = await api.session(await api.token(*callers()[role]))
    refused = [each for each in BODIES if not allowed(role, each)]
    assert len(refused) > 30
    for each in refused:
        headers = {"content-type": each.takes[0]}
        async with session.request(each.method, path_of(each), data=UNREADABLE, headers=headers) as answer:
            problem: dict[str, Any] = await answer.json()
            assert answer.status == 403, (each.method, each.path, problem)
            assert "may not use" in problem["detail"]


@pytest.mark.parametrize("role", ["join", "node", "viewer"])
async def test_a_body_of_a_caller_with_the_right_is_parsed(api: Api, role: str) -> None:
    session = await api.session(await api.token(*callers()[role]))
    for each in BODIES:
        if allowed(role, each):
            headers = {"content-type": each.takes[0]}
            async with session.request(each.method, path_of(each), data=UNREADABLE, headers=headers) as answer:
                # This server cannot simulate; it says so before it reads the scenario.
                wanted = 503 if each.path == "/v1/simulate" else 400
                assert answer.status == wanted, (each.method, each.path, await answer.text())


async def test_the_body_of_a_refused_request_is_not_even_awaited(api: Api) -> None:
    """Only the head is sent: a server that read the body first would wait for it."""
    token = await api.token("join", "join:a")
    where = urlsplit(api.url)
    reader, writer = await asyncio.open_connection(where.hostname, where.port)
    lines = (
        "POST /v1/apply HTTP/1.1",
        f"host: {where.netloc}",
        f"authorization: Bearer {token}",
        "content-type: application/yaml",
        "transfer-encoding: chunked",
    )
    writer.write("\r\n".join([*lines, "", ""]).encode())
    async with asyncio.timeout(30):
        assert b" 403 " in await reader.readline()
    writer.close()


async def test_the_query_of_a_refused_request_is_not_read(api: Api) -> None:
    session = await api.session(await api.token("join", "join:a"))
    async with session.get("/v1/workloads", params={"nonsense": "1"}) as answer:
        assert answer.status == 403


def test_a_join_token_may_use_nothing_but_joining_and_asking_about_itself() -> None:
    joining = Caller("join:a", "join")
    open_to_it = set()
    for each in OPERATIONS:
        try:
            each.check_caller(joining)
        except Forbidden:
            continue
        open_to_it.add((each.method, each.path))
    assert open_to_it - FOR_JOIN == {("GET", "/healthz"), ("GET", "/readyz")} & open_to_it


def test_every_operation_that_writes_refuses_a_viewer_unless_it_only_rehearses() -> None:
    viewer = Caller("user:viewer", "viewer")
    for each in OPERATIONS:
        if each.method != "GET" and (each.method, each.path) not in FOR_VIEWERS:
            with pytest.raises(Forbidden):
                each.check_caller(viewer)


def test_gates_name_only_parts_that_there_are() -> None:
    for each in OPERATIONS:
        gate = each.gate or (READERS if each.method == "GET" else WRITERS)
        assert gate.parts <= PARTS
        assert gate.users or gate.parts
