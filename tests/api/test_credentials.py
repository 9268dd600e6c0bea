"""Credentials of nodes are renewed by their agents: the old one is good for a while, and then it is not."""

from typing import Any

import msgspec
import pytest

from mandor.client.aio import Client
from mandor.errors import Conflict, Forbidden, Invalid, NotFound, Unauthenticated, Unsupported
from mandor.model.meta import Key
from mandor.model.node import RENEWS, Node
from mandor.model.record import PreviousSecret, Token
from mandor.store.base import Put
from tests.api.conftest import Api, StartApi

SECRET = "ab" * 32
OTHER = "cd" * 32


async def joined(api: Api, *, renews: bool = True) -> str:
    """What the node n1 shows."""
    joiner = await api.client(await api.token("join", "join:first"))
    credential = (await joiner.call("POST", "/v1/nodes/n1/join", dict, body={}))["credential"]
    if renews:
        node = await node_of(api)
        facts = {RENEWS: "yes"}
        await api.store.commit(Put(node.changed(status=msgspec.structs.replace(node.status, facts=facts))))
    return str(credential)


async def node_of(api: Api) -> Node:
    found = await api.store.get(Key("node", "", "n1"))
    assert isinstance(found, Node)
    return found


async def pass_time(api: Api, *, at_least: float = 3000) -> None:
    """Until the time of the old one is over."""
    token = await api.store.get(Key("token", "", "node.n1"))
    assert isinstance(token, Token)
    former = token.spec.former
    assert former is not None
    assert former.until > api.parts.clock.now() + at_least
    spec = msgspec.structs.replace(token.spec, former=PreviousSecret(former.hash, until=1.0))
    await api.store.commit(Put(token.changed(spec=spec)))


async def renew(client: Client, secret: str = SECRET) -> None:
    await client.call("POST", "/v1/nodes/n1/credential", dict, body={"secret": secret})


async def admits(api: Api, text: str) -> bool:
    client = await api.client(text)
    try:
        await client.call("GET", "/v1/nodes/n1", dict)
    except Unauthenticated:
        return False
    return True


async def test_an_order_to_renew_reaches_the_node_and_ends_when_it_has(api: Api) -> None:
    credential = await joined(api)
    admin = await api.client(await api.token("admin", "user:ani"))
    told = await admin.call("POST", "/v1/nodes/n1/renew-credential", dict, body={"overlap_seconds": 600})
    assert told["spec"]["renewal"]["overlap_seconds"] == 600
    assert (await node_of(api)).spec.renewal is not None
    await renew(await api.client(credential))
    assert (await node_of(api)).spec.renewal is None
    token = await admin.call("GET", "/v1/tokens/node.n1", dict)
    assert token["spec"]["hash"] == token["spec"]["former"]["hash"] == "", "nobody reads them"


async def test_both_are_good_until_the_old_one_ends(api: Api) -> None:
    old = await joined(api)
    new = f"mdr_node.n1_{SECRET}"
    assert not await admits(api, new)
    await renew(await api.client(old))
    assert await admits(api, old)
    assert await admits(api, new)
    await pass_time(api)
    assert not await admits(api, old)
    assert await admits(api, new)


async def test_repeating_a_renewal_changes_nothing_and_an_old_credential_cannot_renew(api: Api) -> None:
    old = await api.client(await joined(api))
    await renew(old)
    before = await api.store.get(Key("token", "", "node.n1"))
    await renew(old)
    assert await api.store.get(Key("token", "", "node.n1")) == before
    with pytest.raises(Forbidden, match="the old credential of n1 cannot renew it"):
        await renew(old, OTHER)
    await renew(await api.client(f"mdr_node.n1_{SECRET}"), OTHER)


async def test_a_watch_that_was_begun_with_the_old_one_ends_with_it(api: Api) -> None:
    credential = await joined(api)
    caller = await api.parts.auth.bearer(credential)
    await renew(await api.client(credential))
    await api.parts.auth.check_valid(caller)
    await pass_time(api)
    with pytest.raises(Unauthenticated):
        await api.parts.auth.check_valid(caller)


async def test_a_renewal_that_is_impossible_or_forbidden_is_refused_with_the_reason(api: Api) -> None:
    credential = await joined(api, renews=False)
    admin = await api.client(await api.token("admin", "user:ani"))
    with pytest.raises(Unsupported, match="cannot renew its credential") as caught:
        await admin.call("POST", "/v1/nodes/n1/renew-credential", dict, body={})
    assert "upgrade the agent" in str(caught.value.hint)
    with pytest.raises(NotFound):
        await admin.call("POST", "/v1/nodes/n9/renew-credential", dict, body={})
    with pytest.raises(Forbidden):
        await renew(admin)
    with pytest.raises(Forbidden):
        await (await api.client(credential)).call("POST", "/v1/nodes/n1/renew-credential", dict, body={})
    with pytest.raises(Invalid):
        await renew(await api.client(credential), "short")
    object.__setattr__(api.parts, "everywhere", lambda: frozenset({"watch"}))
    for client, path, body in (
        (admin, "/v1/nodes/n1/renew-credential", {}),
        (await api.client(credential), "/v1/nodes/n1/credential", {"secret": SECRET}),
    ):
        with pytest.raises(Unsupported, match="not every server"):
            await client.call("POST", path, dict, body=body)


