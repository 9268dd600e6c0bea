"""Probes against real servers on this machine, and the counting of their results."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.agent.probes import ProbeCounter, StartupCounter, run_probe, run_probe_loop
from mandor.engines.base import Launch, Observed, Unit, UnitPhase
from mandor.engines.fake import FakeEngine
from mandor.lib.clock import ManualClock
from mandor.lib.quantity import Seconds
from mandor.model.task import Probe, ProbeCheck
from tests.components.ports import free_port

UNIT = Unit("u1", "main", 1)
RUNNING = Observed(unit=UNIT, phase=UnitPhase.RUNNING, address="127.0.0.1")


@asynccontextmanager
async def http_server(status: str, *, slow: bool = False) -> AsyncIterator[int]:
    """Answers every request with that status line."""

    over = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if slow:
            await over.wait()
        writer.write(f"HTTP/1.1 {status}\r\nLocation: /x\r\nContent-Length: 2\r\n\r\nok".encode())
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]
        over.set()
        await asyncio.sleep(0.01)


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    async with FakeEngine() as engine:
        await engine.start(UNIT, Launch(name="web-0"))
        yield engine


@pytest.mark.req("S2-8", "S2-44")
@pytest.mark.parametrize(
    ("status", "good"),
    [("200 OK", True), ("204 No Content", True), ("302 Found", True), ("404 Not Found", False), ("500 Oops", False)],
)
async def test_an_http_probe_wants_a_status_below_400(engine: FakeEngine, status: str, good: bool) -> None:
    async with http_server(status) as port:
        wrong = await run_probe(Probe(http="/healthz", port=port), RUNNING, engine, {})
        by_name = await run_probe(Probe(http="/healthz", port="http"), RUNNING, engine, {"http": port})
    assert (wrong == "") is good
    assert wrong == by_name


async def test_an_http_probe_that_takes_too_long_has_failed(engine: FakeEngine) -> None:
    async with http_server("200 OK", slow=True) as port:
        wrong = await run_probe(Probe(http="/", port=port, timeout=Seconds(0.2)), RUNNING, engine, {})
    assert wrong == "no answer within 200ms"


async def test_a_server_that_speaks_no_http_has_failed(engine: FakeEngine) -> None:
    async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\r\n" * 10)
        writer.close()

    server = await asyncio.start_server(babble, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        assert await run_probe(Probe(http="/", port=port), RUNNING, engine, {})


@pytest.mark.req("S2-8", "S2-44")
@pytest.mark.req("S2-8")
async def test_a_probe_with_further_checks_wants_all_of_them(engine: FakeEngine) -> None:
    async with http_server("200 OK") as good, http_server("503 Oops") as bad:
        for port, wrong in ((good, ""), (bad, "HTTP status 503")):
            also = (ProbeCheck(tcp=good), ProbeCheck(http="/", port="more"))
            probe = Probe(http="/", port=good, also=also)
            assert await run_probe(probe, RUNNING, engine, {"more": port}) == wrong
        failing = Probe(http="/", port=bad, also=(ProbeCheck(tcp=good),))
        assert await run_probe(failing, RUNNING, engine, {}) == "HTTP status 503"


async def test_a_tcp_probe_wants_a_listener(engine: FakeEngine) -> None:
    async with http_server("200 OK") as port:
        assert await run_probe(Probe(tcp=port), RUNNING, engine, {}) == ""
        assert await run_probe(Probe(tcp="http"), RUNNING, engine, {"http": port}) == ""
    assert await run_probe(Probe(tcp=free_port()), RUNNING, engine, {})


@pytest.mark.req("S2-8", "S2-44")
async def test_a_command_probe_wants_exit_code_zero(engine: FakeEngine) -> None:
    assert await run_probe(Probe(command=("exit", "0")), RUNNING, engine, {}) == ""
    assert await run_probe(Probe(command=("exit", "3")), RUNNING, engine, {}) == "exit code 3"


async def test_a_command_that_hangs_or_cannot_run_has_failed(engine: FakeEngine) -> None:
    assert "no answer" in await run_probe(Probe(command=("cat",), timeout=Seconds(0.1)), RUNNING, engine, {})
    engine.end(UNIT)
    assert "not running" in await run_probe(Probe(command=("exit", "0")), RUNNING, engine, {})


# What is made of the answers.


def test_the_result_turns_bad_after_the_configured_failures_in_a_row() -> None:
    tally = ProbeCounter(Probe(tcp=80, failures=3), good=True)
    assert [tally.count(answer, 100) for answer in (False, False, True, False, False, False)] == [False] * 5 + [True]
    assert not tally.good


def test_the_result_turns_good_after_the_configured_successes_in_a_row() -> None:
    tally = ProbeCounter(Probe(tcp=80, successes=2), good=False)
    assert [tally.count(answer, 0) for answer in (True, False, True, True)] == [False, False, False, True]


def test_a_startup_probe_passes_after_the_configured_successes_in_a_row() -> None:
    tally = StartupCounter(Probe(tcp=1, successes=2, failures=3), good=True)
    assert [tally.count(answer, 1) for answer in (True, False, True)] == [False, False, False]
    assert tally.count(True, 1)
    assert (tally.passed, tally.good) == (True, True)


def test_failures_do_not_count_within_the_start_period() -> None:
    tally = ProbeCounter(Probe(tcp=80, failures=1, start_period=Seconds(30)), good=True)
    assert not tally.count(False, 29.9)
    assert tally.count(False, 30)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_the_result_is_that_of_the_last_sufficient_streak(
    answers: list[bool], failures: int, successes: int, good: bool
) -> None:
    tally = ProbeCounter(Probe(tcp=80, failures=failures, successes=successes), good=good)
    expected, run = good, 0
    for number, answer in enumerate(answers):
        tally.count(answer, 1.0)
        run = run + 1 if number and answers[number - 1] == answer else 1
        if run >= (successes if answer else failures):
            expected = answer
        assert tally.good == expected


@pytest.mark.req("S2-8")
async def test_a_probe_runs_at_every_interval_and_reports_changes(engine: FakeEngine) -> None:
    clock = ManualClock()
    told: list[str] = []
    probe = Probe(command=("exit", "1"), interval=Seconds(5), failures=3)
    tally = ProbeCounter(probe, good=True)
    asking = asyncio.ensure_future(run_probe_loop(probe, RUNNING, engine, {}, clock, tally, told.append))
    await clock.advance(9)
    assert told == []
    await clock.advance(1)
    assert told == ["exit code 1"]
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
