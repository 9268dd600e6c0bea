"""Attacks on join tokens: expired, used up, for another pool, label or name, and sent where others can read them."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme

from mandor.api.auth import Auth, make_token
from mandor.api.http.request import Source
from mandor.client.aio import Client
from mandor.client.sync import Client as SyncClient
from mandor.errors import Conflict, Forbidden, Invalid, Unauthenticated, Unavailable, Unsupported
from mandor.lib.clock import ManualClock
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.record import Token
from mandor.roots.key_files import KeyFiles
from mandor.store.base import Delete, Put
from mandor.store.memory import MemoryStore
from tests.api.conftest import Api, StartApi
from tests.security.tls_api import Secure, secure_api

DAY = 86_400.0


async def made(api: Api, **terms: object) -> dict[str, object]:
    admin = await api.client(await api.token("admin", "user:ani"))
    return await admin.call("POST", "/v1/tokens", dict, body={"role": "join", "identity": "rack7", **terms})


async def joiner(api: Api, **terms: object) -> Client:
    return await api.client(str((await made(api, **terms))["token"]))


async def join(client: Client, name: str, **body: object) -> dict[str, object]:
    return await client.call("POST", f"/v1/nodes/{name}/join", dict, body=body)


async def node(api: Api, name: str) -> Node | None:
    found = await api.store.get(Key("node", "", name))
    assert found is None or isinstance(found, Node)
    return found


# The end.


async def test_a_join_token_ends_after_a_day_by_default(api: Api) -> None:
    token = await made(api)
    found = await api.store.get(Key("token", "", str(token["name"])))
    assert isinstance(found, Token)
    assert found.spec.expires_at - api.parts.clock.now() == pytest.approx(DAY, abs=60)


async def test_an_expired_join_token_admits_no_node(api: Api) -> None:
    client = await api.client(await api.token("join", "join:x", expires_at=api.parts.clock.now() - 1))
    with pytest.raises(Unauthenticated, match="expired"):
        await join(client, "n1")
    assert await node(api, "n1") is None


# Uses.


async def test_a_used_up_join_token_admits_no_node(api: Api) -> None:
    client = await joiner(api, uses=2)
    await join(client, "n1")
    await join(client, "n2")
    with pytest.raises(Forbidden, match="used up"):
        await join(client, "n3")
    assert await node(api, "n3") is None


async def test_agents_that_join_at_once_through_two_servers_get_no_more_than_the_uses(start_api: StartApi) -> None:
    store = MemoryStore()
    first, second = await start_api(store=store), await start_api(store=store)
    text = str((await made(first, uses=5))["token"])
    clients = [await each.client(text) for each in (first, second)]
    names = [f"n{number}" for number in range(20)]
    results = await asyncio.gather(
        *(join(clients[number % 2], name) for number, name in enumerate(names)), return_exceptions=True
    )
    assert sum(isinstance(each, dict) for each in results) == 5
    assert len((await store.list("node")).items) == 5
    assert all(isinstance(each, dict | Forbidden | Conflict) for each in results), results


async def test_a_join_that_is_repeated_is_one_use(api: Api) -> None:
    client = await joiner(api, uses=1)
    first = await join(client, "n1", secret="a1" * 32)
    again = await join(client, "n1", secret="a1" * 32)
    assert first["credential"] == again["credential"]


# Pool, labels and name.


async def test_a_node_gets_the_pool_and_the_labels_of_its_join_token(api: Api) -> None:
    client = await joiner(api, pool="gpu", labels={"rack": "7"})
    await join(client, "n1")
    found = await node(api, "n1")
    assert found is not None
    assert (found.spec.pool, found.labels) == ("gpu", {"rack": "7"})


@pytest.mark.parametrize(
    "body",
    [{"pool": "secure"}, {"labels": {"rack": "8"}}, {"labels": {"rack": "7", "tier": "secure"}}],
    ids=["pool", "value of a label", "label"],
)
async def test_an_agent_that_asks_for_more_than_its_join_token_allows_is_refused(
    api: Api, body: dict[str, object]
) -> None:
    client = await joiner(api, pool="gpu", labels={"rack": "7"})
    with pytest.raises(Forbidden):
        await join(client, "n1", **body)
    assert await node(api, "n1") is None


async def test_a_node_whose_object_is_deleted_comes_back_in_the_pool_of_its_join_token(api: Api) -> None:
    joined = await join(await joiner(api, pool="gpu", labels={"rack": "7"}), "n1")
    found = await node(api, "n1")
    assert found is not None
    await api.store.commit(Delete(found.key, found.meta.version))
    mine = await api.client(str(joined["credential"]))
    with pytest.raises(Forbidden):
        await join(mine, "n1", pool="secure")
    await join(mine, "n1")
    back = await node(api, "n1")
    assert back is not None
    assert (back.spec.pool, back.labels) == ("gpu", {"rack": "7"})


async def test_a_join_token_of_a_pool_does_not_take_over_a_node_of_another_pool(api: Api) -> None:
    await join(await joiner(api), "n1", pool="secure")
    credential = await api.store.get(Key("token", "", "node.n1"))
    assert credential is not None
    await api.store.commit(Delete(credential.key, credential.meta.version))
    with pytest.raises(Forbidden, match="pool"):
        await join(await joiner(api, pool="gpu"), "n1")


async def test_the_limits_stay_when_a_join_token_is_rotated(api: Api) -> None:
    token = await made(api, uses=1, pool="gpu")
    admin = await api.client(await api.token("admin", "user:ani"))
    text = (await admin.call("POST", f"/v1/tokens/{token['name']}/rotate", dict, body={}))["token"]
    client = await api.client(text)
    await join(client, "n1")
    with pytest.raises(Forbidden):
        await join(client, "n2")


async def test_limits_are_for_join_tokens_only(api: Api) -> None:
    admin = await api.client(await api.token("admin", "user:ani"))
    with pytest.raises(Invalid):
        await admin.call("POST", "/v1/tokens", dict, body={"role": "viewer", "identity": "x", "uses": 1})


async def test_limits_that_an_older_server_would_ignore_are_refused(api: Api) -> None:
    object.__setattr__(api.parts, "everywhere", lambda: frozenset({"tokens"}))
    with pytest.raises(Unsupported):
        await made(api, uses=1)


# The file of the server.


def name_in(file: Path) -> str:
    return file.read_text().split("_")[1]


async def test_the_servers_join_token_is_replaced_before_it_ends(tmp_path: Path) -> None:
    store, clock = MemoryStore(), ManualClock(1_000_000.0)
    keys = KeyFiles(store, clock, tmp_path, admin=False)
    await keys.keep()
    first = name_in(tmp_path / "join.token")
    await keys.keep()
    assert name_in(tmp_path / "join.token") == first
    await clock.advance(DAY * 0.7)
    await keys.keep()
    assert name_in(tmp_path / "join.token") != first
    assert await store.get(Key("token", "", first)) is not None, "an agent may have it still"
    await clock.advance(DAY * 0.7)
    await keys.keep()
    assert await store.get(Key("token", "", first)) is None, "it has ended, and another took its place"


async def test_a_join_token_without_an_end_that_an_older_version_wrote_gets_one(tmp_path: Path) -> None:
    store, clock = MemoryStore(), ManualClock(1_000_000.0)
    old, text = make_token("join", "join:first")
    await store.commit(Put(old))
    (tmp_path / "join.token").write_text(text + "\n")
    await KeyFiles(store, clock, tmp_path, admin=False).keep()
    assert name_in(tmp_path / "join.token") != old.meta.name
    found = await store.get(old.key)
    assert isinstance(found, Token)
    assert found.spec.expires_at == pytest.approx(clock.now() + DAY)


# Where a token may be sent.

ELSEWHERE = ("http://192.0.2.1:8080", "http://127.attacker.example:8080", "http://[2001:db8::1]:8080", "http://server")


@pytest.mark.parametrize("url", ELSEWHERE)
async def test_an_agent_sends_no_token_over_plain_http_to_another_machine(url: str) -> None:
    async with Client([url], token="mdr_a_b") as client:
        with pytest.raises(Invalid, match="plain HTTP"):
            await client.request("GET", "/v1/nodes")
        with pytest.raises(Invalid, match="plain HTTP"):
            await client.dial("/v1/sessions/s1")
        with pytest.raises(Invalid, match="plain HTTP"):
            async with client.stream("/v1/watch"):
                pass


@pytest.mark.parametrize("url", ELSEWHERE)
def test_a_command_sends_no_token_over_plain_http_to_another_machine(url: str) -> None:
    client = SyncClient([url], token="mdr_a_b", connect_seconds=0.2)
    with pytest.raises(Invalid, match="plain HTTP"):
        client.read("/v1")
    with pytest.raises(Invalid, match="plain HTTP"):
        client.websocket("/v1/instances/a/exec", {})


@pytest.mark.parametrize(("scheme", "address"), [("http", "192.0.2.7"), ("ws", "2001:db8::1"), ("http", "10.0.0.1")])
async def test_a_server_refuses_a_token_that_came_over_plain_http_from_another_machine(
    scheme: str, address: str
) -> None:
    store, clock = MemoryStore(), ManualClock(1_000_000.0)
    token, text = make_token("join", "join:first")
    await store.commit(Put(token))
    auth = Auth(store, clock, tokens_required=True)
    headers = {b"authorization": f"Bearer {text}".encode()}
    with pytest.raises(Forbidden, match="plain HTTP"):
        await auth.identify(headers, Source(scheme, address))
    for source in (Source("https", address), Source("http", "127.0.0.1"), Source("ws", "::1")):
        assert (await auth.identify(headers, source)).role == "join"


# First contact.


class ManInTheMiddle:
    """A server with an authority of its own, which answers as Mandor does and keeps what it was sent."""

    def __init__(self) -> None:
        self.received, self.answer = b"", b"{}"
        authority = trustme.CA()
        self.authority = authority.cert_pem.bytes().decode()
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost", "127.0.0.1").configure_cert(self._context)
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return f"https://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aexit__(self, *failure: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65536):
                self.received += data
                head = (
                    f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(self.answer)}\r\n\r\n"
                )
                writer.write(head.encode() + self.answer)
                await writer.drain()
        except (OSError, ssl.SSLError):
            pass
        finally:
            writer.close()


def told(*certificates: str) -> bytes:
    return json.dumps({"fingerprint": "", "certificates": [{"certificate": each} for each in certificates]}).encode()


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[Secure]:
    async with secure_api(tmp_path) as running:
        yield running


@pytest.mark.parametrize("answer", ["its own authority", "both authorities", "the right authority", "nothing"])
async def test_a_man_in_the_middle_never_gets_the_secret_of_a_join_token(secure: Secure, answer: str) -> None:
    token = await secure.token("join", "join:first")
    between = ManInTheMiddle()
    own = between.authority
    answers = {
        "its own authority": told(own),
        "both authorities": told(own, secure.authority.bundle),
        "the right authority": told(secure.authority.bundle),
        "nothing": b"{}",
    }
    between.answer = answers[answer]
    async with between as url:
        link, _ = await secure.agent("n1", token, url=url)
        for _ in range(2):
            with pytest.raises((Invalid, Unavailable)):
                await link.join()
    secret = token.rpartition("_")[2].partition(".")[0]
    assert secret.encode() not in between.received
    assert b"uthorization" not in between.received
    assert b"/v1/ca" in between.received, "it was asked"


async def test_a_man_in_the_middle_never_gets_the_token_of_a_command(
    secure: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(secure.folder / "cache"))
    token = await secure.token("admin", "user:ani")
    between = ManInTheMiddle()
    between.answer = told(between.authority)
    async with between as url:
        with pytest.raises(Invalid, match="does not match the fingerprint"):
            await asyncio.to_thread(SyncClient([url], token=token).read, "/v1")
        assert b"uthorization" not in between.received
        # The authority is known from another command: then the certificate of the server is what does not fit.
        assert (await asyncio.to_thread(SyncClient([secure.url], token=token).read, "/v1"))["version"]
        with pytest.raises(Unavailable, match="certificate"):
            await asyncio.to_thread(SyncClient([url], token=token).read, "/v1")
    assert b"uthorization" not in between.received


async def test_a_forged_file_in_the_cache_of_a_command_is_not_trusted(
    secure: Secure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(secure.folder / "cache"))
    token = await secure.token("admin", "user:ani")
    client = SyncClient([secure.url], token=token)
    await asyncio.to_thread(client.read, "/v1")
    (kept,) = (secure.folder / "cache" / "mandor").glob("*.pem")
    kept.write_text(trustme.CA().cert_pem.bytes().decode())
    assert (await asyncio.to_thread(client.read, "/v1"))["version"], "it was fetched again"


async def test_a_join_token_and_an_address_are_enough_for_a_node_to_join(secure: Secure) -> None:
    link, client = await secure.agent("n1", await secure.token("join", "join:first"))
    await link.join()
    assert (await client.call("GET", "/v1/nodes/n1", dict))["meta"]["name"] == "n1"
