"""Which server, who we are, and what happens when a server does not answer."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pytest
import trustme

from mandor.client.aio import Client as AsyncClient
from mandor.client.sync import Client, parse_server
from mandor.errors import Invalid, Unavailable
from mandor.model.meta import Meta
from mandor.model.node import Node
from tests.components.ports import free_port
from tests.unit.cli.conftest import LiveApi, Mandor
from tests.unit.cli.web import Answering, serving


def test_the_server_of_the_command_line_wins(api: LiveApi, mandor: Mandor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MANDOR_SERVER", "http://127.0.0.1:9")
    assert mandor("get", "clusters").code == 1
    assert mandor("--server", api.url, "get", "clusters").code == 0
    assert mandor("get", "clusters", "--server", api.url).code == 0
    assert mandor("--server", "http://127.0.0.1:9", "get", "clusters", "--server", api.url).code == 0


def test_the_dev_cluster_of_this_folder_is_found(
    api: LiveApi, mandor: Mandor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("MANDOR_SERVER")
    (tmp_path / ".mandor").mkdir()
    (tmp_path / ".mandor" / "url").write_text(api.url + "\n")
    assert mandor("get", "clusters").code == 0


def test_a_server_that_is_down_is_passed_over(api: LiveApi, mandor: Mandor) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    assert mandor("--server", f"{dead},{api.url}", "get", "clusters").code == 0
    assert mandor("--server", f"{dead}, {api.url}", "scale", "nobody", "1").err.startswith(
        "error: there is no workload"
    )


class NotReady(Answering):
    status, kind = 503, "application/problem+json"
    body = b'{"code": "unavailable", "detail": "the node n1 is Down", "hint": "check its agent"}'


def test_the_answer_of_a_server_is_reported_and_not_the_failed_connection_to_another(mandor: Mandor) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    with serving(NotReady) as url:
        for servers in (f"{dead},{url}", f"{url},{dead}"):
            shown = mandor("--server", servers, "get", "clusters").err
            assert shown.splitlines() == ["error: the node n1 is Down", "hint: check its agent", "code: unavailable"]


async def test_a_stream_reports_the_answer_of_a_server_and_not_the_failed_connection_to_another() -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    with serving(NotReady) as url:
        for servers in ([dead, url], [url, dead]):
            async with AsyncClient(servers) as client:
                with pytest.raises(Unavailable, match="the node n1 is Down"):
                    async with client.stream("/v1/watch"):
                        pass


def test_a_server_is_asked_last_after_it_failed(api: LiveApi) -> None:
    dead = f"http://127.0.0.1:{free_port()}"
    client = Client([dead, api.url])
    client.list("nodes")
    assert [str(server) for server in client.servers] == [api.url, dead]


def test_without_a_token_a_guarded_cluster_is_closed(guarded_api: LiveApi, mandor: Mandor) -> None:
    told = mandor("--server", guarded_api.url, "get", "nodes")
    assert told.code == 1
    assert "token" in told.err


def test_a_token_opens_a_guarded_cluster(guarded_api: LiveApi, mandor: Mandor, monkeypatch: pytest.MonkeyPatch) -> None:
    token = guarded_api.do(lambda api: api.token("admin", "user:ani"))
    assert mandor("--server", guarded_api.url, "get", "nodes", "--token", token).code == 0
    monkeypatch.setenv("MANDOR_TOKEN", token)
    monkeypatch.setenv("MANDOR_SERVER", guarded_api.url)
    assert mandor("get", "nodes").code == 0
    made = mandor("token", "create", "budi", "--role", "viewer", "-n", "team", "--expires", "30d")
    assert made.code == 0, made.err
    assert made.out.startswith("mdr_")
    assert "user:budi (viewer)" in made.err
    assert "its agent" not in made.err
    listed = mandor("token", "list")
    assert "user:budi" in listed.out
    assert made.out.strip().rpartition("_")[2] not in listed.out
    name = made.out.split("_")[1]
    assert mandor("token", "revoke", name).out == f"token {name} revoked\n"
    monkeypatch.setenv("MANDOR_TOKEN", made.out.strip())
    assert mandor("get", "nodes").code == 1


def test_a_new_credential_for_an_existing_node_comes_with_instructions(api: LiveApi, mandor: Mandor) -> None:
    for _ in range(2):
        made = mandor("token", "create", "n1", "--role", "node")
        assert made.code == 0, made.err
        assert "its agent" not in made.err, "nobody has joined with it"
    api.put(Node(meta=Meta(name="n1")))
    made = mandor("token", "create", "n1", "--role", "node", "--overlap", "2h")
    assert "the agent's current credential expires in 2h at the latest" in made.err
    again = mandor("token", "create", "n1", "--role", "node")
    assert again.code == 1
    assert "the former credential of n1 is still valid" in again.err
    assert mandor("token", "create", "n1", "--role", "node", "--overlap", "0s").code == 0


def test_the_version_of_the_cluster_is_shown(api: LiveApi, mandor: Mandor) -> None:
    assert "cluster c1, epoch 1" in mandor("version").out
    assert mandor("version", "-o", "json").data["server"]["cluster"]["id"] == "c1"
    told = mandor("--server", "http://127.0.0.1:9", "version")
    assert told.code == 0
    assert "server version unknown" in told.err


def test_the_schema_needs_no_server(mandor: Mandor) -> None:
    assert mandor("schema").data["title"] == "Mandor manifest"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://h", "http://h:80"),
        ("https://h/", "https://h:443"),
        ("https://h:1/prefix/", "https://h:1/prefix"),
        ("http://[::1]:80", "http://[::1]:80"),
    ],
)
def test_an_address_may_leave_out_what_is_usual(text: str, shown: str) -> None:
    assert str(parse_server(text)) == shown


# Servers that are none of ours.


@pytest.mark.parametrize(
    ("status", "body"), [(200, b"<html>"), (200, b"[1]"), (200, b""), (404, b"nope"), (500, b"{}"), (502, b'{"a": 1}')]
)
def test_what_is_no_mandor_server_is_reported_as_such(mandor: Mandor, status: int, body: bytes) -> None:
    answer = type("Odd", (Answering,), {"status": status, "body": body, "kind": "text/html"})
    with serving(answer) as url:
        told = mandor("--server", url, "get", "nodes")
    assert told.code == 1
    assert "hint: check that the URL is that of a mandor server" in told.err


def test_an_order_that_was_not_answered_is_not_given_twice() -> None:
    """A POST may have been done; only a person can know whether to try again."""
    heard: list[bytes] = []

    def listen(server: socket.socket) -> None:
        for _ in range(4):
            try:
                peer, _ = server.accept()
            except OSError:
                return
            heard.append(peer.recv(65536))
            peer.close()

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=listen, args=(server,), daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Unavailable, match="did not respond") as caught:
            Client([address, address]).post("/v1/tokens", {})
        assert "check whether it was done" in str(caught.value.hint)
        assert len([each for each in heard if each.startswith(b"POST")]) == 1
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@dataclass
class Stalling:
    """A server that begins every answer and ends none."""

    url: str
    status: str = "200 OK"
    more: str = ""
    heard: list[str] = field(default_factory=list)

    def listen(self, server: socket.socket) -> None:
        peers: list[socket.socket] = []
        with suppress(OSError):
            while True:
                peer, _ = server.accept()
                peers.append(peer)
                self.heard.append(peer.recv(65536).decode().partition(" HTTP")[0])
                head = f"HTTP/1.1 {self.status}\r\ncontent-length: 100\r\n{self.more}\r\n"
                peer.sendall(f'{head}{{"items": ['.encode())
        for peer in peers:
            peer.close()


@pytest.fixture
def stalling(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stalling]:
    monkeypatch.setattr("mandor.client.sync.STALL_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = Stalling(f"http://127.0.0.1:{server.getsockname()[1]}")
        thread = threading.Thread(target=made.listen, args=(server,), daemon=True)
        thread.start()
        yield made
        server.shutdown(socket.SHUT_RDWR)
    thread.join(10)


@pytest.mark.req("S0-30")
@pytest.mark.parametrize("more", ["", "connection: close\r\n"])
def test_a_server_that_stops_in_the_middle_of_its_answer_is_passed_over(
    api: LiveApi, stalling: Stalling, more: str
) -> None:
    stalling.more = more
    client = Client([stalling.url, api.url])
    assert client.list("clusters")[0]
    assert len(stalling.heard) == 1
    assert [str(server) for server in client.servers] == [api.url, stalling.url]


@pytest.mark.req("S0-30")
def test_where_no_other_server_can_be_asked_it_is_reported_what_happened(mandor: Mandor, stalling: Stalling) -> None:
    told = mandor("--server", stalling.url, "get", "nodes")
    assert told.code == 1
    assert "the response stalled" in told.err
    assert "hint: try again" in told.err
    stalling.status = "500 Oops"
    told = mandor("--server", stalling.url, "get", "nodes")
    assert "the server responded with 500 Oops, but the response stalled" in told.err


@pytest.mark.req("S0-30")
def test_an_order_whose_answer_stops_is_not_given_to_another_server(api: LiveApi, stalling: Stalling) -> None:
    client = Client([stalling.url, api.url])
    with pytest.raises(Unavailable, match="the response stalled") as caught:
        client.post("/v1/tokens", {"role": "viewer", "identity": "ani"})
    assert "check whether it was done" in str(caught.value.hint)
    assert stalling.heard == ["GET /healthz", "POST /v1/tokens"]
    assert not client.list("tokens")[0]


# TLS.


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """An https server of a private authority: its address and the authority's certificate."""
    authority = trustme.CA()
    ca_file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca_file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)

    with serving(Answering, context) as url:
        yield url, ca_file


