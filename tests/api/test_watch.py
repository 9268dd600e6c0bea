"""Watches over HTTP: every change once, in order; filters; bookmarks; ends that are clean."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest

from mandor.client.aio import Client
from mandor.errors import Expired, Forbidden, Invalid, MandorError, TooMany, Unauthenticated, Unavailable
from mandor.model.features import FEATURES
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Key, Meta
from mandor.model.phase import Phase
from mandor.model.record import Session, SessionSpec
from mandor.model.workload import Workload, WorkloadStatus, make_release
from mandor.store.base import ALL, Change, Delete, Filter, Put
from mandor.store.feed import Watch
from mandor.store.memory import MemoryStore
from mandor.store.remote import RemoteStore
from mandor.testing.store import make_instance, make_node, make_workload
from tests.api.conftest import Api, StartApi


class Lines:
    """Reads a watch line by line."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self) -> dict[str, Any]:
        async with asyncio.timeout(30):
            line = await self.answer.content.readline()
        assert line, "the watch ended"
        found: dict[str, Any] = json.loads(line)
        return found

    async def object(self, kind: str) -> dict[str, Any]:
        """The next of this kind that is written."""
        while True:
            after: dict[str, Any] | None = (await self.next())["after"]
            if after is not None and after["kind"] == kind:
                return after

    async def change(self) -> tuple[str, str]:
        """(verb, name) of the next change; bookmarks are passed over."""
        while True:
            line = await self.next()
            assert "error" not in line, line
            if line["before"] is None and line["after"] is None:
                continue
            verb = "created" if line["before"] is None else "deleted" if line["after"] is None else "changed"
            return verb, (line["after"] or line["before"])["meta"]["name"]


@asynccontextmanager
async def watching(api: Api, token: str = "", **query: str | int) -> AsyncIterator[Lines]:
    session = await api.session(token)
    async with session.get("/v1/watch", params=query) as answer:
        if answer.status != 200:
            raise AssertionError(await answer.text())
        lines = Lines(answer)
        first = await lines.next()
        assert first["before"] is None
        assert first["after"] is None
        yield lines


async def until(wanted: int, api: Api) -> None:
    async with asyncio.timeout(30):
        while len(api.parts.streams) != wanted:
            await asyncio.sleep(0.01)


@pytest.mark.req("S0-30")
async def test_a_watch_begins_with_a_bookmark_and_shows_what_happens(dev: Api) -> None:
    async with watching(dev, kind="node") as lines:
        await dev.store.commit(Put(make_node("n1")))
        await dev.store.commit(Put(make_workload("web")))
        found = await dev.store.get(Key("node", "", "n1"))
        assert found is not None
        await dev.store.commit(Delete(found.key, found.meta.version))
        assert await lines.change() == ("created", "n1")
        assert await lines.change() == ("deleted", "n1")


async def test_the_lines_are_json_objects_with_revision_before_and_after(dev: Api) -> None:
    async with watching(dev, kind="node") as lines:
        revision = await dev.store.commit(Put(make_node("n1", zone="a")))
        line = await lines.next()
    assert line["revision"] == revision
    assert line["before"] is None
    assert line["after"]["kind"] == "node"
    assert line["after"]["meta"]["labels"] == {"zone": "a"}
    assert line["after"]["status"]["phase"] == "Unknown"


async def test_a_watch_by_plural_namespace_and_node_sees_only_that(dev: Api) -> None:
    async with watching(dev, kind="instances", node="n1", namespace="a") as lines:
        await dev.store.commit(
            Put(make_instance("x-0", namespace="a", node="n2")),
            Put(make_instance("x-0", namespace="b", node="n1")),
            Put(make_instance("x-1", namespace="a", node="n1")),
        )
        assert await lines.change() == ("created", "x-1")


async def test_a_watch_of_several_kinds_keeps_their_order(dev: Api) -> None:
    async with watching(dev, kind="instances,node", node="n1") as lines:
        await dev.store.commit(Put(make_workload("web")), Put(make_node("n1")))
        await dev.store.commit(Put(make_instance("x-0", node="n1")))
        assert await lines.change() == ("created", "n1")
        assert await lines.change() == ("created", "x-0")


async def test_one_unknown_kind_among_several_is_refused(dev: Api) -> None:
    client = await dev.client()
    with pytest.raises(Invalid, match="no kind 'nodez'"):
        await client.request("GET", "/v1/snapshot", query={"kind": "instance,nodez"})


