"""Checks of addresses outside of the cluster, against real servers, and the addresses that a node refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from mandor.agent.external_checks import CHECKS_MOST, ExternalChecks, run_check
from mandor.lib.clock import ManualClock, settle
from mandor.lib.egress import Egress
from mandor.lib.quantity import Seconds
from mandor.model.meta import Meta
from mandor.model.service import Service, ServiceHealth, ServicePort, ServiceSpec, ServiceStatus
from mandor.network.external_plan import CheckedAddress, check_plan


def service(*external: str, health: ServiceHealth | None = None, name: str = "db", **more: Any) -> Service:
    spec = ServiceSpec(**{"port": {"sql": ServicePort(port=5432)}, "external": external, "health": health, **more})
    return Service(meta=Meta(name=name, namespace="default"), spec=spec, status=ServiceStatus(number=64))


def health(**changes: Any) -> ServiceHealth:
    return ServiceHealth(**{"every": Seconds(1), "timeout": Seconds(1), "failures": 2, **changes})


async def web_server(status: str, port: int = 0) -> asyncio.Server:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", port)


def port_of(server: asyncio.Server) -> int:
    number: int = server.sockets[0].getsockname()[1]
    return number


@asynccontextmanager
async def running(checks: ExternalChecks) -> AsyncIterator[None]:
    task = asyncio.create_task(checks.run())
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def until(clock: ManualClock, true: Callable[[], bool]) -> None:
    """Turn the clock until something is true; sockets need real time for their answers."""
    for _ in range(2000):
        if true():
            return
        await clock.advance(0.1)
        await asyncio.sleep(0.001)
    raise AssertionError("never true")


@pytest.mark.req("S2-46")
async def test_an_address_is_excluded_after_failures_in_a_row_and_returns_after_one_success() -> None:
    server, clock = await web_server("200 OK"), ManualClock()
    checks, news = ExternalChecks(Egress(["127.0.0.1"]), clock), [0]
    checks.listen(lambda: news.__setitem__(0, news[0] + 1))
    port = port_of(server)
    text = f"127.0.0.1:{port}"
    db = service(text, health=health(http="/healthz"))
    async with running(checks):
        checks.sync([db])
        await until(clock, lambda: clock.monotonic() > 1_000_003)
        assert checks.excluded() == {}
        assert checks.counts()["passing"] == 1
        server.close()
        await server.wait_closed()
        await until(clock, lambda: db.key in checks.excluded())
        assert checks.excluded()[db.key][text]
        assert news == [1]
        server = await web_server("200 OK", port)
        await until(clock, lambda: not checks.excluded())
        assert news == [2]
    server.close()
    await server.wait_closed()


async def test_one_failure_among_successes_excludes_nothing() -> None:
    clock = ManualClock()
    answers = iter(["", "refused", "", "refused", "", *["refused"] * 1000])
    asked: list[str] = []

    async def check(target: CheckedAddress) -> str:
        asked.append(target.text)
        return next(answers)

    checks = ExternalChecks(Egress(), clock, check)
    async with running(checks):
        checks.sync([service("10.0.0.5:5432", health=health())])
        await until(clock, lambda: len(asked) == 6)
        assert checks.excluded() == {}
        await until(clock, lambda: len(asked) == 8)
        assert checks.excluded()


@pytest.mark.parametrize(("status", "failure"), [("302 Found", ""), ("503 Oops", "HTTP status 503")])
async def test_a_redirect_is_an_answer_and_is_not_followed(status: str, failure: str) -> None:
    server = await web_server(status)
    (target,), _ = check_plan(
        [service(f"127.0.0.1:{port_of(server)}", health=health(http="/"))], lambda address, port: ""
    )
    assert await run_check(target) == failure
    server.close()
    await server.wait_closed()


async def test_a_server_that_sends_no_end_of_line_fails_the_check() -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * 100_000)
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    (target,), _ = check_plan(
        [service(f"127.0.0.1:{port_of(server)}", health=health(http="/"))], lambda address, port: ""
    )
    assert await run_check(target)
    server.close()
    await server.wait_closed()


async def test_a_server_that_does_not_answer_in_time_fails_the_check() -> None:
    over = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await over.wait()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    slow = health(http="/", timeout=Seconds(0.1))
    (target,), _ = check_plan([service(f"127.0.0.1:{port_of(server)}", health=slow)], lambda address, port: "")
    assert await run_check(target) == "no answer within 100ms"
    over.set()
    server.close()
    await server.wait_closed()


async def test_at_most_some_checks_run_at_once_and_those_of_deleted_services_stop() -> None:
    clock, release = ManualClock(), asyncio.Event()
    now = most = 0

    async def check(target: CheckedAddress) -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await release.wait()
        now -= 1
        return ""

    checks = ExternalChecks(Egress(), clock, check)
    many = tuple(f"10.0.{each // 250}.{each % 250 + 1}" for each in range(200))
    async with running(checks):
        checks.sync([service(*many, health=health())])
        await until(clock, lambda: now == CHECKS_MOST)
        await clock.advance(10)
        assert most == CHECKS_MOST
        checks.sync([])
        release.set()
        await settle()
        await clock.advance(10)
        assert (now, checks.counts()["passing"]) == (0, 0)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:22",
        "127.93.0.64:80",
        "10.93.0.64:80",
        "[fd93::40]:80",
        "[::ffff:10.93.0.64]:80",
        "169.254.169.254:80",
        "[fe80::1]:80",
        "[::1]:22",
        "[::ffff:127.0.0.1]:22",
        "[64:ff9b::7f00:1]:22",
        "0.0.0.0:22",
        "224.0.0.1:80",
        "169.254.169.254",
    ],
)
async def test_addresses_of_the_node_itself_metadata_services_and_other_services_are_refused(address: str) -> None:
    asked: list[str] = []

    async def check(target: CheckedAddress) -> str:
        asked.append(target.text)
        return ""

    clock = ManualClock()
    checks = ExternalChecks(Egress(), clock, check)
    attack = service(address, "192.0.2.7:80", health=health())
    async with running(checks):
        checks.sync([attack])
        await clock.advance(5)
    assert list(checks.excluded()[attack.key]) == [address]
    assert set(asked) == {"192.0.2.7:80"}


def test_a_port_of_a_check_that_the_policy_does_not_allow_excludes_the_address() -> None:
    checks = ExternalChecks(Egress(["10.0.0.5:5432"]), ManualClock())
    plain, other = service("10.0.0.5:5432", name="a"), service("10.0.0.5:5432", health=health(tcp=22), name="b")
    checks.sync([plain, other])
    assert list(checks.excluded()) == [other.key]


def test_an_allowed_loopback_address_gets_traffic_but_another_service_never_does() -> None:
    checks = ExternalChecks(Egress(["*", "127.0.0.0/8"]), ManualClock())
    db = service("127.0.0.1:5432", "127.93.0.70:5432")
    checks.sync([db])
    assert list(checks.excluded()[db.key]) == ["127.93.0.70:5432"]


@pytest.mark.parametrize(
    ("path", "good"),
    [("/healthz?full=1", True), ("/a b", False), ("/x\r\nHost: evil", False), ("healthz", False), ("/ä", False)],
)
def test_the_path_of_a_check_cannot_add_lines_to_its_request(path: str, good: bool) -> None:
    if good:
        assert ServiceHealth(http=path).http == path
    else:
        with pytest.raises(ValueError, match="is not a path"):
            ServiceHealth(http=path)


def test_a_check_needs_external_addresses() -> None:
    with pytest.raises(ValueError, match="checks the addresses of `external`"):
        service(health=health())
    with pytest.raises(ValueError, match="out of range"):
        health(every=Seconds(0.5))
