"""Egress for objects of the API: only hosts that an administrator allows, checked after name resolution."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from mandor.agent.shipping.line import Line
from mandor.agent.shipping.sink import open_sink as open_log_sink
from mandor.errors import Invalid, Unavailable, Unsupported
from mandor.lib.egress import LOOPBACK, STRICT, Egress, Refused, address_of, host_of, special, unwrapped
from mandor.lib.quantity import Seconds
from mandor.lib.secret_files import SecretFiles
from mandor.model.autoscale import Metric
from mandor.model.log_sink import LogSinkSpec
from mandor.model.meta import Meta
from mandor.model.receiver import EventBus, EventBusSpec, Webhook, WebhookSpec
from mandor.notify.secrets import Secrets
from mandor.notify.sinks import open_sink
from mandor.provision.registry import make_provisioner
from mandor.roots.prometheus import Prometheus
from mandor.roots.settings import AgentRootSettings, ServerSettings, load
from mandor.store.memory import MemoryStore
from mandor.testing.sink import message
from tests.api.conftest import Api, StartApi

METADATA = "169.254.169.254"


class Counted:
    """A server on loopback: how many connections it got."""

    def __init__(self) -> None:
        self.connections = 0
        self.port = 0
        self.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await reader.read(1)
        writer.write(self.answer)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def listening() -> AsyncIterator[Counted]:
    found = Counted()
    server = await asyncio.start_server(found.serve, "127.0.0.1", 0)
    found.port = server.sockets[0].getsockname()[1]
    async with server:
        yield found


async def no_secret(reference: str, namespace: str) -> Any:
    return b"a-secret-of-some-length"


async def log_secret(reference: str, namespace: str) -> str:
    return "secret"


# Addresses.


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.1", "2130706433", "0x7f000001", "017700000001", "127.9.9.9", "0.0.0.0", "0", "::", "::1"),
        *("::ffff:127.0.0.1", "::ffff:7f00:1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::"),
        *(
            METADATA,
            f"::ffff:{METADATA}",
            "0xa9fea9fe",
            "64:ff9b::a9fe:a9fe",
            "fe80::1",
            "fe80::1%eth0",
            "fd00:ec2::254",
        ),
        *("224.0.0.1", "ff02::1", "255.255.255.255", "240.0.0.1", "0.1.2.3"),
    ],
)
async def test_no_notation_of_a_special_address_is_allowed_by_default(host: str) -> None:
    with pytest.raises(Refused):
        await STRICT.target(host, 80)


@pytest.mark.parametrize("host", ["10.0.0.7", "192.0.2.1", "8.8.8.8", "2001:db8::1", "::ffff:8.8.8.8"])
async def test_other_addresses_are_allowed_by_default_but_not_with_a_list(host: str) -> None:
    assert (await STRICT.target(host, 80)).addresses
    with pytest.raises(Refused):
        await Egress(["10.1.0.0/16", "hooks.example"]).target(host, 80)


@pytest.mark.parametrize(
    ("allow", "host", "port", "allowed"),
    [
        ("127.0.0.1", "127.0.0.1", 9, True),
        ("127.0.0.1:9090", "127.0.0.1", 9090, True),
        ("127.0.0.1:9090", "127.0.0.1", 22, False),
        ("[::1]:9090", "::1", 9090, True),
        ("127.0.0.0/8", "::ffff:127.0.0.1", 1, True),
        ("10.0.0.0/8", "11.0.0.1", 1, False),
        ("hook.example", "hook.example", 443, True),
        ("hook.example:443", "hook.example", 80, False),
        ("*.example", "a.b.example", 1, True),
        ("*.example", "example", 1, False),
        ("*.example", "evilexample", 1, False),
        ("Hook.Example", "hook.example.", 1, True),
    ],
)
async def test_patterns_allow_what_they_show_and_nothing_else(allow: str, host: str, port: int, allowed: bool) -> None:
    async def nowhere(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    policy = Egress([allow], nowhere)
    if allowed:
        await policy.target(host, port)
    else:
        with pytest.raises(Refused):
            await policy.target(host, port)


@pytest.mark.parametrize(
    "url",
    [
        "http://a@127.0.0.1/",
        "http://8.8.8.8@127.0.0.1/",
        "http://127.0.0.1\\@8.8.8.8/",
        "http://8.8.8.8 @127.0.0.1/",
        "http://[/",
        "http:///x",
        "http://a\r\nb/",
    ],
)
def test_a_url_that_two_parsers_may_read_in_two_ways_is_refused(url: str) -> None:
    with pytest.raises(Refused):
        host_of(url)


def test_addresses_are_unwrapped() -> None:
    assert str(unwrapped(ip_address("::ffff:127.0.0.1"))) == "127.0.0.1"
    assert str(address_of("0177.1")) == "127.0.0.1"
    assert address_of("example.com") is None
    assert special(ip_address("10.0.0.1")) == ""


async def test_one_bad_address_of_a_name_is_enough() -> None:
    async def both(host: str, port: int) -> Sequence[str]:
        return ["8.8.8.8", "127.0.0.1"]

    with pytest.raises(Refused, match=r"127\.0\.0\.1"):
        await Egress(["*"], both).target("both.example", 80)


async def test_a_name_that_changes_its_address_is_called_where_it_was_judged() -> None:
    """DNS rebinding: the first answer is allowed, the next one is loopback."""
    answers = iter([["127.0.0.2"], ["127.0.0.1"]])

    async def rebinding(host: str, port: int) -> Sequence[str]:
        return next(answers)

    async with listening() as target:
        policy = Egress(["127.0.0.2"], rebinding)
        with pytest.raises(OSError):
            await policy.connect("rebinding.example", target.port)
        assert target.connections == 0, "nobody listens on 127.0.0.2"
        with pytest.raises(Refused):
            await policy.connect("rebinding.example", target.port)
        assert target.connections == 0


# What is called.


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_webhook_on_loopback_is_called_only_where_it_is_allowed(host: str) -> None:
    async with listening() as target:
        hook = Webhook(meta=Meta(name="h"), spec=WebhookSpec(url=f"http://{host}:{target.port}/", secret="s"))
        for policy in (STRICT, Egress(["8.8.8.8", "other.example"])):
            sink = open_sink(hook, no_secret, policy)
            with pytest.raises(Unavailable, match="egress_allow"):
                await sink.send(message())
            await sink.close()
        assert target.connections == 0
        allowed = open_sink(hook, no_secret, Egress([f"{host}:{target.port}"]))
        assert await allowed.send(message()) == "200"
        await allowed.close()
        assert target.connections == 1


async def test_a_redirect_is_not_followed() -> None:
    async with listening() as target, listening() as inner:
        target.answer = b"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:%d/\r\ncontent-length: 0\r\n\r\n" % inner.port
        hook = Webhook(meta=Meta(name="h"), spec=WebhookSpec(url=f"http://127.0.0.1:{target.port}/", secret="s"))
        sink = open_sink(hook, no_secret, Egress([f"127.0.0.1:{target.port}"]))
        with pytest.raises(Invalid, match="not followed"):
            await sink.send(message())
        await sink.close()
        assert (target.connections, inner.connections) == (1, 0)


@pytest.mark.parametrize("scheme", ["nats", "kafka"])
async def test_an_event_bus_on_loopback_is_not_called(scheme: str) -> None:
    async with listening() as target:
        spec = EventBusSpec(url=f"{scheme}://localhost:{target.port}", timeout=Seconds(2))
        sink = open_sink(EventBus(meta=Meta(name="b"), spec=spec), no_secret)
        with pytest.raises(Unavailable, match="egress_allow"):
            await sink.send(message())
        await sink.close()
        assert target.connections == 0


async def test_servers_that_a_nats_server_announces_are_not_called() -> None:
    async with listening() as inner:

        async def announce(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            announced = f'["127.0.0.1:{inner.port}"]'
            writer.write(b'INFO {"server_id":"x","max_payload":1,"connect_urls":%s}\r\n' % announced.encode())
            await writer.drain()
            await reader.read(100)
            writer.close()

        server = await asyncio.start_server(announce, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        spec = EventBusSpec(url=f"nats://127.0.0.1:{port}", timeout=Seconds(2))
        sink = open_sink(EventBus(meta=Meta(name="b"), spec=spec), no_secret, Egress([f"127.0.0.1:{port}"]))
        async with server:
            with pytest.raises(Unavailable):
                await sink.send(message())
            await sink.close()
        assert inner.connections == 0


@pytest.mark.parametrize("scheme", ["syslog+tcp", "syslog+udp", "fluent", "loki+http", "otlp+http"])
async def test_a_log_sink_on_loopback_is_not_called(scheme: str) -> None:
    async with listening() as target:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as datagrams:
            datagrams.bind(("127.0.0.1", 0))
            datagrams.setblocking(False)
            port = datagrams.getsockname()[1] if scheme.endswith("udp") else target.port
            spec = LogSinkSpec(url=f"{scheme}://127.0.0.1:{port}", timeout=Seconds(2))
            sink = open_log_sink(spec, [], log_secret)
            with pytest.raises(Unavailable, match="egress_allow"):
                await sink.send([Line(at=1.0, text="x", node="n1", stream="stdout")])
            await sink.close()
            with pytest.raises(BlockingIOError):
                datagrams.recv(10)
        assert target.connections == 0


async def test_a_log_sink_writes_to_no_socket_but_that_of_the_system(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(tmp_path / "socket"))
        spec = LogSinkSpec(url=f"syslog+unix://{tmp_path}/socket")
        line = Line(at=1.0, text="x", node="n1", stream="stdout")
        sink = open_log_sink(spec, [], log_secret)
        with pytest.raises(Unavailable, match="egress_allow"):
            await sink.send([line])
        allowed = open_log_sink(spec, [], log_secret, Egress([f"unix:{tmp_path}/socket"]))
        await allowed.send([line])
        assert other.recv(2000)
        await allowed.close()


async def test_a_manifest_cannot_have_any_server_asked_for_a_metric() -> None:
    async with listening() as target:
        for url in (f"http://127.0.0.1:{target.port}", f"http://localhost:{target.port}/x", f"http://{METADATA}"):
            for allowed in ([], ["http://prometheus.example:9090"]):
                async with Prometheus(allowed) as prometheus:
                    with pytest.raises(Unavailable, match="not one of the configured Prometheus servers"):
                        await prometheus.ask(Metric(query="up", target=1, url=url))
        async with Prometheus(loopback=True) as dev:
            with pytest.raises(Unavailable, match="not one of the configured Prometheus servers"):
                await dev.ask(Metric(query="up", target=1, url="http://prometheus.example:9090"))
        assert target.connections == 0


async def test_a_pool_orders_machines_only_from_allowed_hosts_with_secrets_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "pipeline.secret").write_text("0123456789abcdef")
    files = SecretFiles(str(tmp_path))
    async with listening() as target:
        url = f"http://127.0.0.1:{target.port}/"
        with pytest.raises(Invalid, match="egress_allow"):
            make_provisioner("pipeline", {"url": url, "secret_file": "pipeline.secret"}, STRICT, files)
        by_name = {"url": f"http://localhost:{target.port}/", "secret_file": "pipeline.secret"}
        made = make_provisioner("pipeline", by_name, STRICT, files)
        with pytest.raises(Unavailable, match="egress_allow"):
            await made.delete("c1", "m1")
        await made.close()
        assert target.connections == 0
        allowed = make_provisioner("pipeline", by_name, Egress(LOOPBACK), files)
        await allowed.delete("c1", "m1")
        await allowed.close()
        assert target.connections == 1
        for name in ("/etc/passwd", "../x", "a/b", ".hidden"):
            with pytest.raises(Invalid, match="secret_files"):
                make_provisioner("pipeline", {"url": url, "secret_file": name}, Egress(LOOPBACK), files)
        with pytest.raises(Invalid, match="egress_allow"):
            make_provisioner("incus", {"url": "unix:///run/docker.sock"}, STRICT, files)
        with pytest.raises(Invalid, match="secret_files"):
            make_provisioner("incus", {"key": "/etc/shadow"}, STRICT, files)


# Files.


@pytest.mark.parametrize("name", ["/etc/hostname", "../../etc/hostname", "..", ".", "", "a/b", ".x", "x\0y"])
def test_only_names_of_the_folder_are_files(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="secret_files"):
        SecretFiles(str(tmp_path)).path(name)


async def test_a_receiver_reads_secrets_of_the_folder_and_no_other_file(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    folder.mkdir()
    (folder / "hook").write_text("one")
    (tmp_path / "other").write_text("two")
    secrets = Secrets(MemoryStore(), lambda secret: secret, SecretFiles(str(folder)))
    assert await secrets.read("file:hook", "default") == b"one"
    assert await secrets.read(f"file:{folder}/hook", "default") == b"one", "as it was written before"
    for refused in (f"file:{tmp_path}/other", "file:/etc/hostname", "file:/proc/self/environ"):
        with pytest.raises(Unavailable, match="secret_files"):
            await secrets.read(refused, "default")
    with pytest.raises(Unavailable, match="secret_files"):
        await Secrets(MemoryStore(), lambda secret: secret).read("file:hook", "default")


MANIFESTS = [
    ("kind: webhook\nname: h\nurl: http://127.0.0.1:9/\nsecret: s\n", "egress_allow"),
    (f"kind: webhook\nname: h\nurl: https://{METADATA}/\nsecret: s\n", "egress_allow"),
    ("kind: webhook\nname: h\nurl: https://2130706433/\nsecret: s\n", "egress_allow"),
    ("kind: webhook\nname: h\nurl: https://x.example/\nsecret: file:/etc/shadow\n", "secret_files"),
    ("kind: webhook\nname: h\nurl: https://x.example/\nsecret: s\nca: /etc/shadow\n", "secret_files"),
    ("kind: event-bus\nname: b\nurl: nats://x.example\nuser: u\npassword: file:/etc/shadow\n", "secret_files"),
    ("kind: event-bus\nname: b\nurl: nats://[::1]:4222\n", "egress_allow"),
    ("kind: log-sink\nname: l\nurl: loki+https://x.example\ntoken: file:/etc/shadow\n", "only names"),
    (
        "kind: node-pool\nname: p\nautoscale:\n  provisioner: pipeline\n  max: 1\n"
        "  settings: {url: 'https://x.example/', secret_file: /etc/shadow}\n"
        "  kinds:\n    small: {cpu: 1, memory: 1Gi}\n",
        "secret_files",
    ),
]


@pytest.mark.parametrize(("manifest", "says"), MANIFESTS)
async def test_such_objects_are_refused_when_they_are_applied(api: Api, manifest: str, says: str) -> None:
    session = await api.session(await api.token("admin", "user:ani"))
    headers = {"content-type": "application/yaml"}
    async with session.post("/v1/apply", data=manifest, headers=headers) as answer:
        text = await answer.text()
        assert (answer.status, says in text) == (400, True), text


async def test_a_file_without_its_path_waits_for_all_servers(start_api: StartApi, tmp_path: Path) -> None:
    from mandor.api.outward import check_outward

    api = await start_api()
    hook = Webhook(meta=Meta(name="h"), spec=WebhookSpec(url="https://x.example/", secret="file:hook"))
    object.__setattr__(api.parts, "files", SecretFiles(str(tmp_path)))
    check_outward(api.parts, hook)
    object.__setattr__(api.parts, "everywhere", frozenset)
    with pytest.raises(Unsupported, match="secret-files"):
        check_outward(api.parts, hook)


# Settings.


@pytest.mark.parametrize("kind", [ServerSettings, AgentRootSettings])
@pytest.mark.parametrize("flags", [{"egress_allow": ["http://x"]}, {"secret_files": "relative"}])
def test_a_mistake_in_the_policy_is_refused_at_the_start(kind: Any, flags: dict[str, Any]) -> None:
    with pytest.raises(Invalid):
        load(kind, "x", environ={}, flags=flags)
