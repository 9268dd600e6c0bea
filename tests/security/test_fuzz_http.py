"""Requests that once were answered with 500, and a short run of the fuzzer."""

from __future__ import annotations

import asyncio

import pytest

from tests.api.conftest import Api, StartApi
from tests.security import fuzz_http

GENEROUS = {"strangers_burst": 1_000_000, "strangers_per_second": 1e6, "requests_burst": 1_000_000}


def address(api: Api) -> tuple[str, int]:
    host, _, port = api.url.partition("://")[2].partition(":")
    return host, int(port)


async def status_of(api: Api, *lines: str) -> int:
    reader, writer = await asyncio.open_connection(*address(api))
    writer.write("\r\n".join([*lines, "connection: close", "", ""]).encode())
    async with asyncio.timeout(30):
        answer = await reader.read()
    writer.close()
    return int(answer.split(b" ")[1])


async def test_several_objects_without_a_key_are_refused_in_words(dev: Api) -> None:
    assert await status_of(dev, "GET /v1/objects HTTP/1.1", "host: localhost") == 400


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "[", "http://localhost:80:80", "null", "//", ""])
async def test_an_origin_that_is_no_url_is_foreign(dev: Api, origin: str) -> None:
    assert await status_of(dev, "GET /v1/nodes HTTP/1.1", "host: localhost", f"origin: {origin}") == 403


@pytest.mark.parametrize("tokens_required", [True, False])
async def test_no_hostile_conversation_is_answered_with_500(start_api: StartApi, tokens_required: bool) -> None:
    api = await start_api(tokens_required=tokens_required, **GENEROUS)
    token = await api.token("admin", "user:ani") if tokens_required else ""
    report = await fuzz_http.run(*address(api), seed=19, count=160, token=token)
    assert report.findings == []
    assert len(report.answers) > 5, "it has seen answers of many kinds"


def test_conversations_are_the_same_for_the_same_seed() -> None:
    assert list(fuzz_http.conversations(7, 20)) == list(fuzz_http.conversations(7, 20))
    assert list(fuzz_http.conversations(7, 20)) != list(fuzz_http.conversations(8, 20))
