"""A hosts file for each instance of this node, updated as instances of its namespace come and go."""

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mandor.agent.discovery import (
    Discovery,
    NamedService,
    ReachableInstance,
    chosen,
    hosts_file,
    named_services,
    reachable,
    reached_by_container,
    variables,
)
from mandor.agent.fingerprint import machine_address
from mandor.agent.journal import Blocking
from mandor.agent.namespace_watch import NamespaceWatch
from mandor.agent.order import Order
from mandor.engines.containers.launches import hostname
from mandor.lib.clock import Clock, wait_event
from mandor.lib.loopback import is_loopback
from mandor.network.addresses import LOOPBACK, VirtualRange
from mandor.network.endpoints import Viewpoint, seen_instance

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
"""Seconds within which changes are combined into one update."""


@dataclass(frozen=True, slots=True)
class NamesInReach:
    """What one instance finds by name."""

    instances: Sequence[ReachableInstance]
    services: Sequence[NamedService]


class HostsFiles:
    """Writes hosts files in place (a bind mount follows the inode), and only when they change.

    A file of an earlier agent process is not changed before the first complete list: an outdated name is better than
    none.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        blocking: Blocking,
        watch: NamespaceWatch,
        *,
        address: Callable[[], str],
        machine_address: Callable[[], str] = machine_address,
        networks: Callable[[], frozenset[str]] = frozenset,
        virtual: VirtualRange | None = None,
    ) -> None:
        """
        `machine_address`: returns an address of this machine that containers can reach, or an empty text.
        `networks`: returns the networks of the cluster that this node is part of.
        `virtual`: virtual addresses of services that this node balances; None: it balances none.
        """
        self._folder, self._clock, self._blocking, self._watch = folder, clock, blocking, watch
        self._machine_address, self._address, self._virtual = machine_address, address, virtual
        self._networks = networks
        self._written: dict[str, str] = {}
        """Content by uid."""
        self._news = asyncio.Event()
        watch.listen(self.wake)

    def wake(self) -> None:
        """Update the files soon: an instance of this node came, went or changed."""
        self._news.set()

    async def discovery(self, order: Order) -> Discovery:
        """Return the hosts file and variables for an instance that is about to start."""
        found = self._in_reach(order)
        path = self._path(order.uid)
        if order.uid not in self._written and not await self._blocking(path.exists):
            await self._write(order.uid, hosts_file(found.instances, own_names(order), found.services))
            self.wake()
        address = self._address()
        if in_container(order) and is_loopback(address):
            address = self._machine_address()
        own = {"MANDOR_NODE_ADDRESS": address} if address else {}
        return Discovery(str(path), {**own, **variables(found.instances, order.name)})

    async def forget(self, uid: str) -> None:
        self._written.pop(uid, None)
        await self._blocking(shutil.rmtree, self._path(uid).parent, True)
        self.wake()

    async def run(self) -> None:
        """Keep the files up to date until cancelled."""
        while True:
            self._news.clear()
            try:
                await self._update()
            except OSError as error:
                log.warning("cannot write hosts files: %s", error)
            await wait_event(self._clock, None, self._news)
            await self._clock.sleep(PAUSE_SECONDS)

    async def _update(self) -> None:
        known: dict[tuple[str, bool], NamesInReach] = {}
        for order, _ in list(self._watch.local_instances()):
            namespace = order.instance.meta.namespace
            complete = self._watch.complete(namespace)
            if order.uid not in self._written and not (complete and await self._blocking(self._path(order.uid).exists)):
                continue  # It has no file yet, or one of an earlier process that may have more names.
            kind = namespace, in_container(order)
            found = known[kind] = known.get(kind) or self._in_reach(order)
            text = hosts_file(found.instances, own_names(order), found.services)
            if self._written.get(order.uid) != text:
                await self._write(order.uid, text)

    def _in_reach(self, order: Order) -> NamesInReach:
        """Return what the instance finds by name; containers do not reach loopback addresses of the node."""
        namespace, container = order.instance.meta.namespace, in_container(order)
        view = Viewpoint(self._watch.node, self._address(), networks=self._networks())
        instances = [seen_instance(*each, view) for each in self._watch.instances(namespace)]
        seen = [each for each in instances if each is not None]
        around: Sequence[ReachableInstance] = chosen(reachable(each) for each in seen)
        if container and any(is_loopback(each.address) for each in around):
            around = reached_by_container(around, self._machine_address())
        virtual = self._virtual if self._virtual != LOOPBACK or not container else None
        return NamesInReach(around, named_services(self._watch.services(namespace), seen, virtual))

    async def _write(self, uid: str, text: str) -> None:
        await self._blocking(write_in_place, self._path(uid), text)
        self._written[uid] = text

    def _path(self, uid: str) -> Path:
        return self._folder.resolve() / uid / "hosts"


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
