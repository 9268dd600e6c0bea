"""Keeps a hosts file for each instance of this node, and follows who else of its namespace can be reached."""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from mandor.agent.discovery import Discovery, ReachableInstance, chosen, hosts_file, neighbour_of, variables
from mandor.agent.feed import Feed, Source
from mandor.agent.journal import Blocking
from mandor.agent.order import Order
from mandor.engines.containers.launches import hostname
from mandor.errors import MandorError
from mandor.lib.clock import Clock, wait_event
from mandor.lib.tasks import Background
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Key, Object
from mandor.model.record import ClusterSpec
from mandor.store.base import Change, Filter, Store

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
"""Changes that come so close together are one."""


class LocalInstance(NamedTuple):
    """An instance of this node, as its worker last described it."""

    order: Order
    status: InstanceStatus


class RemoteInstances:
    """The instances of one namespace that are elsewhere, as the control plane tells of them."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.instances: dict[Key, Instance] = {}
        self.heard = False
        """There was a complete list."""

    def listed(self, items: Sequence[Object], source: Source) -> None:
        self.instances = {each.key: each for each in items if isinstance(each, Instance)}
        self.heard = True
        self._changed()

    def changed(self, change: Change, source: Source) -> None:
        if isinstance(change.after, Instance):
            self.instances[change.key] = change.after
        else:
            self.instances.pop(change.key, None)
        self._changed()

    def lost(self, error: MandorError, failures: int) -> None:
        """What was known last goes on to count."""
        log.debug("the instances of a namespace cannot be followed: %s", error)


class HostsFiles:
    """Files keep their inode, for a mount follows that, and are written only when they change.

    A file that an earlier agent left is not touched before the control plane has told who is elsewhere: an old name is
    better than none.
    """

    def __init__(
        self,
        node: str,
        folder: Path,
        store: Store,
        clock: Clock,
        blocking: Blocking,
        *,
        instances: Callable[[], Iterable[LocalInstance]],
        address: Callable[[], str],
        whose: Callable[[], Awaitable[ClusterSpec]],
    ) -> None:
        self._node, self._folder, self._store, self._clock, self._blocking = node, folder, store, clock, blocking
        self._local_instances, self._address, self._whose = instances, address, whose
        self._elsewhere: dict[str, RemoteInstances] = {}
        self._feeds: dict[str, asyncio.Task[None]] = {}
        self._written: dict[str, str] = {}
        """By uid."""
        self._news = asyncio.Event()

    def poke(self) -> None:
        """Somebody of this node came, went, or is not what it was."""
        self._news.set()

    async def know(self, order: Order) -> Discovery:
        """For an instance that begins now."""
        around = self._around(order.instance.meta.namespace)
        path = self._path(order.uid)
        if order.uid not in self._written and not await self._blocking(path.exists):
            await self._write(order.uid, hosts_file(around, own_names(order)))
            self.poke()
        address = self._address()
        own = {"MANDOR_NODE_ADDRESS": address} if address else {}
        return Discovery(str(path), {**own, **variables(around, order.name)})

    async def forget(self, uid: str) -> None:
        self._written.pop(uid, None)
        await self._blocking(shutil.rmtree, self._path(uid).parent, True)
        self.poke()

    async def run(self) -> None:
        """For ever: the files follow."""
        async with Background() as tasks:
            while True:
                self._news.clear()
                self._follow(tasks)
                try:
                    await self._update()
                except OSError as error:
                    log.warning("hosts files cannot be written: %s", error)
                await wait_event(self._clock, None, self._news)
                await self._clock.sleep(PAUSE_SECONDS)

    def _follow(self, tasks: Background) -> None:
        """Those namespaces that have somebody here, and no others."""
        wanted = {each.order.instance.meta.namespace for each in self._local_instances()}
        for namespace in [each for each in self._feeds if each not in wanted]:
            self._feeds.pop(namespace).cancel()
            del self._elsewhere[namespace]
        for namespace in wanted - self._feeds.keys():
            reader = self._elsewhere[namespace] = RemoteInstances(self.poke)
            where = Filter(namespace=namespace)
            feed = Feed(self._store, Instance.kind, where, self._clock, reader, self._whose)
            self._feeds[namespace] = tasks.start(_quietly(feed.run()), f"names of {namespace}")

    async def _update(self) -> None:
        around: dict[str, list[ReachableInstance]] = {}
        for order, _ in list(self._local_instances()):
            namespace = order.instance.meta.namespace
            heard = namespace in self._elsewhere and self._elsewhere[namespace].heard
            if order.uid not in self._written and not (heard and await self._blocking(self._path(order.uid).exists)):
                continue  # It has none yet, or one of an earlier agent that knew more.
            if namespace not in around:
                around[namespace] = self._around(namespace)
            text = hosts_file(around[namespace], own_names(order))
            if self._written.get(order.uid) != text:
                await self._write(order.uid, text)

    def _around(self, namespace: str) -> list[ReachableInstance]:
        near = (each for each in self._local_instances() if each.order.instance.meta.namespace == namespace)
        here = [neighbour_of(each.order.instance, each.status, self._node, self._address()) for each in near]
        known = self._elsewhere.get(namespace)
        far = known.instances.values() if known is not None else ()
        there = [neighbour_of(each, each.status, self._node, "") for each in far if each.node != self._node]
        return chosen(each for each in (*here, *there) if each is not None)

    async def _write(self, uid: str, text: str) -> None:
        await self._blocking(write_in_place, self._path(uid), text)
        self._written[uid] = text

    def _path(self, uid: str) -> Path:
        return self._folder.resolve() / uid / "hosts"


async def _quietly(work: Awaitable[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await work


def own_names(order: Order) -> list[str]:
    """The first is its name in the cluster; its host name may be another."""
    template = order.template
    asked = (
        [options.get("hostname") for task in template.tasks.values() for options in task.options.values()]
        if template
        else []
    )
    return list(dict.fromkeys([order.name, hostname(order.name), *(str(name) for name in asked if name)]))


def write_in_place(path: Path, text: str) -> None:
    """The same inode, and at no moment a line that was never meant: what is left of a longer text is blank first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    with path.open("r+b" if path.exists() else "w+b", buffering=0) as file:
        before = path.stat().st_size
        file.write(data + b"\n" * max(0, before - len(data)))
        file.truncate(len(data))
    path.chmod(0o644)
