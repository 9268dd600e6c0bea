"""Bad JSON, bad queries, bad names: a problem with code, hint and place, never a 500, nothing stored."""

import asyncio
from io import BytesIO

import pytest

from mandor.api.http.problems import STATUS
from mandor.errors import BY_CODE
from tests.api.conftest import Api, StartApi

GOOD = '{"spec": {"groups": {"main": {"tasks": {"main": {"command": ["sleep"]}}}}}}'


@pytest.mark.req("S2-12")
@pytest.mark.parametrize(
    ("body", "word"),
    [
        (GOOD.replace("command", "comand"), "`command`"),
        (GOOD.replace('["sleep"]', '["sleep"], "resources": {"cpu": "5 horses"}'), "500m"),
        (GOOD.replace('"tasks"', '"replicas": -3, "tasks"'), ">= 0"),
        (GOOD.replace('"tasks"', '"replicas": 1.5, "tasks"'), "int"),
        (GOOD.replace('"tasks"', '"engine": ["proces"], "tasks"'), "`process`"),
        (GOOD.replace('{"spec"', '{"specs": 1, "spec"'), "`spec`"),
        (GOOD.replace('{"spec"', '{"meta": {"name": "other"}, "spec"'), "other"),
        (GOOD.replace('{"spec"', '{"meta": {"namespace": "other"}, "spec"'), "namespace"),
        (GOOD.replace('{"spec"', '{"kind": "node", "spec"'), "node"),
        (GOOD.replace('{"spec"', '{"meta": {"labels": {"": "x"}}, "spec"'), "label"),
        (GOOD.replace('{"spec"', '{"meta": 5, "spec"'), "object"),
        ("[]", "object"),
        ("null", "object"),
        ("{", "truncated"),
        ("", "truncated"),
        ("\x00\x01\x02", "malformed"),
        ('{"spec": NaN}', "malformed"),
        ('{"a":' * 5000, ""),
        ("[" * 200_000, ""),
    ],
)
async def test_a_bad_body_is_refused_in_words(dev: Api, body: str, word: str) -> None:
    session = await dev.session()
    before = (await dev.store.list(None)).revision
    async with session.put(
        "/v1/workloads/web", data=body.encode(), headers={"content-type": "application/json"}
    ) as answer:
        problem = await answer.json(content_type="application/problem+json")
        assert answer.status == 400
    assert problem["code"] == "invalid"
    assert word in f"{problem['detail']} {problem.get('hint', '')}"
    assert (await dev.store.list(None)).revision == before


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/v1/workloads?limit=0", 400),
        ("/v1/workloads?limit=1001", 400),
        ("/v1/workloads?limit=many", 400),
        ("/v1/workloads?limt=5", 400),
        ("/v1/workloads?limit=5&limit=6", 400),
        ("/v1/workloads?labels=a=b=c", 400),
        ("/v1/workloads?labels=(((", 400),
        ("/v1/workloads?labels=a%20in%20(", 400),
        ("/v1/workloads?after=nowhere", 400),
        ("/v1/workloads?namespace=%ff%fe", 400),
        ("/v1/workloads?namespace=" + "x" * 20_000, 414),
        ("/v1/watch?kind=pods", 400),
        ("/v1/watch?since=-1", 400),
        ("/v1/watch?since=99999999", 410),
        ("/v1/workloads/" + "x" * 300, 404),
        ("/v1/workloads/%00", 404),
        ("/v1/workloads/..%2f..%2fetc%2fpasswd", 404),
        ("/v1/nodes/n1/usage", 404),
        ("/v1/instances/web-0/logs", 404),
        ("/v1/workloads/", 404),
        ("/nothing/here", 404),
    ],
)
async def test_a_bad_address_is_refused_in_words(dev: Api, path: str, status: int) -> None:
    import yarl

    session = await dev.session()
    async with session.get(yarl.URL(dev.url + path, encoded=True)) as answer:
        problem = await answer.json(content_type="application/problem+json")
        assert (answer.status, problem["status"]) == (status, status)
    assert BY_CODE[problem["code"]]
    assert problem["detail"]
    assert problem["type"].endswith(problem["code"])


async def test_a_name_of_three_hundred_characters_is_not_stored(dev: Api) -> None:
    session = await dev.session()
    headers = {"content-type": "application/json"}
    for name in ("x" * 300, "x" * 100, "Web", "-web", "w%20b", "w_"):
        async with session.put(f"/v1/workloads/{name}", data=GOOD.encode(), headers=headers) as answer:
            assert answer.status == 400, name
    assert list((await dev.store.list("workload")).items) == []


async def test_a_body_of_ten_mebibytes_is_too_large(dev: Api) -> None:
    session = await dev.session()
    for path in ("/v1/workloads/web", "/v1/nodes/n1"):
        body = BytesIO(b"x" * 10 * 1024 * 1024)
        async with session.put(path, data=body, headers={"content-type": "application/json"}) as answer:
            assert answer.status == 413
            assert (await answer.json(content_type=None))["code"] == "too_large"


def test_every_error_code_has_a_status_and_none_is_made_up() -> None:
    assert set(STATUS) == set(BY_CODE)
    assert all(400 <= status < 600 for status in STATUS.values())


async def test_a_body_that_never_comes_is_not_waited_for(start_api: StartApi) -> None:
    dev = await start_api(tokens_required=False, body_seconds_most=0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(dev.url.rpartition(":")[2]))
    writer.write(b"POST /v1/apply HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/yaml\r\n")
    writer.write(b"content-length: 100\r\n\r\nname: web\n")
    async with asyncio.timeout(30):
        assert (await reader.readline()).startswith(b"HTTP/1.1 408")
    writer.close()
    await writer.wait_closed()


async def test_the_head_of_an_answer_can_be_had_but_not_of_a_stream(dev: Api) -> None:
    session = await dev.session()
    async with session.head("/v1/nodes") as answer:
        assert answer.status == 200
        assert await answer.read() == b""
    async with session.head("/v1/watch") as answer:
        assert answer.status == 405
