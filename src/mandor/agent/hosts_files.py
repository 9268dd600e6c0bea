"""A hosts file for each instance of this node, updated as instances of its namespace come and go."""

import asyncio
import contextlib
import logging
import shutil
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from mandor.agent.discovery import (
    Discovery,
    ReachableInstance,
    chosen,
    hosts_file,
    reachable_from,
    reached_by_container,
    variables,
)
from mandor.agent.feed import Feed, Source
from mandor.agent.fingerprint import machine_address
from mandor.agent.journal import Blocking
from mandor.agent.order import Order
from mandor.engines.containers.launches import hostname
from mandor.errors import MandorError
from mandor.lib.clock import Clock, wait_event
from mandor.lib.loopback import is_loopback
from mandor.lib.tasks import Background
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Key, Object
from mandor.model.record import ClusterSpec
from mandor.store.base import Change, Filter, Store

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
"""Seconds within which changes are combined into one update."""


class LocalInstance(NamedTuple):
    """An instance of this node with its last described status."""

    order: Order
    status: InstanceStatus


class RemoteInstances:
    """The instances of one namespace, as the control plane lists them."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.instances: dict[Key, Instance] = {}
        self.complete = False
        """Whether a complete list has arrived."""

    def listed(self, items: Sequence[Object], source: Source) -> None:
        self.instances = {each.key: each for each in items if isinstance(each, Instance)}
        self.complete = True
        self._changed()

    def changed(self, change: Change, source: Source) -> None:
        if isinstance(change.after, Instance):
            self.instances[change.key] = change.after
        else:
            self.instances.pop(change.key, None)
        self._changed()

    def lost(self, error: MandorError, failures: int) -> None:
        """Keep the instances that were known last."""
        log.debug("cannot watch the instances of a namespace: %s", error)


class HostsFiles:
    """Writes hosts files in place (a bind mount follows the inode), and only when they change.

    A file of an earlier agent process is not changed before the first complete list: an outdated name is better than
    none.
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
        machine_address: Callable[[], str] = machine_address,
        read_cluster: Callable[[], Awaitable[ClusterSpec]],
    ) -> None:
        """`machine_address`: returns an address of this machine that containers can reach, or an empty text."""
        self._node, self._folder, self._store, self._clock, self._blocking = node, folder, store, clock, blocking
        self._machine_address = machine_address
        self._local_instances, self._address, self._read_cluster = instances, address, read_cluster
        self._remote: dict[str, RemoteInstances] = {}
        self._feeds: dict[str, asyncio.Task[None]] = {}
        self._written: dict[str, str] = {}
        """Content by uid."""
        self._news = asyncio.Event()

    def wake(self) -> None:
        """Update the files soon: an instance of this node came, went or changed."""
        self._news.set()

    async def discovery(self, order: Order) -> Discovery:
        """Return the hosts file and variables for an instance that is about to start."""
        around = self._seen_by(order, self._reachable(order.instance.meta.namespace))
        path = self._path(order.uid)
        if order.uid not in self._written and not await self._blocking(path.exists):
            await self._write(order.uid, hosts_file(around, own_names(order)))
            self.wake()
        address = self._address()
        if in_container(order) and is_loopback(address):
            address = self._machine_address()
        own = {"MANDOR_NODE_ADDRESS": address} if address else {}
        return Discovery(str(path), {**own, **variables(around, order.name)})

    async def forget(self, uid: str) -> None:
        self._written.pop(uid, None)
        await self._blocking(shutil.rmtree, self._path(uid).parent, True)
        self.wake()

    async def run(self) -> None:
        """Keep the files up to date until cancelled."""
        async with Background() as tasks:
            while True:
                self._news.clear()
                self._follow(tasks)
                try:
                    await self._update()
                except OSError as error:
                    log.warning("cannot write hosts files: %s", error)
                await wait_event(self._clock, None, self._news)
                await self._clock.sleep(PAUSE_SECONDS)

    def _follow(self, tasks: Background) -> None:
        """Watch exactly the namespaces that have instances on this node."""
        wanted = {each.order.instance.meta.namespace for each in self._local_instances()}
        for namespace in [each for each in self._feeds if each not in wanted]:
            self._feeds.pop(namespace).cancel()
            del self._remote[namespace]
        for namespace in wanted - self._feeds.keys():
            reader = self._remote[namespace] = RemoteInstances(self.wake)
            where = Filter(namespace=namespace)
            feed = Feed(self._store, Instance.kind, where, self._clock, reader, self._read_cluster)
            self._feeds[namespace] = tasks.start(_quietly(feed.run()), f"names of {namespace}")

    async def _update(self) -> None:
        around: dict[str, list[ReachableInstance]] = {}
        for order, _ in list(self._local_instances()):
            namespace = order.instance.meta.namespace
            complete = namespace in self._remote and self._remote[namespace].complete
            if order.uid not in self._written and not (complete and await self._blocking(self._path(order.uid).exists)):
                continue  # It has no file yet, or one of an earlier process that may have more names.
            if namespace not in around:
                around[namespace] = self._reachable(namespace)
            text = hosts_file(self._seen_by(order, around[namespace]), own_names(order))
            if self._written.get(order.uid) != text:
                await self._write(order.uid, text)

    def _seen_by(self, order: Order, around: Sequence[ReachableInstance]) -> Sequence[ReachableInstance]:
        """Return the instances as this one reaches them."""
        if not in_container(order) or not any(is_loopback(each.address) for each in around):
            return around
        return reached_by_container(around, self._machine_address())

    def _reachable(self, namespace: str) -> list[ReachableInstance]:
        near = (each for each in self._local_instances() if each.order.instance.meta.namespace == namespace)
        here = [reachable_from(each.order.instance, each.status, self._node, self._address()) for each in near]
        known = self._remote.get(namespace)
        far = known.instances.values() if known is not None else ()
        there = [reachable_from(each, each.status, self._node, "") for each in far if each.node != self._node]
        return chosen(each for each in (*here, *there) if each is not None)

    async def _write(self, uid: str, text: str) -> None:
        await self._blocking(write_in_place, self._path(uid), text)
        self._written[uid] = text

    def _path(self, uid: str) -> Path:
        return self._folder.resolve() / uid / "hosts"


async def _quietly(work: Awaitable[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await work


def in_container(order: Order) -> bool:
    """Return whether tasks of the instance run images, in a network of their own unless they ask for the node's."""
    return order.template is not None and any(task.image is not None for task in order.template.tasks.values())


def own_names(order: Order) -> list[str]:
    """Return the names of an instance: its name in the cluster first, then its host names."""
    template = order.template
    hostnames = (
        [options.get("hostname") for task in template.tasks.values() for options in task.options.values()]
        if template
        else []
    )
    return list(dict.fromkeys([order.name, hostname(order.name), *(str(name) for name in hostnames if name)]))


def write_in_place(path: Path, text: str) -> None:
    """Write in place, keeping the inode; readers never see a mix of lines, since a longer old text is blanked first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode()
    with path.open("r+b" if path.exists() else "w+b", buffering=0) as file:
        before = path.stat().st_size
        file.write(data + b"\n" * max(0, before - len(data)))
        file.truncate(len(data))
    path.chmod(0o644)