async def test_the_servers_show_when_it_is_to_be_renewed(start_api: StartApi) -> None:
    api = await start_api(tokens_required=True, credential_age_seconds=86_400.0)
    joiner = await api.client(await api.token("join", "join:first"))
    first = await joiner.call("POST", "/v1/nodes/n1/join", dict, body={})
    assert 0.8 * 86_400 < first["renew_seconds"] <= 86_400
    node = await api.client(first["credential"])
    renewed = await node.call("POST", "/v1/nodes/n1/credential", dict, body={"secret": SECRET})
    assert 0.8 * 86_400 < renewed["renew_seconds"] <= 86_400
    again = await node.call("POST", "/v1/nodes/n1/join", dict, body={})
    assert again["renew_seconds"] <= 86_400


async def test_without_a_maximum_age_a_credential_is_renewed_only_on_request(api: Api) -> None:
    joiner = await api.client(await api.token("join", "join:first"))
    assert (await joiner.call("POST", "/v1/nodes/n1/join", dict, body={}))["renew_seconds"] is None


async def test_the_new_one_lasts_as_long_as_the_old_one_did_and_is_as_old_as_it_is(api: Api) -> None:
    await joined(api)
    admin = await api.client(await api.token("admin", "user:ani"))
    wanted = {"role": "node", "identity": "n1", "expires_seconds": 1000}
    old = await admin.call("POST", "/v1/tokens", dict, body=wanted)
    before = await token_of(api)
    past = before.changed(
        meta=msgspec.structs.replace(before.meta, created_at=before.meta.created_at - 700),
        spec=msgspec.structs.replace(before.spec, expires_at=before.spec.expires_at - 700),
    )
    await api.store.commit(Put(past))
    answer = await (await api.client(old["token"])).call(
        "POST", "/v1/nodes/n1/credential", dict, body={"secret": SECRET}
    )
    after = await token_of(api)
    assert after.lasts_seconds == pytest.approx(1000, abs=1)
    assert after.meta.created_at > past.meta.created_at + 600
    assert answer["until"] == past.spec.expires_at, "the old one is not good for longer than it would have been"
    assert answer["renew_seconds"] == pytest.approx(633, abs=40)


async def issued(api: Api, **more: object) -> dict[str, Any]:
    """Another credential for n1, made by hand."""
    admin = await api.client(await api.token("admin", "user:ani"))
    made: dict[str, Any] = await admin.call("POST", "/v1/tokens", dict, body={"role": "node", "identity": "n1", **more})
    return made


async def test_a_credential_created_by_hand_leaves_the_agents_valid_for_the_overlap(api: Api) -> None:
    old = await joined(api)
    made = await issued(api)
    assert made["former_until"] == pytest.approx(api.parts.clock.now() + 3600, abs=60)
    assert await admits(api, old)
    assert await admits(api, made["token"])
    with pytest.raises(Forbidden, match="the old credential of n1 cannot renew it"):
        await renew(await api.client(old))
    await pass_time(api)
    assert not await admits(api, old)
    assert await admits(api, made["token"])
    assert (await issued(api))["former_until"], "by then there is room for another"


async def test_without_an_overlap_all_that_was_before_ends_at_once(api: Api) -> None:
    first = await joined(api)
    second = await issued(api)
    third = await issued(api, overlap_seconds=0)
    assert third["former_until"] == 0
    assert [await admits(api, each) for each in (first, second["token"], third["token"])] == [False, False, True]


async def test_a_second_credential_within_the_overlap_is_refused(api: Api) -> None:
    old = await joined(api)
    made = await issued(api)
    with pytest.raises(Conflict, match="the former credential of n1 is still valid") as caught:
        await issued(api)
    assert "overlap of 0" in str(caught.value.hint)
    assert await admits(api, old)
    assert await admits(api, made["token"])


async def test_the_old_one_is_not_good_for_longer_than_it_would_have_been_or_than_the_new_one_is(api: Api) -> None:
    await joined(api)
    ends = (await issued(api, expires_seconds=500))["expires_at"]
    await pass_time(api, at_least=400)
    made = await issued(api, expires_seconds=5000, overlap_seconds=900)
    assert made["former_until"] == ends
    await pass_time(api, at_least=400)
    made = await issued(api, expires_seconds=100)
    assert made["former_until"] == made["expires_at"]


async def test_a_node_that_has_not_joined_has_no_credential_to_wait_for(api: Api) -> None:
    first, second = await issued(api), await issued(api)
    assert (first["former_until"], second["former_until"]) == (0, 0)
    assert not await admits(api, first["token"])


async def test_while_not_every_server_knows_of_overlaps_one_has_to_show_that_there_is_none(api: Api) -> None:
    await joined(api)
    object.__setattr__(api.parts, "everywhere", lambda: frozenset({"watch"}))
    with pytest.raises(Unsupported, match="not every server"):
        await issued(api)
    assert (await issued(api, overlap_seconds=0))["former_until"] == 0


async def token_of(api: Api) -> Token:
    found = await api.store.get(Key("token", "", "node.n1"))
    assert isinstance(found, Token)
    return found
