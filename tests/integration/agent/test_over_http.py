"""An agent with real processes, joined to a real server over HTTP."""

from __future__ import annotations

import asyncio
import stat
from typing import Any

import msgspec
import pytest

from mandor.agent.http_link import HttpLink
from mandor.agent.journal import Journal
from mandor.api.auth import make_token
from mandor.client.aio import Client
from mandor.errors import Conflict, Unauthenticated, Unavailable
from mandor.model.codec import from_plain
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus
from mandor.model.meta import Key, Meta
from mandor.model.phase import Phase
from mandor.model.record import Token
from mandor.model.workload import Workload, WorkloadSpec, make_release
from mandor.store.base import Delete, Put
from tests.integration.agent.harness import AgentHarness, eventually


@pytest.mark.req("S0-22", "S2-24")
async def test_a_node_joins_with_a_token_and_then_has_a_credential_of_its_own(harness: AgentHarness) -> None:
    async with harness.agent() as agent:
        await asyncio.wait_for(agent.joined.wait(), 30)

        async def told() -> bool:
            node = await harness.node()
            return node is not None and "process" in node.status.engines

        await eventually(told)
    node = await harness.node()
    assert node is not None
    assert (node.meta.labels, node.spec.pool, node.status.address) == ({"zone": "a"}, "edge", "127.0.0.1")
    credential = harness.folder / "n1" / "credential"
    assert stat.S_IMODE(credential.stat().st_mode) == 0o600
    # The join token is not needed a second time.
    async with harness.agent(harness.settings(token=None)) as again:
        await asyncio.wait_for(again.joined.wait(), 30)
    after = await harness.node()
    assert after is not None
    assert after.meta.uid == node.meta.uid


@pytest.mark.req("S0-22")
async def test_an_agent_whose_disk_is_full_joins_when_there_is_room(
    harness: AgentHarness, caplog: pytest.LogCaptureFixture
) -> None:
    draft = harness.folder / "n1" / "credential.new"
    draft.parent.mkdir(mode=0o700, exist_ok=True)
    draft.symlink_to("/dev/full")
    async with harness.agent() as agent:

        async def logged() -> bool:
            return "cannot save credential" in caplog.text and "free disk space" in caplog.text

        await eventually(logged)
        assert not agent.joined.is_set()
        draft.unlink()
        await asyncio.wait_for(agent.joined.wait(), 60)


@pytest.mark.req("S0-21", "S0-31")
async def test_a_second_agent_of_that_name_is_refused_without_the_credential(harness: AgentHarness) -> None:
    async with harness.agent() as agent:
        await asyncio.wait_for(agent.joined.wait(), 30)
        other = harness.settings(folder="other")
        async with Client([harness.url]) as client:
            link = HttpLink(client, other, Journal(other.data))
            with pytest.raises(Conflict, match="already") as caught:
                await link.join()
            assert caught.value.hint
    wrong = harness.settings(folder="third", token="mdr_x_y")
    async with Client([harness.url]) as client:
        with pytest.raises(Unauthenticated):
            await HttpLink(client, wrong, Journal(wrong.data)).join()


@pytest.mark.req("S0-23", "S2-26", "S0-30")
async def test_heartbeats_and_real_usage_reach_the_server(harness: AgentHarness) -> None:
    await harness.order("while :; do :; done")
    async with harness.agent():
        await harness.until(Phase.RUNNING)

        async def heard() -> bool:
            report = harness.parts.heartbeats.usage("n1")
            used = report.instances.get("default/web-0") if report else None
            return used is not None and used.cpu_milli > 100

        await eventually(heard)
        usage = harness.parts.heartbeats.usage("n1").usage
        assert usage.cpu_milli > 100
        assert usage.memory_bytes > 1 << 20
        assert usage.disk_bytes > 1 << 20
        await harness.end()


