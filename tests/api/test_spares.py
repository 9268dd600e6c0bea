"""Spares over HTTP: what is refused, and what is asked for twice. Made they are in tests/e2e/test_spares.py."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.api.routes import spares
from mandor.model.meta import Key
from mandor.model.spare import Spare
from mandor.store.base import Put
from tests.api.conftest import Api, StartApi
from tests.scenarios.make import make_node


def wanted(**more: Any) -> dict[str, Any]:
    return {"size": {"cpu": 4, "memory": 1024}, "cluster": "prod", **more}


async def ask(api: Api, path: str, body: Any, token: str = "", method: str = "POST") -> tuple[int, dict[str, Any]]:
    sent: dict[str, Any] = {"skip_auto_headers": ["Content-Type"]} if body is None else {"json": body}
    async with (await api.session(token)).request(method, path, **sent) as response:
        return response.status, await response.json()


@pytest.fixture
async def prod(start_api: StartApi) -> Api:
    """A server that knows one cluster."""
    api = await start_api(tokens_required=False, clusters=("prod",))
    await api.store.commit(Put(make_node("bm-0")))
    return api


@pytest.mark.parametrize(
    ("body", "path"),
    [
        (wanted(cluster="prd"), "cluster"),
        (wanted(cluster=""), "cluster"),
        (wanted(pool="nowhere"), "pool"),
        (wanted(pool="No Pool"), None),
        (wanted(count=0), "$.count"),
        (wanted(count=51), "$.count"),
        (wanted(count="two"), "$.count"),
        (wanted(size={"cpu": 0, "memory": 1}), "$.size.cpu"),
        (wanted(size={"cpu": -4, "memory": 1}), "$.size.cpu"),
        (wanted(size={"cpu": 1, "memory": 10**18}), "$.size.memory"),
        (wanted(size={"cpu": 1}), "$.size"),
        (wanted(release_after_seconds=-1), "$.release_after_seconds"),
        (wanted(surprise=1), None),
        ([], None),
    ],
)
async def test_bad_input_is_refused_with_a_code_and_leaves_nothing(prod: Api, body: Any, path: str | None) -> None:
    status, problem = await ask(prod, "/spare/prepare", body)
    assert (status, problem["code"]) == (400, "invalid"), problem
    assert path is None or problem["path"] == path
    assert not (await prod.store.list(Spare.kind)).items


async def test_a_cluster_that_is_nearly_right_is_suggested_and_without_any_it_is_reported_how(
    prod: Api, dev: Api
) -> None:
    assert "prod" in (await ask(prod, "/spare/prepare", wanted(cluster="prd")))[1]["hint"]
    assert "--pipelines FILE" in (await ask(dev, "/spare/prepare", wanted()))[1]["hint"]


@pytest.mark.req("S4-46")
async def test_an_unknown_spare_is_a_404(prod: Api) -> None:
    for method, path in (("GET", "/spare/nobody"), ("POST", "/spare/nobody/release")):
        status, problem = await ask(prod, path, None, method=method)
        assert (status, problem["code"]) == (404, "not_found")


async def test_a_release_can_be_repeated_and_the_first_reason_stays(prod: Api) -> None:
    _, made = await ask(prod, "/spare/prepare", wanted())
    for body in ({"reason": "done"}, {"reason": "once more"}, {"gone": True}, None):
        status, _ = await ask(prod, f"/spare/{made['id']}/release", body)
        assert status == 200
    (found,) = (await prod.store.list(Spare.kind)).items
    assert isinstance(found, Spare)
    assert (found.spec.released, found.spec.gone) == ("done", True)


async def test_too_many_spares_are_refused_until_some_have_ended(prod: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spares, "OPEN_MOST", 2)
    made = [await ask(prod, "/spare/prepare", wanted()) for _ in range(2)]
    status, problem = await ask(prod, "/spare/prepare", wanted())
    assert (status, problem["code"]) == (429, "too_many")
    found = await prod.store.get(Key(Spare.kind, "default", made[0][1]["id"]))
    assert isinstance(found, Spare)
    await prod.store.commit(Put(found.moved("Released", 1.0)))
    assert (await ask(prod, "/spare/prepare", wanted()))[0] == 200


async def test_a_viewer_may_look_and_not_ask(start_api: StartApi) -> None:
    api = await start_api(tokens_required=True, clusters=("prod",))
    await api.store.commit(Put(make_node("bm-0")))
    operator = await api.token("operator", "user:ani")
    viewer = await api.token("viewer", "user:eve")
    _, made = await ask(api, "/spare/prepare", wanted(), operator)
    assert (await ask(api, "/spare/prepare", wanted(), viewer))[0] == 403
    assert (await ask(api, f"/spare/{made['id']}/release", None, viewer))[0] == 403
    assert (await ask(api, f"/spare/{made['id']}", None, viewer, "GET"))[0] == 200
    assert (await ask(api, "/spare/prepare", wanted()))[0] == 401
    assert (await ask(api, f"/v1/spares/{made['id']}", None, operator, "DELETE"))[0] == 405
