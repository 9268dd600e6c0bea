"""Data of the dashboard: a mirror of each displayed kind, kept by watch."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from mandor.cli.kinds import Kind, find_kind
from mandor.client.aio import Client
from mandor.errors import MandorError
from mandor.model.meta import Object
from mandor.store.base import ALL, Filter
from mandor.store.mirror import Mirror
from mandor.store.remote import RemoteStore

HEAD = ("node", "workload", "instance")
"""Kinds counted in the header."""


class Feed:
    """Mirrors of the kinds of one namespace (None: all). Use as `async with`: the mirrors are kept until the block
    ends.
    """

    def __init__(self, client: Client, namespace: str | None) -> None:
        self._store = RemoteStore(client)
        self.namespace = namespace
        self.changed = 0
        """Number of changes received so far; pages compare it to skip unchanged data."""
        self._mirrors: dict[str, Mirror] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        for name in HEAD:
            self.open(find_kind(name))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def open(self, kind: Kind) -> None:
        """Start to mirror a kind."""
        if kind.name in self._mirrors:
            return
        # Events about nodes have no namespace, but are shown in every namespace.
        everywhere = self.namespace is None or not kind.namespaced or kind.name == "event"
        mirror = Mirror(self._store, kind.name, ALL if everywhere else Filter(namespace=self.namespace))
        mirror.listen(lambda changes: self._count(len(changes)))
        self._mirrors[kind.name] = mirror
        self._tasks.append(asyncio.create_task(self._keep(mirror), name=f"top watches {kind.plural}"))

    async def _keep(self, mirror: Mirror) -> None:
        async with mirror:
            await mirror.synced()
            self._count(1)  # also if there is no object of the kind
            await asyncio.Event().wait()

    def _count(self, more: int) -> None:
        self.changed += more

    def items(self, name: str) -> Iterable[Object]:
        mirror = self._mirrors.get(name)
        if mirror is None:
            return ()
        if name == "event" and self.namespace is not None:
            return (value for value in mirror.items() if value.meta.namespace in {"", self.namespace})
        return mirror.items()

    def complete(self, name: str) -> bool:
        mirror = self._mirrors.get(name)
        return mirror is not None and mirror.complete

    def error(self, name: str) -> MandorError | None:
        """Return the error that keeps a kind from being up to date."""
        mirror = self._mirrors.get(name)
        return mirror.error if mirror is not None else None

    def instances_by_node(self) -> Counter[str]:
        return Counter(value.node for value in self.items("instance") if value.node)

    def summary(self) -> str:
        """Summarize the cluster: `nodes 3/4 ready · workloads 12 · instances 40: 38 Running, 2 Pending`."""
        nodes = Counter(_phase(value) for value in self.items("node"))
        phases = Counter(_phase(value) for value in self.items("instance"))
        counts = ", ".join(f"{count} {phase}" for phase, count in phases.most_common(4))
        workloads = sum(1 for _ in self.items("workload"))
        return (
            f"nodes {nodes['Ready']}/{nodes.total()} ready · workloads {workloads} · "
            f"instances {phases.total()}{f': {counts}' if counts else ''}"
        )


def _phase(value: Object) -> str:
    status = getattr(value, "status", None)
    return str(getattr(status, "phase", "")) or "-"