async def test_a_watch_by_selector_shows_entering_and_leaving(dev: Api) -> None:
    async with watching(dev, kind="workload", labels="tier!=back,app") as lines:
        await dev.store.commit(Put(make_workload("web", app="x", tier="front")))
        await dev.store.commit(Put(make_workload("db", app="x", tier="back")))
        found = await dev.store.get(Key("workload", "default", "web"))
        assert found is not None
        meta = Meta(name="web", namespace="default", uid=found.meta.uid, version=found.meta.version)
        await dev.store.commit(Put(found.changed(meta=meta)))
        assert await lines.change() == ("created", "web")
        assert await lines.change() == ("deleted", "web")


async def test_instances_are_watched_by_the_labels_of_their_workload_even_after_it_is_gone(dev: Api) -> None:
    await dev.store.commit(Put(make_workload("web", app="shop")))
    async with watching(dev, kind="instance", labels="app=shop") as lines:
        await dev.store.commit(Put(make_workload("late", app="shop")))
        await dev.store.commit(Put(make_instance("other-0")), Put(make_instance("web-0")), Put(make_instance("late-0")))
        assert await lines.change() == ("created", "web-0")
        assert await lines.change() == ("created", "late-0")
        for key in (Key("workload", "default", "web"), Key("instance", "default", "web-0")):
            found = await dev.store.get(key)
            assert found is not None
            await dev.store.commit(Delete(key, found.meta.version))
        assert await lines.change() == ("deleted", "web-0")


async def test_a_watch_resumes_from_its_revision(dev: Api) -> None:
    revisions = [await dev.store.commit(Put(make_node(f"n{number}"))) for number in range(5)]
    session = await dev.session()
    async with session.get("/v1/watch", params={"kind": "node", "since": revisions[2]}) as answer:
        lines = Lines(answer)
        assert [await lines.change() for _ in range(2)] == [("created", "n3"), ("created", "n4")]


async def test_a_watch_from_a_dropped_revision_is_expired(start_api: StartApi) -> None:
    dev = await start_api(store=MemoryStore(history_most=10), tokens_required=False)
    for number in range(30):
        await dev.store.commit(Put(make_node(f"n{number}")))
    store = RemoteStore(await dev.client())
    with pytest.raises(Expired) as caught:
        async for _ in store.watch("node", since=1):
            pass
    assert caught.value.hint


async def test_a_watcher_that_does_not_read_gets_expired_and_costs_no_endless_memory(start_api: StartApi) -> None:
    """It stops reading; the server buffers up to its bound, then drops it with an error as the last line."""
    store = MemoryStore(buffer_most=200)
    dev = await start_api(store=store, tokens_required=False)
    session = await dev.session()
    async with session.get("/v1/watch", params={"kind": "workload"}) as answer:
        lines = Lines(answer)
        await lines.next()
        answer.connection.transport.pause_reading()  # type: ignore[union-attr]
        long = {f"label{number}": "x" * 250 for number in range(40)}
        for number in range(3000):
            await store.commit(Put(make_workload(f"w{number}", **long)))
            if number % 100 == 0:
                await asyncio.sleep(0)
        assert sum(len(each.buffer) for peers in store.index._subscribers.values() for each in peers) <= 201
        answer.connection.transport.resume_reading()  # type: ignore[union-attr]
        error = None
        async with asyncio.timeout(60):
            while error is None:
                error = (await lines.next()).get("error")
    assert error["code"] == "expired"
    assert error["hint"]


async def test_the_server_notices_when_watchers_go_away(dev: Api) -> None:
    session = await dev.session()
    answers = [await session.get("/v1/watch", params={"kind": "node"}) for _ in range(20)]
    await until(20, dev)
    for answer in answers[:15]:
        answer.close()
    await until(5, dev)
    assert isinstance(dev.store, MemoryStore)
    assert dev.store.index.watchers == 5 + 1  # the server itself follows tokens
    for answer in answers[15:]:
        answer.close()
    await until(0, dev)
    assert dev.store.index.watchers == 1


async def test_watches_end_cleanly_when_the_server_stops(start_api: StartApi) -> None:
    dev = await start_api(tokens_required=False)
    async with watching(dev, kind="node") as lines:
        dev.server.stop()
        async with asyncio.timeout(30):
            assert await lines.answer.content.read() == b""


async def test_a_remote_store_whose_server_stops_shows_unavailable(start_api: StartApi) -> None:
    dev = await start_api(tokens_required=False)
    store = RemoteStore(await dev.client())
    watch = store.watch("node", since=0)
    await anext(watch)
    dev.server.stop()
    with pytest.raises(Unavailable):
        async for _ in watch:
            pass


