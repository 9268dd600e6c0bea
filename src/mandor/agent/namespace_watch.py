"""Watches the services and the reachable instances of the namespaces that have an instance on this node."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from mandor.agent.feed import Feed, Source
from mandor.agent.order import Order
from mandor.errors import MandorError
from mandor.lib.clock import Clock, wait_event
from mandor.lib.tasks import Background
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Key, Object
from mandor.model.record import ClusterSpec
from mandor.model.service import Service
from mandor.store.base import Change, Filter, Store

log = logging.getLogger(__name__)

KINDS = frozenset({Instance.kind, Service.kind})


class LocalInstance(NamedTuple):
    """An instance of this node with its last described status."""

    order: Order
    status: InstanceStatus


class RemoteNamespace:
    """The services and instances of one namespace, as the control plane lists them."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self._changed = changed
        self.instances: dict[Key, Instance] = {}
        self.services: dict[Key, Service] = {}
        self.complete = False
        """Whether a complete list has arrived."""
        self.revision = 0
        """Revision of the store up to which changes have arrived."""

    def listed(self, items: Sequence[Object], source: Source) -> None:
        self.instances = {each.key: each for each in items if isinstance(each, Instance)}
        self.services = {each.key: each for each in items if isinstance(each, Service)}
        self.complete, self.revision = True, source.revision
        self._changed()

    def changed(self, change: Change, source: Source) -> None:
        self.instances.pop(change.key, None)
        self.services.pop(change.key, None)
        if isinstance(change.after, Instance):
            self.instances[change.key] = change.after
        elif isinstance(change.after, Service):
            self.services[change.key] = change.after
        self.revision = source.revision
        self._changed()

    def lost(self, error: MandorError, failures: int) -> None:
        """Keep the objects that were known last."""
        log.debug("cannot watch the services and instances of a namespace: %s", error)


class NamespaceWatch:
    """Follows exactly the namespaces that have instances on this node, and calls its listeners after each change."""

    def __init__(
        self,
        node: str,
        store: Store,
        clock: Clock,
        *,
        instances: Callable[[], Iterable[LocalInstance]],
        read_cluster: Callable[[], Awaitable[ClusterSpec]],
    ) -> None:
        self.node = node
        self.local_instances = instances
        self._store, self._clock, self._read_cluster = store, clock, read_cluster
        self._remote: dict[str, RemoteNamespace] = {}
        self._feeds: dict[str, asyncio.Task[None]] = {}
        self._listeners: list[Callable[[], None]] = []
        self._news = asyncio.Event()
        self._followed = False

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed` after each change of an instance or a service."""
        self._listeners.append(changed)

    def wake(self) -> None:
        """An instance of this node came, went or changed."""
        self._news.set()
        self._changed()

    def _changed(self) -> None:
        for each in self._listeners:
            each()

    async def run(self) -> None:
        """Follow the namespaces until cancelled."""
        async with Background() as tasks:
            while True:
                self._news.clear()
                self._follow(tasks)
                await wait_event(self._clock, None, self._news)

    def _follow(self, tasks: Background) -> None:
        self._followed = True
        wanted = {each.order.instance.meta.namespace for each in self.local_instances()}
        for namespace in [each for each in self._feeds if each not in wanted]:
            self._feeds.pop(namespace).cancel()
            del self._remote[namespace]
        for namespace in sorted(wanted - self._feeds.keys()):
            reader = self._remote[namespace] = RemoteNamespace(self._changed)
            where = Filter(namespace=namespace, kinds=KINDS)
            feed = Feed(self._store, None, where, self._clock, reader, self._read_cluster)
            self._feeds[namespace] = tasks.start(_quietly(feed.run()), f"services and instances of {namespace}")

    @property
    def settled(self) -> bool:
        """Whether a complete list of every namespace with an instance on this node has arrived."""
        wanted = {each.order.instance.meta.namespace for each in self.local_instances()}
        return self._followed and all(self.complete(each) for each in wanted)

    def complete(self, namespace: str) -> bool:
        """Return whether a complete list of the namespace has arrived."""
        return namespace in self._remote and self._remote[namespace].complete

    def revisions(self) -> dict[str, int]:
        """Return the revision up to which the changes of each namespace have arrived."""
        return {name: each.revision for name, each in self._remote.items() if each.complete}

    def services(self, namespace: str | None = None) -> list[Service]:
        """Return the services of one namespace, or of all."""
        chosen = self._remote.values() if namespace is None else [self._remote.get(namespace)]
        return [service for each in chosen if each is not None for service in each.services.values()]

    def instances(self, namespace: str | None = None) -> Iterator[tuple[Instance, InstanceStatus]]:
        """Yield the instances of this node as last described, and those of other nodes as last listed."""
        for order, status in self.local_instances():
            if namespace in {None, order.instance.meta.namespace}:
                yield order.instance, status
        for name, remote in self._remote.items():
            if namespace in {None, name}:
                for each in remote.instances.values():
                    if each.node != self.node:
                        yield each, each.status


async def _quietly(work: Awaitable[None]) -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await work
