"""The engines of the node: their units, as last listed, and their capabilities."""

import asyncio
from collections.abc import Callable, Iterator, Mapping

from mandor.agent.observer import Changed, Observer
from mandor.agent.sync import live
from mandor.engines.base import Engine, Observed
from mandor.errors import EngineDown
from mandor.lib.clock import Clock
from mandor.lib.tasks import Background
from mandor.model.node import MAPPED_USERS, Capabilities
from mandor.model.user_range import mapped_user


class NodeEngines:
    """The engines of the node, each with its observer."""

    def __init__(
        self,
        engines: Mapping[str, Engine],
        clock: Clock,
        changed: Changed,
        *,
        poll_seconds: float,
        availability_changed: Callable[[], None],
        idle: asyncio.Event,
    ) -> None:
        """See `Observer` for the parameters."""
        self._observers = {
            name: Observer(
                engine,
                clock,
                changed,
                poll_seconds=poll_seconds,
                availability_changed=availability_changed,
                idle=idle,
            )
            for name, engine in engines.items()
        }
        self.capabilities: Mapping[str, Capabilities] = {}

    def run(self, tasks: Background) -> None:
        for name, observer in self._observers.items():
            tasks.start(observer.run(), f"engine {name}")

    def __contains__(self, name: str) -> bool:
        return name in self._observers

    def engine(self, name: str) -> Engine:
        observer = self._observers.get(name)
        if observer is None:
            raise EngineDown(f"this node no longer has the engine {name}", engine=name)
        return observer.engine

    def published_at(self, name: str) -> str:
        """Return the address at which published ports of the engine are reached; empty: the node's."""
        observer = self._observers.get(name)
        return observer.engine.published_at if observer is not None else ""

    def find(self, uid: str, engine: str) -> tuple[str, tuple[Observed, ...] | None]:
        """Return the engine of an instance and its units there.

        `engine` empty: search all engines. Units None: the engine does not answer.
        """
        if engine:
            observer = self._observers.get(engine)
            return engine, None if observer is None else observer.of(uid)
        for name, observer in self._observers.items():
            units = observer.of(uid)
            if units:
                return name, units
        return "", () if self.listed("") else None

    def listed(self, engine: str) -> bool:
        """Return whether the engine (empty: every engine) was listed at least once, with or without an answer."""
        observers = self._observers
        if engine:
            return engine not in observers or observers[engine].listed
        return all(each.listed for each in observers.values())

    async def refresh(self, engine: str) -> None:
        """List the units of the engine."""
        await self._observers[engine].refresh()

    def uids(self) -> set[str]:
        """Return the uids of all instances that have units."""
        return {uid for each in self._observers.values() for uid in each.units}

    def addresses(self) -> Iterator[tuple[str, str]]:
        """Yield the uids and addresses of instances with a running unit."""
        for observer in self._observers.values():
            for uid in observer.units:
                yield from ((uid, each.address) for each in live(observer.of(uid) or ()) if each.address)

    def alive(self, uid: str) -> bool:
        """Return whether a unit of the instance has not exited."""
        return any(live(each.of(uid) or ()) for each in self._observers.values())

    def up(self, engine: str) -> bool:
        """Return whether the engine is up; an engine that has not been probed counts as up."""
        known = self.capabilities.get(engine)
        return known is None or known.up

    def extras(self, engine: str) -> frozenset[str]:
        """Return the optional features of the engine."""
        known = self.capabilities.get(engine)
        return known.extras if known is not None else frozenset()

    def maps_users(self, engine: str) -> bool:
        return MAPPED_USERS in self.extras(engine)

    def user_on_node(self, engine: str, user: str | int | None) -> str | int | None:
        """Return the owner, on this node, of files that a task of the engine with this user reads."""
        return mapped_user(user) if isinstance(user, int) and self.maps_users(engine) else user
