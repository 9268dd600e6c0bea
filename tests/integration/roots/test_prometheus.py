"""Queries of Prometheus for autoscaling: valid and invalid answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from mandor.errors import Unavailable
from mandor.model.autoscale import Metric
from mandor.roots.prometheus import ANSWER_MOST, Prometheus, number_in


@asynccontextmanager
async def answering(body: bytes, status: int = 200) -> AsyncIterator[tuple[str, list[str]]]:
    asked: list[str] = []

    async def query(request: web.Request) -> web.Response:
        asked.append(request.query["query"])
        return web.Response(body=body, status=status, headers={"Location": "http://127.0.0.1:9/"})

    app = web.Application()
    app.router.add_get("/api/v1/query", query)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}", asked
    finally:
        await runner.cleanup()


def vector(*values: str) -> bytes:
    result = [{"metric": {}, "value": [1700000000.1, value]} for value in values]
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


async def test_a_query_returns_its_number() -> None:
    async with answering(vector("42.5")) as (url, asked), Prometheus([url]) as prometheus:
        query = 'sum(rate(http_requests_total{job="a b"}[1m]))'
        assert await prometheus.ask(Metric(query=query, target=1, url=f"{url}/")) == 42.5
        assert asked == [query]


async def test_the_first_configured_server_is_the_default_and_other_servers_are_never_queried() -> None:
    async with answering(vector("1")) as (url, asked), Prometheus([url]) as prometheus:
        assert await prometheus.ask(Metric(query="up", target=1)) == 1
        with pytest.raises(Unavailable, match="not one of the configured Prometheus servers"):
            await prometheus.ask(Metric(query="up", target=1, url="http://127.0.0.1:1"))
        assert asked == ["up"]
    async with Prometheus() as nowhere:
        with pytest.raises(Unavailable, match="no Prometheus server is configured"):
            await nowhere.ask(Metric(query="up", target=1))


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (vector(), 200, "0 results"),
        (vector("1", "2"), 200, "2 results"),
        (b'{"status":"error","error":"parse error"}', 400, "parse error"),
        (b"<html>", 502, "status 502"),
        (b"[]", 200, "no success"),
        (b'{"status":"success","data":{"resultType":"matrix","result":[]}}', 200, "a matrix"),
        (b'{"status":"success","data":{"resultType":"scalar","result":[1,"x"]}}', 200, "is not a number"),
        (b'{"status":"success"}', 200, "is not a number"),
        (b" " * (ANSWER_MOST + 10), 200, "more than"),
        (b"", 302, "status 302"),
    ],
)
async def test_an_invalid_answer_is_an_error_with_its_reason(body: bytes, status: int, message: str) -> None:
    async with answering(body, status) as (url, _), Prometheus([url]) as prometheus:
        with pytest.raises(Unavailable, match=message):
            await prometheus.ask(Metric(query="up", target=1, url=url))


async def test_an_unreachable_server_is_an_error() -> None:
    async with Prometheus(loopback=True) as prometheus:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
            await prometheus.ask(Metric(query="up", target=1, url="http://127.0.0.1:1"))


def test_a_scalar_is_a_number() -> None:
    body: dict[str, Any] = {"status": "success", "data": {"resultType": "scalar", "result": [1.0, "7"]}}
    assert number_in(json.dumps(body).encode(), "http://p", 200) == 7.0
