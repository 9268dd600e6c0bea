"""A server without a leading scheduler says who has the table."""

from __future__ import annotations

import pytest

from mandor.errors import Forbidden, NotFound
from mandor.model.meta import Meta
from mandor.model.record import Lease, LeaseSpec
from mandor.store.base import Put
from tests.api.conftest import Api


async def test_the_leader_is_named_where_there_is_no_table(api: Api) -> None:
    admin = await api.client(await api.token("admin", "user:ani"))
    with pytest.raises(NotFound) as nobody:
        await admin.request("GET", "/v1/debug/table")
    assert "no scheduler leads now" in (nobody.value.hint or "")

    lease = Lease(meta=Meta(name="leader-scheduler"), spec=LeaseSpec("s2", 10.0, 0, "http://two:8080"))
    await api.store.commit(Put(lease))
    with pytest.raises(NotFound) as other:
        await admin.request("GET", "/v1/debug/table")
    assert other.value.hint == "use the leader: http://two:8080"


async def test_it_is_not_for_viewers(api: Api) -> None:
    viewer = await api.client(await api.token("viewer", "user:budi"))
    with pytest.raises(Forbidden):
        await viewer.request("GET", "/v1/debug/table")
