"""The client: fails over between servers, raises the server's errors, and trusts only configured certificates."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.utils import formatdate
from pathlib import Path

import pytest
import trustme

from mandor.api.app import build_app
from mandor.api.heartbeat import Heartbeats
from mandor.api.http.server import ApiServer, ServerTls, open_socket
from mandor.api.parts import ApiParts
from mandor.api.settings import ApiSettings
from mandor.client.aio import Client, flowing
from mandor.errors import BY_CODE, Invalid, MandorError, NotFound, Unavailable
from mandor.lib.clock import SystemClock
from mandor.model.meta import Key
from mandor.sim.virtual import run_virtual
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.store.remote import RemoteStore
from mandor.testing.store import make_node
from tests.api.conftest import StartApi
from tests.components.ports import free_port


async def test_a_client_moves_on_to_a_server_that_answers_and_stays_there(start_api: StartApi) -> None:
    store = MemoryStore()
    first = await start_api(store=store, tokens_required=False)
    second = await start_api(store=store, tokens_required=False)
    async with Client([f"http://127.0.0.1:{free_port()}", first.url, second.url]) as client:
        await client.request("GET", "/v1/nodes")
        assert client.server == first.url
        remote = RemoteStore(client)
        await remote.commit(Put(make_node("n1")))
        first.server.stop()
        async with asyncio.timeout(30):
            while client.server != second.url:
                try:
                    await client.request("GET", "/v1/nodes")
                except Unavailable:
                    continue
        await remote.commit(Put(make_node("n2")))
        assert await remote.get(Key("node", "", "n2")) is not None
        watch = remote.watch("node", since=0)
        assert [change.key.name for change in await anext(watch) if not change.bookmark] == ["n1", "n2"]


async def test_no_server_at_all_is_unavailable_with_their_addresses() -> None:
    urls = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    async with Client(urls) as client:
        for attempt in (
            client.request("GET", "/v1/nodes"),
            client.request("POST", "/v1/commit", body=b"{}"),
            client.dial("/v1/sessions/x"),
            anext(RemoteStore(client).watch("node", since=0)),
            RemoteStore(client).list("node"),
        ):
            with pytest.raises(Unavailable) as caught:
                await attempt
            assert urls[0] in caught.value.message
    with pytest.raises(Invalid):
        Client([])


@asynccontextmanager
async def answering(*answers: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that sends a given answer, closes the connection, and records its requests."""
    asked: list[bytes] = []
    left = list(answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        if left:
            writer.write(left.pop(0))
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked


async def test_a_write_whose_answer_is_lost_is_not_sent_again() -> None:
    """A request that may have been processed is not retried."""
    async with answering() as (url, asked), Client([url, url.replace("127.0.0.1", "localhost")]) as client:
        with pytest.raises(Unavailable):
            await RemoteStore(client).commit(Put(make_node("n1")))
        assert len(asked) == 1
        with pytest.raises(Unavailable):
            await client.request("GET", "/v1/nodes")
        assert len(asked) >= 3


@pytest.mark.parametrize("code", sorted(BY_CODE))
async def test_every_error_comes_back_as_what_it_was(code: str) -> None:
    body = b'{"code":"%b","detail":"so it is","hint":"do that","version":7,"status":400}' % code.encode()
    head = b"HTTP/1.1 400 Bad\r\ncontent-type: application/problem+json\r\nconnection: close\r\n\r\n"
    async with answering(head + body) as (url, _), Client([url]) as client:
        with pytest.raises(MandorError) as caught:
            await client.request("POST", "/v1/commit", body=b"{}")
    assert type(caught.value) is BY_CODE[code]
    assert (caught.value.message, caught.value.hint) == ("so it is", "do that")
    assert caught.value.facts == {"version": 7}


async def test_an_answer_that_is_no_problem_document_is_an_error_all_the_same() -> None:
    head = b"HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\n\r\n<html>nginx</html>"
    async with answering(head) as (url, _), Client([url]) as client:
        with pytest.raises(Unavailable):
            await client.request("POST", "/v1/commit", body=b"{}")


async def test_a_server_that_never_answers_is_unavailable() -> None:
    ended = asyncio.Semaphore(0)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        ended.release()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        async with Client([url], timeout_seconds=0.2) as client:
            with pytest.raises(Unavailable):
                await client.request("GET", "/v1/nodes")
            with pytest.raises(Unavailable):
                await anext(RemoteStore(client).watch("node", since=0))
        async with asyncio.timeout(30):
            for _ in range(2):
                await ended.acquire()


async def _until(event: asyncio.Event) -> None:
    await event.wait()


async def _until_eof(reader: asyncio.StreamReader) -> None:
    await reader.read()


class Hanging:
    """Takes connections and requests; whether it lives, and how long an answer takes, is for the test to say."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.lives = False
        self.answers = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            line = (await reader.readuntil(b"\r\n\r\n")).decode().split(" HTTP")[0]
            if line != "GET /healthz":
                self.asked.append(line)
                waiting = [asyncio.create_task(each) for each in (_until(self.answers), _until_eof(reader))]
                await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for each in waiting:
                    each.cancel()
            elif not self.lives:
                await reader.read()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # whoever asked has given up
        finally:
            writer.close()


@asynccontextmanager
async def hanging(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, Hanging]]:
    monkeypatch.setattr("mandor.client.aio.DOUBT_SECONDS", 0.05)
    monkeypatch.setattr("mandor.client.aio.LIFE_SECONDS", 0.2)
    hanging = Hanging()
    server = await asyncio.start_server(hanging.serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", hanging
        hanging.answers.set()


@pytest.mark.req("S0-30")
async def test_a_server_that_hangs_is_passed_over(start_api: StartApi, monkeypatch: pytest.MonkeyPatch) -> None:
    living = await start_api(tokens_required=False)
    async with hanging(monkeypatch) as (url, hangs), Client([url, living.url]) as client, asyncio.timeout(25):
        assert await client.request("GET", "/v1/nodes")
        assert hangs.asked == ["GET /v1/nodes"]
        assert client.server == living.url


@pytest.mark.req("S0-30")
async def test_a_server_that_lives_may_take_its_time(start_api: StartApi, monkeypatch: pytest.MonkeyPatch) -> None:
    other = await start_api(tokens_required=False)
    async with hanging(monkeypatch) as (url, slow), Client([url, other.url]) as client, asyncio.timeout(25):
        slow.lives = True
        asking = asyncio.ensure_future(client.request("POST", "/v1/slow", body=b"{}"))
        await asyncio.sleep(0.5)  # ten times as long as it takes to doubt
        assert not asking.done()
        slow.answers.set()
        assert await asking == b"{}"
        assert client.server == url


@pytest.mark.req("S0-30")
async def test_a_write_to_a_server_that_hangs_is_not_sent_to_another(
    start_api: StartApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    living = await start_api(tokens_required=False)
    async with hanging(monkeypatch) as (url, hangs), Client([url, living.url]) as client, asyncio.timeout(25):
        with pytest.raises(Unavailable, match="hangs"):
            await RemoteStore(client).commit(Put(make_node("n1")))
        assert hangs.asked == ["POST /v1/commit"]
        assert not (await living.store.list("node")).items
        assert client.server == living.url, "the next one goes there"
        await RemoteStore(client).commit(Put(make_node("n2")))


@pytest.mark.req("S0-30")
async def test_the_streams_of_a_server_that_hangs_end(start_api: StartApi, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = [await start_api(tokens_required=False) for _ in range(2)]
    monkeypatch.setattr("mandor.client.aio.DOUBT_SECONDS", 0.05)
    async with Client([first.url, second.url]) as client, asyncio.timeout(25):
        watch = RemoteStore(client).watch("node", since=0)
        await anext(watch)
        waiting = asyncio.ensure_future(anext(watch))
        # From now on nobody answers but on the stream that stands.
        monkeypatch.setattr(Client, "_lives", lambda self, server: asyncio.sleep(0, False))
        monkeypatch.setattr(Client, "_exchange", lambda *given: asyncio.Event().wait())
        with pytest.raises(Unavailable):
            await client.request("GET", "/v1/nodes")
        with pytest.raises(Unavailable):
            await waiting


@asynccontextmanager
async def stalling(beginning: bytes) -> AsyncIterator[str]:
    """The address of a server that begins every answer so, and ends none."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline() != b"\r\n":
            pass
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n" + beginning)
        await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"


@pytest.mark.req("S0-30")
async def test_an_answer_that_stops_in_the_middle_is_not_waited_for(
    start_api: StartApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mandor.client.aio.STALL_SECONDS", 0.1)
    api = await start_api(tokens_required=False)
    async with stalling(b'{"revision":1}\n') as url, asyncio.timeout(25):
        async with Client([url]) as client:
            for attempt in (
                client.request("GET", "/v1/nodes"),
                client.request("POST", "/v1/commit", body=b"{}"),
                RemoteStore(client).list("node"),
            ):
                with pytest.raises(Unavailable, match="the response stalled"):
                    await attempt
        async with Client([url, api.url]) as client:
            assert await client.request("GET", "/v1/nodes")
            assert client.server == api.url


def test_an_answer_that_goes_on_may_take_longer_than_a_stall() -> None:
    class Slow:
        def __init__(self, *pauses: float) -> None:
            self._pauses = list(pauses)

        async def readany(self) -> bytes:
            if not self._pauses:
                return b""
            await asyncio.sleep(self._pauses.pop(0))
            return b"x"

    async def read(*pauses: float) -> bytes:
        return b"".join([piece async for piece in flowing(Slow(*pauses))])  # type: ignore[arg-type]

    assert run_virtual(read(4.5, 4.5, 4.5)) == b"xxx"
    with pytest.raises(TimeoutError, match="the response stalled"):
        run_virtual(read(1, 5.5))


@asynccontextmanager
async def serving_tls(cert: Path, key: Path) -> AsyncIterator[str]:
    """Its address."""
    listener = open_socket("127.0.0.1", 0)
    url = f"https://127.0.0.1:{listener.getsockname()[1]}"
    store, clock = MemoryStore(), SystemClock()
    parts = ApiParts(store, clock, Heartbeats(store, clock, "s1", url), ApiSettings(tokens_required=False))
    server = ApiServer(build_app(parts), parts, listener, tls=ServerTls(cert, key))
    serving = asyncio.create_task(server.serve())
    await server.listening()
    yield url
    server.stop()
    await serving


async def test_tls_works_with_the_right_authority_and_not_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, other = trustme.CA(), trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    cert, key, ca, wrong = (tmp_path / name for name in ("cert.pem", "key.pem", "ca.pem", "wrong.pem"))
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(ca))
    other.cert_pem.write_to_path(str(wrong))
    async with serving_tls(cert, key) as url:
        async with Client([url], ca_file=str(ca)) as client:
            assert await client.request("GET", "/healthz")
            with pytest.raises(NotFound):
                await client.request("GET", "/v1/nodes/n1")
        for wrong_ca in (str(wrong), ""):
            async with Client([url], ca_file=wrong_ca) as client:
                with pytest.raises(Unavailable, match=r"(?i)certificate"):
                    await client.request("GET", "/healthz")
    assert "eof_received" not in caplog.text, "how a connection ends is another matter there"


async def test_a_new_certificate_is_taken_up_and_a_broken_one_is_not(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mandor.api.http.server.CERTIFICATE_TICKS", 2)
    old, new = trustme.CA(), trustme.CA()
    cert, key, new_ca = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "new.pem"
    new.cert_pem.write_to_path(str(new_ca))

    def put(authority: trustme.CA, *, key_of: trustme.CA | None = None) -> None:
        issued = authority.issue_cert("127.0.0.1")
        keyed = key_of.issue_cert("127.0.0.1") if key_of else issued
        keyed.private_key_pem.write_to_path(str(key))
        issued.cert_chain_pems[0].write_to_path(str(cert))

    async def trusted(url: str) -> bool:
        async with Client([url], ca_file=str(new_ca)) as client:
            try:
                return bool(await client.request("GET", "/healthz"))
            except Unavailable:
                return False

    put(old)
    async with serving_tls(cert, key) as url, asyncio.timeout(60):
        assert not await trusted(url)
        put(new, key_of=old)
        while "cannot load the certificate" not in caplog.text:
            await asyncio.sleep(0.2)
        put(new)
        while not await trusted(url):
            await asyncio.sleep(0.2)


async def test_a_client_knows_how_far_its_clock_is_ahead() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        date = formatdate(time.time() - 3600, usegmt=True)
        writer.write(f"HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, Client([f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"]) as client:
        assert client.ahead_seconds == 0
        await client.request("GET", "/healthz")
        assert 3590 < client.ahead_seconds < 3700


async def test_a_port_that_is_taken_reports_it() -> None:
    taken = open_socket("127.0.0.1", 0)
    with taken, pytest.raises(Unavailable) as caught:
        open_socket("127.0.0.1", taken.getsockname()[1])
    assert "--listen" in (caught.value.hint or "")
