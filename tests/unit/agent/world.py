"""One node on a manual clock: a memory store, a fake engine and an agent that can be killed and started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from mandor.agent.agent import Agent
from mandor.agent.direct import DirectLink
from mandor.agent.link import Heartbeat
from mandor.agent.name_keeper import NameServer
from mandor.agent.settings import AgentSettings
from mandor.agent.traffic import Balancing
from mandor.engines.base import Engine, Observed, Unit, UnitPhase
from mandor.engines.fake import FakeEngine, MemoryState
from mandor.errors import Unavailable
from mandor.lib.clock import ManualClock, settle
from mandor.model.codec import from_plain
from mandor.model.instance import Instance, InstanceSpec, InstanceStatus, instance_name
from mandor.model.meta import Key, Meta, Object
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.record import Cluster, ClusterSpec, Namespace, NamespaceSpec
from mandor.model.resources import Resources
from mandor.model.workload import Release, Workload, WorkloadSpec, make_release
from mandor.store.base import ALL, Change, Delete, Filter, Listing, Put, Store, Write
from mandor.store.memory import MemoryStore

NODE = "n1"


async def inline(work: Callable[..., Any], /, *args: Any) -> Any:
    return work(*args)


class Wire(Store):
    """The store as an agent reaches it: the connection can be cut and the store replaced."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self._cut = asyncio.Event()
        self.commits = 0
        self.prompt = asyncio.Event()
        """Cleared: commits are not answered for now."""
        self.prompt.set()

    def cut(self) -> None:
        self._cut.set()

    def mend(self) -> None:
        self._cut.clear()

    def _check(self) -> None:
        if self._cut.is_set():
            raise Unavailable("the wire is cut")

    async def get(self, key: Key) -> Object | None:
        self._check()
        return await self.store.get(key)

    async def list(self, kind: str | None, where: Filter = ALL) -> Listing:
        self._check()
        return await self.store.list(kind, where)

    async def commit(self, *writes: Write) -> int:
        self._check()
        revision = await self.store.commit(*writes)
        self.commits += 1
        await self.prompt.wait()
        return revision

    def watch(self, kind: str | None, *, since: int, where: Filter = ALL) -> AsyncIterator[Sequence[Change]]:
        return self._watch(self.store, kind, since, where)

    async def _watch(
        self, store: MemoryStore, kind: str | None, since: int, where: Filter
    ) -> AsyncIterator[Sequence[Change]]:
        self._check()
        stream = store.watch(kind, since=since, where=where)
        while True:
            batch = asyncio.ensure_future(anext(stream))
            cut = asyncio.ensure_future(self._cut.wait())
            try:
                await asyncio.wait({batch, cut}, return_when=asyncio.FIRST_COMPLETED)
                if self._cut.is_set() or store is not self.store:
                    raise Unavailable("the wire is cut")
                result = batch.result()
            finally:
                for each in (batch, cut):
                    each.cancel()
                await asyncio.gather(batch, cut, return_exceptions=True)
            yield result


