"""Rights on /metrics, and its contents."""

from __future__ import annotations

from typing import cast

import pytest

from mandor.api.gauges import ClusterGauges
from mandor.errors import Forbidden
from mandor.model.record import Role
from tests.api.conftest import Api


async def test_metrics_need_a_cluster_wide_role(api: Api) -> None:
    others: tuple[tuple[Role, str], ...] = (("node", "node:n1"), ("join", "join:first"))
    for role, identity in others:
        client = await api.client(await api.token(role, identity))
        with pytest.raises(Forbidden):
            await client.request("GET", "/metrics")
    session = await api.session(await api.token("viewer", "user:budi"))
    async with session.get("/metrics") as answer:
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


async def test_answers_are_counted_by_operation_and_status(api: Api) -> None:
    admin = await api.client(await api.token("admin", "user:ani"))
    await admin.request("GET", "/v1/nodes")
    with pytest.raises(Forbidden):
        await (await api.client(await api.token("join", "join:first"))).request("GET", "/v1/debug/table")
    lines = [line for family in api.parts.request_metrics.families(0) for line in family.lines()]
    assert 'mandor_api_requests_total{operation="list_nodes",code="200"} 1' in lines
    assert 'mandor_api_requests_total{operation="compareTable",code="403"} 1' in lines
    assert "mandor_api_requests_in_flight 0" in lines


async def test_tokens_that_expire_soon_are_counted_by_role(api: Api) -> None:
    clock = api.parts.clock
    for name, role, days in (("ani", "operator", 1), ("budi", "operator", 90), ("n1", "node", 20)):
        await api.token(cast(Role, role), f"{role}:{name}", expires_at=clock.now() + days * 86_400)
    async with ClusterGauges(api.store, api.parts.heartbeats, clock) as gauges:
        await gauges.prepare()
        lines = [line for family in gauges.families() for line in family.lines()]
    assert 'mandor_tokens_ending{role="operator"} 1' in lines
    assert 'mandor_tokens_ending{role="node"} 0' in lines
