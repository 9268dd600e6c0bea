"""Logs of real processes to strict receivers; receivers and agent are killed in between."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from mandor.agent.agent import Agent
from mandor.api.access import read
from mandor.api.caller import Caller
from mandor.errors import NotFound
from mandor.model.codec import from_plain
from mandor.model.log_sink import LogSink, LogSinkSpec
from mandor.model.meta import Key, Meta
from mandor.model.phase import Phase
from mandor.model.secret import Secret, SecretSpec
from mandor.store.base import Delete, Put
from tests.components.log_receivers import Fluent, Loki, Otlp, Receiver, SyslogTcp, serving
from tests.integration.agent.harness import AgentHarness, eventually


async def add_sink(harness: AgentHarness, url: str, name: str = "central", **fields: Any) -> LogSink:
    spec = from_plain({"url": url, "sources": ["instances"], **fields}, LogSinkSpec)
    await harness.store.commit(Put(LogSink(meta=Meta(name=name), spec=spec)))
    found = await harness.store.get(LogSink(meta=Meta(name=name), spec=spec).key)
    assert isinstance(found, LogSink)
    return found


async def heard(agent: Agent, *names: str) -> None:
    async def known() -> bool:
        return set(agent.node.log_sinks()) == set(names)

    await eventually(known)


def counting(first: int, last: int, every: str = "0.005") -> str:
    """Return a script that prints numbers and keeps running."""
    return f"i={first}; while [ $i -le {last} ]; do echo n$i; i=$((i+1)); sleep {every}; done; exec sleep 1000"


async def got(receiver: Receiver, last: int) -> list[int]:
    """Return all numbers that have arrived, once the last one has."""

    async def there() -> bool:
        return any(each.text == f"n{last}" for each in receiver.lines)

    await eventually(there)
    assert not receiver.faults
    return [int(each.text[1:]) for each in receiver.lines]


@pytest.mark.req("S2-40")
@pytest.mark.parametrize(
    ("kind", "url"), [(Fluent, "fluent"), (Loki, "loki+http"), (Otlp, "otlp+http"), (SyslogTcp, "syslog+tcp")]
)
async def test_nothing_is_lost_when_the_receiver_is_killed_and_comes_back_in_mid_stream(
    harness: AgentHarness, kind: Callable[[], Receiver], url: str
) -> None:
    receiver = kind()
    async with serving(receiver), harness.agent() as agent:
        await add_sink(harness, f"{url}://127.0.0.1:{receiver.port}", timeout="5s")
        await heard(agent, "central")
        await harness.order(counting(1, 200))
        await receiver.arrived(30)
        async with receiver.away():
            await asyncio.sleep(0.3)
        numbers = await got(receiver, 200)
        assert sorted(set(numbers)) == list(range(1, 201))
        first = receiver.lines[0]
        assert (first.namespace, first.workload, first.instance, first.task) == ("default", "web", "web-0", "main")
        assert (first.node, first.stream) == ("n1", "stdout")
        await harness.end()


@pytest.mark.req("S2-40")
async def test_an_agent_that_is_started_again_goes_on_where_it_was(harness: AgentHarness) -> None:
    receiver = Loki()
    async with serving(receiver):
        await add_sink(harness, f"loki+http://127.0.0.1:{receiver.port}", batch=20)
        async with harness.agent() as agent:
            await heard(agent, "central")
            await harness.order(counting(1, 200))
            await receiver.arrived(30)
        async with harness.agent():
            numbers = await got(receiver, 200)
            assert sorted(set(numbers)) == list(range(1, 201))
            assert len(numbers) <= 220  # A batch on its way when the agent ended may come twice.
            await harness.end()


async def test_lines_over_the_buffer_are_counted_and_the_newest_are_kept(
    harness: AgentHarness,
) -> None:
    receiver = Otlp()
    async with harness.agent() as agent:
        await add_sink(harness, f"otlp+http://127.0.0.1:{receiver.port}", buffer="1Mi", rate=1_000_000)
        await heard(agent, "central")
        text = "x" * 1000
        script = f"i=1; while [ $i -le 3000 ]; do echo {text} $i; i=$((i+1)); done; exec sleep 1000"
        await harness.order(script)

        async def dropping() -> bool:
            node = await harness.node()
            health = node.status.log_sinks.get("central") if node is not None else None
            return health is not None and health.state == "Failing" and "Cannot connect" in health.message

        await eventually(dropping)

        async def all_read() -> bool:
            (delivery,) = agent._shipper._deliveries.values()  # type: ignore[union-attr]
            return delivery.waiting + sum(delivery.drops.values()) == 3000

        await eventually(all_read)
        async with serving(receiver):

            async def there() -> bool:
                return any(each.text.endswith(" 3000") for each in receiver.lines)

            await eventually(there)
            numbers = [int(each.text.split()[-1]) for each in receiver.lines]
            assert numbers == list(range(3001 - len(numbers), 3001))
            dropped = next(
                count
                for family in await agent.metrics()
                if family.name == "mandor_log_lines_dropped_total"
                for values, count in family.samples
                if values == ("central", "buffer")
            )
            assert dropped == 3000 - len(numbers) > 0
            await harness.end()


async def test_output_over_the_rate_is_dropped_and_the_gap_is_marked(harness: AgentHarness) -> None:
    receiver = Loki()
    async with serving(receiver), harness.agent() as agent:
        await add_sink(harness, f"loki+http://127.0.0.1:{receiver.port}", rate=5)
        await heard(agent, "central")
        await harness.order("seq 1 1000; sleep 1.2; echo last; exec sleep 1000")

        async def there() -> bool:
            return any(each.text == "last" for each in receiver.lines)

        await eventually(there)
        texts = [each.text for each in receiver.lines]
        assert texts[:10] == [str(number) for number in range(1, 11)]
        gaps = [each for each in texts if "lines were dropped here: more than 5 per second" in each]
        assert gaps
        left_out = sum(int(each.split()[1]) for each in gaps)
        assert left_out + len(texts) - len(gaps) == 1001
        await harness.end()


async def test_the_last_lines_of_a_short_task_arrive_and_only_selected_workloads_are_read(
    harness: AgentHarness,
) -> None:
    receiver = Loki()
    async with serving(receiver), harness.agent() as agent:
        sink = await add_sink(harness, f"loki+http://127.0.0.1:{receiver.port}", workloads=["we*"])
        await heard(agent, "central")
        await harness.order("echo not for you; exec sleep 1000", "other")
        await harness.order("echo first; echo famous last words >&2; exit 3", restart={"attempts": 0})
        failed = await harness.until(Phase.FAILED)
        await harness.store.commit(Delete(failed.key, failed.meta.version))
        lines = await receiver.arrived(2)
        assert [(each.text, each.stream) for each in lines[:2]] == [
            ("first", "stdout"),
            ("famous last words", "stderr"),
        ]
        assert {each.workload for each in lines} == {"web"}
        await harness.store.commit(Delete(sink.key, sink.meta.version))
        await heard(agent)
        assert [each.name for each in (harness.folder / "n1" / "logs").iterdir() if each.is_dir()] == []
        await harness.end()


@pytest.mark.req("S2-40")
async def test_the_agent_ships_its_own_log_with_fields_and_without_secrets(
    harness: AgentHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "mandor")
    receiver = Otlp()
    secret = harness.folder / "token"
    secret.write_text("hush-of-the-sink\n")
    secret.chmod(0o600)
    async with serving(receiver), harness.agent() as agent:
        await add_sink(
            harness,
            f"otlp+http://127.0.0.1:{receiver.port}",
            sources=["agent"],
            token=f"file:{secret}",
        )
        await heard(agent, "central")
        await harness.order("echo for nobody; exec sleep 1000")
        await harness.until(Phase.RUNNING)
        receiver.answers = [(503, "later")]

        async def told() -> bool:
            logging.getLogger("mandor.test").info("something happens", extra={"facts": {"decision": "u1.1"}})
            return any("log sink central" in each.text for each in receiver.lines)

        await eventually(told)
        assert {each.stream for each in receiver.lines} == {"agent"}
        assert receiver.headers[-1]["Authorization"] == "Bearer hush-of-the-sink"
        assert not any("hush" in each.text for each in receiver.lines)
        assert "hush" not in caplog.text
        await harness.end()


async def test_a_node_reads_the_secrets_of_sinks_and_no_others(harness: AgentHarness) -> None:
    for name in ("loki", "other"):
        await harness.store.commit(Put(Secret(meta=Meta(name=name, namespace="default"), spec=SecretSpec(value="x"))))
    await add_sink(harness, "loki+http://127.0.0.1:1", user="u", password="loki")
    node = Caller(identity="node:n1", role="node")
    found = await read(harness.store, node, Key("secret", "default", "loki"))
    assert isinstance(found, Secret)
    with pytest.raises(NotFound):
        await read(harness.store, node, Key("secret", "default", "other"))