@pytest.mark.req("S0-13", "S0-30")
async def test_logs_and_exec_reach_into_a_real_process(harness: AgentHarness) -> None:
    await harness.order('echo "hello from $MANDOR_INSTANCE"; echo bad >&2; exec sleep 1000')
    async with harness.agent():
        await harness.until(Phase.RUNNING)

        async def printed() -> bool:
            async with harness.get("/v1/instances/web-0/logs") as answer:
                return "bad" in await answer.text()

        await eventually(printed)
        async with harness.get("/v1/instances/web-0/logs", tail=1000) as answer:
            assert "hello from web-0" in (await answer.text()).splitlines()

        async with Client([harness.url], token=harness.user_token) as client:
            query = [("command", "sh"), ("command", "-c"), ("command", "read line; echo got $line; exit 4")]
            async with await client.dial("/v1/instances/web-0/exec", query=query) as line:
                await line.send(b"\x00" + b"water\n")
                frames = []
                async with asyncio.timeout(30):
                    while (frame := await line.receive()) is not None:
                        frames.append(frame)
        assert b"".join(frame[1:] for frame in frames if frame[0] == 1) == b"got water\n"
        assert frames[-1] == b'\x03{"code":4}'
        await harness.end()


@pytest.mark.req("S0-17", "S0-18")
async def test_a_server_restart_restarts_no_instance(harness: AgentHarness) -> None:
    await harness.order("exec sleep 1000")
    async with harness.agent() as agent:
        running = await harness.until(Phase.RUNNING)
        await harness.go_away()

        async def silent() -> bool:
            return agent.contact.silence > 2.0

        await eventually(silent)
        await harness.serve()

        async def heard_again() -> bool:
            return agent.contact.silence < 1.0

        await eventually(heard_again)
        await harness.order("exec sleep 1000", name="after")
        await harness.until(Phase.RUNNING, "after")
        assert (await harness.instance()).status == running.status
        await harness.end()


@pytest.mark.req("S0-28")
async def test_processes_outlive_the_agent_and_are_adopted(harness: AgentHarness) -> None:
    units = harness.folder / "n1" / "process" / "units"

    def begun() -> int:
        return sum(log.read_text().count("begun") for log in units.glob("*/log"))

    await harness.order("echo begun; exec sleep 1000")
    async with harness.agent():
        before = await harness.until(Phase.RUNNING)
        await eventually(lambda: asyncio.to_thread(begun))
    async with harness.agent():
        await harness.order("exec sleep 1000", name="after")
        await harness.until(Phase.RUNNING, "after")  # The restarted agent has carried out all its orders.
        await harness.store.commit(Put((await harness.instance()).stopping("enough")))
        assert begun() == 1
        after = await harness.until(Phase.STOPPED)
        await harness.end()
    assert after.meta.uid == before.meta.uid
    assert after.status.restarts == 0


async def test_a_program_that_does_not_exist_is_shown_as_the_reason(harness: AgentHarness) -> None:
    workload = from_plain({"groups": {"main": {"tasks": {"main": {"command": ["/no/such/program"]}}}}}, WorkloadSpec)
    await harness.store.commit(Put(Workload(meta=Meta(name="bad", namespace="default"), spec=workload)))
    stored = await harness.store.get(Key("workload", "default", "bad"))
    assert isinstance(stored, Workload)
    spec = InstanceSpec(workload="bad", release="bad.1", index=0, node="n1")
    instance = Instance(
        meta=Meta(name="bad-0", namespace="default"), spec=spec, status=InstanceStatus(phase=Phase.RESERVED)
    )
    await harness.store.commit(Put(make_release(stored, 1)), Put(instance))
    async with harness.agent():
        failed = await harness.until(Phase.FAILED, "bad")
    assert failed.status.reason == "StartFailed"
    assert "/no/such/program" in failed.status.message


async def test_deleting_an_instance_deletes_its_files(harness: AgentHarness) -> None:
    instance = await harness.order("exec sleep 1000")
    async with harness.agent():
        await harness.until(Phase.RUNNING)
        now = await harness.instance()
        await harness.store.commit(Delete(now.key, now.meta.version))
        units = harness.folder / "n1" / "process" / "units"

        async def clean() -> bool:
            left = [path.name for path in units.iterdir() if path.name.startswith(instance.meta.uid)]
            return not left and not list((harness.folder / "n1" / "orders").iterdir())

        await eventually(clean)