class World:
    def __init__(
        self,
        data: Path,
        clock: ManualClock,
        *,
        balancing: Balancing | None = None,
        name_server: NameServer | None = None,
        **settings: Any,
    ) -> None:
        self.clock = clock
        self.balancing, self.name_server = balancing, name_server
        self.store = MemoryStore(clock=clock)
        self.wire = Wire(self.store)
        self.units = MemoryState()
        self.engine = FakeEngine(clock, state=self.units)
        self.engines: dict[str, Engine] = {"fake": self.engine}
        self.beats: list[Heartbeat] = []
        self.boot = "boot-1"
        self.address = "10.0.0.1"
        self.taken_ports: set[tuple[int, str]] = set()
        self.ahead_seconds = 0.0
        """By programs that are not ours."""
        settings.setdefault("capacity", Resources(cpu_milli=64_000, memory_bytes=64 << 30, disk_bytes=1 << 40))
        self.settings = AgentSettings(name=NODE, data=data, **settings)
        self.agent: Agent | None = None
        self.dial: Any = None
        self.link: Any = None
        self._task: asyncio.Task[None] | None = None

    # The control plane's part.

    async def found(self, cluster: str = "c1", epoch: int = 1) -> None:
        await self.store.commit(Put(Cluster(meta=Meta(name="cluster"), spec=ClusterSpec(cluster, epoch))))
        namespace_view = Namespace(meta=Meta(name="default"), spec=NamespaceSpec(level="privileged"))
        if await self.store.get(namespace_view.key) is None:
            await self.store.commit(Put(namespace_view))

    async def apply(self, name: str = "web", **group: Any) -> Workload:
        """A workload and its first release; a flat one unless `tasks` says otherwise."""
        kind = group.pop("type", "service")
        tasks = group.pop("tasks", None)
        if tasks is None:
            task = {
                key: group.pop(key)
                for key in ("options", "health", "readiness", "startup", "stop", "resources", "secrets", "files")
                if key in group
            }
            tasks = {"main": {"command": ["run"], **task}}
        groups = {"main": {"tasks": tasks, "engine": ["fake"], **group}}
        spec = from_plain({"type": kind, "groups": groups}, WorkloadSpec)
        key = Key("workload", "default", name)
        before = await self.store.get(key)
        meta = before.meta if before is not None else Meta(name=name, namespace="default")
        workload = Workload(meta=meta, spec=spec)
        await self.store.commit(Put(workload))
        if before is None:
            await self.store.commit(Put(make_release(workload, 1)))
        return workload

    async def order(
        self, name: str = "web", index: int = 0, node: str = NODE, ports: dict[str, int] | None = None
    ) -> Instance:
        """An instance, bound to the node as a scheduler would."""
        spec = InstanceSpec(workload=name, release=f"{name}.1", index=index, node=node, ports=ports)
        meta = Meta(name=instance_name(name, "main", index), namespace="default")
        status = InstanceStatus(phase=Phase.RESERVED, since=self.clock.now())
        await self.store.commit(Put(Instance(meta=meta, spec=spec, status=status)))
        return await self.instance(meta.name)

    async def instance(self, name: str = "web-0") -> Instance:
        found = await self.store.get(Key("instance", "default", name))
        assert isinstance(found, Instance), f"{name} is not there"
        return found

    async def status(self, name: str = "web-0") -> InstanceStatus:
        return (await self.instance(name)).status

    async def node(self) -> Node:
        found = await self.store.get(Key("node", "", NODE))
        assert isinstance(found, Node)
        return found

    async def stop_order(self, name: str = "web-0", reason: str = "scaled down") -> None:
        await self.store.commit(Put((await self.instance(name)).stopping(reason)))

    async def delete(self, name: str = "web-0") -> None:
        instance = await self.instance(name)
        await self.store.commit(Delete(instance.key, instance.meta.version))

    # The node's part.

    async def boot_agent(self) -> Agent:
        # Another engine object over the same units: what a new agent process would have.
        self.engine = FakeEngine(self.clock, state=self.units)
        self.engines["fake"] = self.engine
        link = self.link or DirectLink(self.wire, NODE, beat=lambda _, beat: self.beats.append(beat), dial=self._dial)
        self.agent = Agent(
            self.settings,
            self.wire,
            link,
            self.engines,
            self.clock,
            blocking=inline,
            boot=self.boot,
            locate=lambda: self.address,
            port_in_use=lambda port, protocol: (port, protocol) in self.taken_ports,
            clock_ahead=lambda: self.ahead_seconds,
            balancing=self.balancing,
            name_server=self.name_server,
        )
        self._task = asyncio.ensure_future(self.agent.run())
        await self.clock.advance(0.1)
        return self.agent

    async def ended(self) -> None:
        assert self._task is not None
        task, self._task = self._task, None
        await task

    async def _dial(self, session: Any) -> Any:
        return await self.dial(session)

    async def kill_agent(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
            self._task = None
            await self.engine.close()

    async def restart_agent(self) -> Agent:
        await self.kill_agent()
        return await self.boot_agent()

    async def exchange(self, store: MemoryStore) -> None:
        """Another store answers at the same address."""
        old, self.store = self.store, store
        self.wire.store = store
        await old.close()

    async def observed(self) -> list[Observed]:
        return list(await self.engine.list())

    async def live(self) -> list[Unit]:
        return [each.unit for each in await self.observed() if each.phase is not UnitPhase.EXITED]

    @property
    def starts(self) -> list[Unit]:
        return [each.unit for each in self.engine.starts]

    async def pass_time(self, seconds: float, step: float = 1.0) -> None:
        """Let the world live on, a step at a time: what one step causes happens before the next."""
        left = seconds
        while left > 0:
            await self.clock.advance(min(step, left))
            await settle()
            left -= step

    async def until(self, true: Callable[[], Any], seconds: float = 60.0, step: float = 0.5) -> None:
        """Advance the clock until the condition is true, or fail."""
        for _ in range(int(seconds / step) + 1):
            if await true():
                return
            await self.pass_time(step, step)
        statuses = [each.status for each in (await self.store.list("instance")).items]
        raise AssertionError(f"not within {seconds}s of the world's time: {statuses}")

    async def until_phase(self, phase: Phase, name: str = "web-0", seconds: float = 60.0) -> InstanceStatus:
        async def reached() -> bool:
            return (await self.status(name)).phase is phase

        await self.until(reached, seconds)
        return await self.status(name)


@asynccontextmanager
async def open_world(data: Path, **settings: Any) -> AsyncIterator[World]:
    """Open a cluster with one node whose agent runs."""
    world = World(data, ManualClock(), **settings)
    await world.found()
    await world.boot_agent()
    try:
        yield world
    finally:
        await world.kill_agent()
        await world.store.close()


def release_key(name: str = "web") -> Key:
    return Key(Release.kind, "default", f"{name}.1")