async def test_more_watches_than_allowed_are_refused(start_api: StartApi) -> None:
    dev = await start_api(tokens_required=False, watches_most=2)
    async with watching(dev, kind="node"), watching(dev, kind="node"):
        with pytest.raises(TooMany):
            await (await dev.client()).request("GET", "/v1/watch")
    await until(0, dev)
    async with watching(dev, kind="node"):
        pass


async def test_a_watcher_of_one_namespace_sees_no_other(api: Api) -> None:
    token = await api.token("viewer", "user:ani", ("team",))
    async with watching(api, token) as lines:
        await api.store.commit(Put(make_workload("secret", namespace="other")))
        await api.token("viewer", "user:budi")
        await api.store.commit(Put(make_workload("web", namespace="team")))
        assert await lines.change() == ("created", "web")


async def test_a_watch_of_tokens_or_sessions_shows_no_secret(api: Api) -> None:
    admin = await api.token("admin", "user:admin")
    async with watching(api, admin, kind="token") as lines:
        await api.token("viewer", "user:ani")
        line = await lines.next()
    assert line["after"]["spec"]["identity"] == "user:ani"
    assert line["after"]["spec"]["hash"] == ""
    viewer = await api.client(await api.token("viewer", "user:budi"))
    for kind in ("token", "session", "audit"):
        with pytest.raises(Forbidden):
            await viewer.request("GET", "/v1/watch", query={"kind": kind})


async def test_in_a_watch_of_several_kinds_only_the_node_sees_the_secret_of_its_sessions(api: Api) -> None:
    admin, node = await api.token("admin", "user:admin"), await api.token("node", "node:n1")
    async with (
        watching(api, admin, kind="node,session") as theirs,
        watching(api, node, kind="node,session", node="n1") as own,
    ):
        await api.store.commit(Put(make_node("n1")))
        spec = SessionSpec(verb="logs", node="n1", instance="web-0", server="http://x", secret="s3cret")
        await api.store.commit(Put(Session(meta=Meta(name="s", namespace="default"), spec=spec)))
        seen = [await lines.object("session") for lines in (theirs, own)]
    assert [each["spec"].get("secret", "") for each in seen] == ["", "s3cret"]


class Hasty(MemoryStore):
    """Its bookmarks come at once."""

    def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        return Watch(self.index, kind, since, where, bookmark_seconds=0.05)


async def test_a_watch_ends_when_its_token_is_revoked(start_api: StartApi) -> None:
    api = await start_api(store=Hasty(), tokens_required=True)
    text = await api.token("viewer", "user:ani")
    store = RemoteStore(await api.client(text))
    watch = store.watch("node", since=(await store.list("node")).revision)
    await anext(watch)
    token = await api.store.get(Key("token", "", text.split("_")[1]))
    assert token is not None
    await api.store.commit(Delete(token.key, token.meta.version))
    with pytest.raises(Unauthenticated):
        async for _ in watch:
            pass


async def test_a_node_sees_only_what_concerns_it(api: Api) -> None:
    await api.store.commit(
        Put(make_node("n1")),
        Put(make_node("n2")),
        Put(make_workload("web")),
        Put(make_workload("db")),
        Put(make_instance("web-0", node="n1")),
        Put(make_instance("db-0", node="n2")),
    )
    store = RemoteStore(await api.client(await api.token("node", "node:n1")))
    assert [item.meta.name for item in (await store.list("instance")).items] == ["web-0"]
    assert [item.meta.name for item in (await store.list("instance", Filter(node="n1"))).items] == ["web-0"]
    assert [item.meta.name for item in (await store.list("node")).items] == ["n1"]
    assert [item.meta.name for item in (await store.list("workload")).items] == ["web"]
    assert await store.get(Key("workload", "default", "web")) is not None
    assert await store.get(Key("workload", "default", "db")) is None
    assert await store.get(Key("cluster", "", "cluster")) is not None
    assert await store.get(Key("instance", "default", "db-0")) is None, "answered as one that is not there"
    assert await store.get(Key("node", "", "n2")) is None
    refused = [
        store.list("instance", Filter(node="n2")),
        store.list("token"),
        store.list(None),
        store.list("lease"),
        anext(store.watch("workload", since=0)),
        anext(store.watch(None, since=0)),
        anext(store.watch("instance", since=0, where=Filter(node="n2"))),
        anext(store.watch(None, since=0, where=Filter(node="n2", kinds=frozenset({"instance", "node"})))),
        anext(store.watch(None, since=0, where=Filter(node="n1", kinds=frozenset({"instance", "token"})))),
    ]
    for each in refused:
        with pytest.raises(Forbidden):
            await each
    own = Filter(kinds=frozenset({"instance", "node"}))
    assert [item.meta.name for item in (await store.list(None, own)).items] == ["web-0", "n1"]
    start = (await store.list("instance")).revision
    watch = store.watch("instance", since=start)
    await anext(watch)
    found = await api.store.get(Key("instance", "default", "db-0"))
    assert isinstance(found, Instance)
    await api.store.commit(Put(found.stopping("test")))
    await api.store.commit(Put(make_instance("web-1", node="n1")))
    (change,) = await anext(watch)
    assert change.key.name == "web-1"