def test_a_certificate_is_checked(secure: tuple[str, Path], mandor: Mandor) -> None:
    url, ca_file = secure
    told = mandor("--server", url, "get", "nodes")
    assert told.code == 1
    assert "the certificate is not trusted" in told.err
    assert "--ca FILE" in told.err
    assert mandor("--server", url, "--ca", str(ca_file), "get", "nodes").code == 0
    assert mandor("--server", url, "get", "nodes", "--ca", "nowhere.pem").code == 1


def test_a_client_needs_a_server() -> None:
    with pytest.raises(Invalid):
        Client([])


class Silent(Answering):
    """Does not even say that it lives."""

    over = threading.Event()
    asked: ClassVar[list[str]] = []

    def answer(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        self.over.wait(30)
        self.close_connection = True

    do_GET = do_POST = do_PATCH = answer  # noqa: N815


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    monkeypatch.setattr("mandor.client.sync.DOUBT_SECONDS", 0.05)
    monkeypatch.setattr("mandor.client.sync.LIFE_SECONDS", 0.2)
    Silent.asked.clear()
    Silent.over.clear()
    with serving(Silent, each_in_a_thread=True) as url:
        yield url, Silent.asked
        Silent.over.set()


@pytest.mark.req("S0-30")
def test_a_server_that_hangs_is_passed_over(api: LiveApi, silent: tuple[str, list[str]]) -> None:
    url, asked = silent
    client = Client([url, api.url])
    assert client.list("nodes")[0] == []
    assert asked == ["GET /v1/nodes?limit=1000", "GET /healthz"]
    assert [str(server) for server in client.servers] == [api.url, url]


@pytest.mark.req("S0-30")
def test_what_is_written_is_not_sent_to_a_server_that_hangs(
    api: LiveApi, mandor: Mandor, silent: tuple[str, list[str]], tmp_path: Path
) -> None:
    url, asked = silent
    (tmp_path / "web.yaml").write_text("name: web\ncommand: [sleep, '1']\n")
    assert mandor("--server", f"{url},{api.url}", "apply", "-f", str(tmp_path / "web.yaml")).code == 0
    assert {each for each in asked if not each.startswith("GET")} == set()
    assert mandor("--server", api.url, "get", "workloads", "web").code == 0


@pytest.mark.req("S0-30")
def test_a_server_that_lives_may_take_its_time(api: LiveApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mandor.client.sync.DOUBT_SECONDS", 0.05)

    class Slow(Answering):
        def answer(self) -> None:
            if self.path != "/healthz":
                threading.Event().wait(0.5)
            super().answer()

        do_GET = do_POST = answer  # noqa: N815

    with serving(Slow, each_in_a_thread=True) as url:
        client = Client([url, api.url])
        assert client.post("/v1/plan", {}) == {"items": [], "revision": 1}
        assert str(client.servers[0]) == url
