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
from tests.integration.agent.place import Place, eventually


@pytest.mark.req("S0-22", "S2-24")
async def test_a_node_joins_with_a_token_and_then_has_a_credential_of_its_own(place: Place) -> None:
    async with place.agent() as agent:
        await asyncio.wait_for(agent.joined.wait(), 30)

        async def told() -> bool:
            node = await place.node()
            return node is not None and "process" in node.status.engines

        await eventually(told)
    node = await place.node()
    assert node is not None
    assert (node.meta.labels, node.spec.pool, node.status.address) == ({"zone": "a"}, "edge", "127.0.0.1")
    credential = place.folder / "n1" / "credential"
    assert stat.S_IMODE(credential.stat().st_mode) == 0o600
    # The join token is not needed a second time.
    async with place.agent(place.settings(token=None)) as again:
        await asyncio.wait_for(again.joined.wait(), 30)
    after = await place.node()
    assert after is not None
    assert after.meta.uid == node.meta.uid


@pytest.mark.req("S0-21", "S0-31")
async def test_a_second_agent_of_that_name_is_refused_without_the_credential(place: Place) -> None:
    async with place.agent() as agent:
        await asyncio.wait_for(agent.joined.wait(), 30)
        other = place.settings(folder="other")
        async with Client([place.url]) as client:
            link = HttpLink(client, other, Journal(other.data))
            with pytest.raises(Conflict, match="already") as caught:
                await link.join()
            assert caught.value.hint
    wrong = place.settings(folder="third", token="mdr_x_y")
    async with Client([place.url]) as client:
        with pytest.raises(Unauthenticated):
            await HttpLink(client, wrong, Journal(wrong.data)).join()


@pytest.mark.req("S0-23", "S2-26", "S0-30")
async def test_heartbeats_and_real_usage_reach_the_server(place: Place) -> None:
    await place.order("while :; do :; done")
    async with place.agent():
        await place.until(Phase.RUNNING)

        async def heard() -> bool:
            report = place.parts.heartbeats.usage("n1")
            used = report.instances.get("default/web-0") if report else None
            return used is not None and used.cpu_milli > 100

        await eventually(heard)
        usage = place.parts.heartbeats.usage("n1").usage
        assert usage.cpu_milli > 100
        assert usage.memory_bytes > 1 << 20
        assert usage.disk_bytes > 1 << 20
        await place.end()


@pytest.mark.req("S0-13", "S0-30")
async def test_logs_and_exec_reach_into_a_real_process(place: Place) -> None:
    await place.order('echo "hello from $MANDOR_INSTANCE"; echo bad >&2; exec sleep 1000')
    async with place.agent():
        await place.until(Phase.RUNNING)

        async def printed() -> bool:
            async with place.get("/v1/instances/web-0/logs") as answer:
                return "bad" in await answer.text()

        await eventually(printed)
        async with place.get("/v1/instances/web-0/logs", tail=1000) as answer:
            assert "hello from web-0" in (await answer.text()).splitlines()

        async with Client([place.url], token=place.user_token) as client:
            query = [("command", "sh"), ("command", "-c"), ("command", "read line; echo got $line; exit 4")]
            async with await client.dial("/v1/instances/web-0/exec", query=query) as line:
                await line.send(b"\x00" + b"water\n")
                frames = []
                async with asyncio.timeout(30):
                    while (frame := await line.receive()) is not None:
                        frames.append(frame)
        assert b"".join(frame[1:] for frame in frames if frame[0] == 1) == b"got water\n"
        assert frames[-1] == b'\x03{"code":4}'
        await place.end()


@pytest.mark.req("S0-17", "S0-18")
async def test_a_server_that_goes_and_comes_back_restarts_nothing(place: Place) -> None:
    await place.order("exec sleep 1000")
    async with place.agent() as agent:
        running = await place.until(Phase.RUNNING)
        await place.go_away()

        async def silent() -> bool:
            return agent.presence.silence > 2.0

        await eventually(silent)
        await place.serve()

        async def heard_again() -> bool:
            return agent.presence.silence < 1.0

        await eventually(heard_again)
        await place.order("exec sleep 1000", name="after")
        await place.until(Phase.RUNNING, "after")
        assert (await place.instance()).status == running.status
        await place.end()


@pytest.mark.req("S0-28")
async def test_processes_outlive_the_agent_and_are_adopted(place: Place) -> None:
    units = place.folder / "n1" / "process" / "units"

    def begun() -> int:
        return sum(log.read_text().count("begun") for log in units.glob("*/log"))

    await place.order("echo begun; exec sleep 1000")
    async with place.agent():
        before = await place.until(Phase.RUNNING)
        await eventually(lambda: asyncio.to_thread(begun))
    async with place.agent():
        await asyncio.sleep(1)
        await place.store.commit(Put((await place.instance()).stopping("enough")))
        assert begun() == 1
        after = await place.until(Phase.STOPPED)
    assert after.meta.uid == before.meta.uid
    assert after.status.restarts == 0