@pytest.mark.req("S0-7")
async def test_an_order_comes_with_its_release_workload_and_namespace(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    request = Client.request

    async def counted(self: Client, method: str, path: str, **more: Any) -> bytes:
        asked.append(f"{method} {path}")
        return await request(self, method, path, **more)

    async with harness.agent():
        await eventually(lambda: following(harness))
        monkeypatch.setattr(Client, "request", counted)
        await harness.order("sleep 300")
        await harness.until(Phase.RUNNING)
        await harness.order("sleep 300", "other")
        await harness.until(Phase.RUNNING, "other")
        assert not [each for each in asked if "objects" in each or "releases" in each or "workloads" in each]
        assert asked.count("POST /v1/commit") >= 2
        await harness.end()


async def following(harness: AgentHarness) -> bool:
    """Return whether the agent watches its orders, not only its log sinks."""
    return len(harness.parts.streams) >= 2


def link_of(harness: AgentHarness, client: Client) -> HttpLink:
    settings = harness.settings(token=None)
    return HttpLink(client, settings, Journal(settings.data))


async def end_the_old_one(harness: AgentHarness) -> None:
    """Revoke the old credential, as if it had expired."""
    token = await harness.store.get(Key("token", "", "node.n1"))
    assert isinstance(token, Token)
    await harness.store.commit(Put(token.changed(spec=msgspec.structs.replace(token.spec, former=None))))


@pytest.mark.req("S0-22", "S0-30")
@pytest.mark.parametrize("at", ["before it is sent", "before the answer", "before it is kept"])
@pytest.mark.parametrize("later", ["soon", "when the old one is over"])
async def test_an_interrupted_renewal_leaves_a_valid_credential(
    harness: AgentHarness, monkeypatch: pytest.MonkeyPatch, at: str, later: str
) -> None:
    async with harness.agent() as agent:
        await asyncio.wait_for(agent.joined.wait(), 30)
    journal = Journal(harness.folder / "n1")
    before = journal.credential
    with monkeypatch.context() as patch:
        request = Client.request

        async def cut(self: Client, method: str, path: str, **more: Any) -> bytes:
            if at == "before the answer":
                await request(self, method, path, **more)
            raise Unavailable("the machine stops here")

        def full(self: Journal, credential: str) -> None:
            raise OSError("the machine stops here")

        if at == "before it is kept":
            patch.setattr(Journal, "keep_credential", full)
        else:
            patch.setattr(Client, "request", cut)
        async with Client([harness.url]) as client:
            with pytest.raises((Unavailable, OSError), match="stops here"):
                await link_of(harness, client).renew_credential()
    assert journal.credential == before
    if later != "soon":
        await end_the_old_one(harness)
    async with Client([harness.url]) as client:
        link = link_of(harness, client)
        assert (await link.join()).id == "c1"
        if link.renewing:
            await link.renew_credential()
        assert not link.renewing
        assert journal.credential != before
    await end_the_old_one(harness)
    async with Client([harness.url]) as client:
        assert (await link_of(harness, client).join()).id == "c1"


@pytest.mark.req("S0-22", "S0-30")
async def test_a_credential_written_to_the_data_directory_is_used_when_the_old_one_is_revoked(
    harness: AgentHarness,
) -> None:
    async with harness.agent() as agent:
        await asyncio.wait_for(agent.joined.wait(), 30)
    async with Client([harness.url]) as client:
        link = link_of(harness, client)
        await link.join()
        old = await harness.store.get(Key("token", "", "node.n1"))
        assert old is not None
        token, text = make_token("node", "node:n1", name="node.n1")
        await harness.store.commit(Put(token.stamped(version=old.meta.version)))
        with pytest.raises(Unauthenticated):
            await link.join()
        (harness.folder / "n1" / "credential").write_text(text)
        assert (await link.join()).id == "c1"
        assert client.token == text


@pytest.mark.req("S0-22", "S0-30")
async def test_an_agent_renews_its_credential_without_failed_calls(harness: AgentHarness) -> None:
    await harness.go_away()
    harness.credential_age_seconds = 1.0
    await harness.serve()

    async def renewed_since(uid: str) -> str:
        token = await harness.store.get(Key("token", "", "node.n1"))
        return token.meta.uid if isinstance(token, Token) and token.meta.uid != uid else ""

    async with harness.agent() as agent:
        first = await eventually(lambda: renewed_since(""))
        second = await eventually(lambda: renewed_since(first))
        await eventually(lambda: renewed_since(second))
        await harness.order("sleep 300")
        await harness.until(Phase.RUNNING)
        assert set(agent.workers.services.metrics.heartbeats) == {("ok",)}
        assert set(agent.workers.services.metrics.credential_renewals) == {("ok",)}
        await harness.end()