async def test_a_snapshot_that_breaks_off_is_not_taken_for_whole(dev: Api) -> None:
    """A server that dies in the middle of a list must not look like one that has little."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"revision":5}\n{"kind":"node","meta":{"name":"n1"},"status":{"phase":"Ready"}}\n'
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, RemoteStore(Client([f"http://127.0.0.1:{port}"])) as store:
        with pytest.raises(MandorError) as caught:
            await store.list("node")
    assert caught.value.code == "unavailable"


async def placed(api: Api, name: str, index: int = 0) -> Instance:
    """A new order for n1."""
    made = make_instance(f"{name}-{index}", node="n1")
    spec = msgspec.structs.replace(made.spec, workload=name, release=f"{name}.1", index=index)
    await api.store.commit(Put(made.changed(spec=spec, status=InstanceStatus(phase=Phase.RESERVED))))
    found = await api.store.get(made.key)
    assert isinstance(found, Instance)
    return found


async def replaced(api: Api, key: Key, **parts: Any) -> None:
    found = await api.store.get(key)
    assert found is not None
    await api.store.commit(Put(found.changed(**parts)))


@pytest.mark.req("S0-7")
async def test_an_order_comes_with_what_its_node_needs_once(api: Api) -> None:
    workload = make_workload("web")
    await api.store.commit(Put(make_node("n1")), Put(workload), Put(make_release(workload, 1)))
    token = await api.token("node", "node:n1")
    async with watching(api, token, kind="instance,node", node="n1", supplies="true") as lines:

        async def next_four() -> list[str]:
            found = [await lines.next() for _ in range(4)]
            return [*sorted(each["supply"]["kind"] for each in found[:3]), found[3]["after"]["meta"]["name"]]

        async def named() -> list[str]:
            line = await lines.next()
            if "supply" in line:
                return [line["supply"]["kind"], *await named()]
            return [] if line["after"] is None else [line["after"]["meta"]["name"]]

        await placed(api, "web", 0)
        assert await next_four() == ["namespace", "release", "workload", "web-0"]
        await placed(api, "web", 1)
        assert await named() == ["web-1"], "both are known"
        await replaced(api, workload.key, status=WorkloadStatus(phase="Running", running=1))
        await placed(api, "web", 2)
        assert await named() == ["web-2"], "to begin it nobody asks for the status of its workload"
        found = await api.store.get(workload.key)
        assert isinstance(found, Workload)
        await replaced(api, workload.key, spec=msgspec.structs.replace(found.spec, priority=5))
        await placed(api, "web", 3)
        assert await named() == ["workload", "web-3"]
        begun = await api.store.get(Key("instance", "default", "web-3"))
        assert isinstance(begun, Instance)
        await api.store.commit(Put(begun.reported(InstanceStatus(phase=Phase.RUNNING))))
        assert await named() == ["web-3"]


@pytest.mark.req("S0-7", "S0-19")
async def test_a_remote_store_receives_order_dependencies_if_all_servers_support_them(api: Api) -> None:
    workload = make_workload("web")
    await api.store.commit(Put(make_node("n1")), Put(workload), Put(make_release(workload, 1)))
    remote = RemoteStore(await api.client(await api.token("node", "node:n1")))
    where = Filter(node="n1", kinds=frozenset({"instance", "node"}), supplies=True)

    async def told(features: Sequence[str]) -> list[list[str]]:
        object.__setattr__(api.parts, "everywhere", lambda: frozenset(features))
        stream = remote.watch(None, since=(await api.store.list("cluster")).revision, where=where)
        assert isinstance(stream, AsyncGenerator)
        seen: list[list[str]] = [[]]
        async with asyncio.timeout(30), aclosing(stream):
            await anext(stream)
            for _ in range(2):
                order = await placed(api, "web", len(order_names))
                order_names.append(order.meta.name)
                while not seen[-1] or seen[-1][-1] != "instance":
                    for change in await anext(stream):
                        if not change.bookmark:
                            assert change.revision == order.meta.version
                            seen[-1].append(change.value.kind)
                seen.append([])
        return seen[:-1]

    order_names: list[str] = []
    assert await told(FEATURES) == [["release", "workload", "namespace", "instance"]] * 2
    assert await told([]) == [["instance"]] * 2
    await remote.close()