async def test_a_program_that_does_not_exist_is_shown_as_the_reason(place: Place) -> None:
    workload = from_plain({"groups": {"main": {"tasks": {"main": {"command": ["/no/such/program"]}}}}}, WorkloadSpec)
    await place.store.commit(Put(Workload(meta=Meta(name="bad", namespace="default"), spec=workload)))
    stored = await place.store.get(Key("workload", "default", "bad"))
    assert isinstance(stored, Workload)
    spec = InstanceSpec(workload="bad", release="bad.1", index=0, node="n1")
    instance = Instance(
        meta=Meta(name="bad-0", namespace="default"), spec=spec, status=InstanceStatus(phase=Phase.RESERVED)
    )
    await place.store.commit(Put(make_release(stored, 1)), Put(instance))
    async with place.agent():
        failed = await place.until(Phase.FAILED, "bad")
    assert failed.status.reason == "StartFailed"
    assert "/no/such/program" in failed.status.message


async def test_when_the_object_is_gone_so_are_its_files(place: Place) -> None:
    instance = await place.order("exec sleep 1000")
    async with place.agent():
        await place.until(Phase.RUNNING)
        now = await place.instance()
        await place.store.commit(Delete(now.key, now.meta.version))
        units = place.folder / "n1" / "process" / "units"

        async def clean() -> bool:
            left = [path.name for path in units.iterdir() if path.name.startswith(instance.meta.uid)]
            return not left and not list((place.folder / "n1" / "orders").iterdir())

        await eventually(clean)


@pytest.mark.req("S0-7")
async def test_an_order_brings_along_what_it_needs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    request = Client.request

    async def counted(self: Client, method: str, path: str, **more: Any) -> bytes:
        asked.append(f"{method} {path}")
        return await request(self, method, path, **more)

    async with place.agent():
        await eventually(lambda: following(place))
        monkeypatch.setattr(Client, "request", counted)
        await place.order("sleep 300")
        await place.until(Phase.RUNNING)
        await place.order("sleep 300", "other")
        await place.until(Phase.RUNNING, "other")
        assert not [each for each in asked if "objects" in each or "releases" in each or "workloads" in each]
        assert asked.count("POST /v1/commit") >= 2
        await place.end()


async def following(place: Place) -> bool:
    """Its orders, not only its log sinks."""
    return len(place.parts.streams) >= 2


def link_of(place: Place, client: Client) -> HttpLink:
    settings = place.settings(token=None)
    return HttpLink(client, settings, Journal(settings.data))


async def end_the_old_one(place: Place) -> None:
    """As if its time were over."""
    token = await place.store.get(Key("token", "", "node.n1"))
    assert isinstance(token, Token)
    await place.store.commit(Put(token.changed(spec=msgspec.structs.replace(token.spec, former=None))))


@pytest.mark.req("S0-22", "S0-30")
@pytest.mark.parametrize("at", ["before it is sent", "before the answer", "before it is kept"])
@pytest.mark.parametrize("later", ["soon", "when the old one is over"])
async def test_an_agent_that_ends_while_it_renews_its_credential_has_one_that_is_good(
    place: Place, monkeypatch: pytest.MonkeyPatch, at: str, later: str
) -> None:
    async with place.agent() as agent:
        await asyncio.wait_for(agent.joined.wait(), 30)
    journal = Journal(place.folder / "n1")
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
        async with Client([place.url]) as client:
            with pytest.raises((Unavailable, OSError), match="stops here"):
                await link_of(place, client).renew_credential()
    assert journal.credential == before
    if later != "soon":
        await end_the_old_one(place)
    async with Client([place.url]) as client:
        link = link_of(place, client)
        assert (await link.join()).id == "c1"
        if link.renewing:
            await link.renew_credential()
        assert not link.renewing
        assert journal.credential != before
    await end_the_old_one(place)
    async with Client([place.url]) as client:
        assert (await link_of(place, client).join()).id == "c1"


@pytest.mark.req("S0-22", "S0-30")
async def test_a_credential_that_is_written_into_its_folder_is_taken_when_the_old_one_is_over(place: Place) -> None:
    async with place.agent() as agent:
        await asyncio.wait_for(agent.joined.wait(), 30)
    async with Client([place.url]) as client:
        link = link_of(place, client)
        await link.join()
        old = await place.store.get(Key("token", "", "node.n1"))
        assert old is not None
        token, text = make_token("node", "node:n1", name="node.n1")
        await place.store.commit(Put(token.stamped(version=old.meta.version)))
        with pytest.raises(Unauthenticated):
            await link.join()
        (place.folder / "n1" / "credential").write_text(text)
        assert (await link.join()).id == "c1"
        assert client.token == text


@pytest.mark.req("S0-22", "S0-30")
async def test_an_agent_renews_its_credential_by_itself_and_nobody_notices(place: Place) -> None:
    await place.go_away()
    place.credential_age_seconds = 1.0
    await place.serve()

    async def renewed_since(uid: str) -> str:
        token = await place.store.get(Key("token", "", "node.n1"))
        return token.meta.uid if isinstance(token, Token) and token.meta.uid != uid else ""

    async with place.agent() as agent:
        first = await eventually(lambda: renewed_since(""))
        second = await eventually(lambda: renewed_since(first))
        await eventually(lambda: renewed_since(second))
        await place.order("sleep 300")
        await place.until(Phase.RUNNING)
        assert set(agent.crew.measures.heartbeats) == {("ok",)}
        assert set(agent.crew.measures.credential_renewals) == {("ok",)}
        await place.end()
