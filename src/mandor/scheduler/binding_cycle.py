"""The binding cycle of one placement, for profiles whose plugins have a say in it: Permit's wait, PreBind, Bind."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from mandor.lib.clock import Clock
from mandor.placement.framework.context import Context
from mandor.placement.framework.points import Plugin
from mandor.placement.framework.profile import DEFAULT_BINDER
from mandor.placement.framework.runtime import PluginFault
from mandor.scheduler.permits import Denied, PermitSlot, PermitWaits
from mandor.scheduler.watchdog import Watchdog

T = TypeVar("T")
Step = Callable[[str, str], AbstractContextManager[None]]

STEP_SECONDS = 600.0
"""So long may a plugin take to prepare or to bind; as in Kubernetes, which gives a volume ten minutes."""


def unseen(point: str = "", plugin: str = "") -> AbstractContextManager[None]:
    return nullcontext()


class BindingCycle:
    """Many run at once, each a task of its own."""

    def __init__(self, clock: Clock, room: PermitWaits, watchdog: Watchdog) -> None:
        self._clock = clock
        self._room = room
        self._watchdog = watchdog

    async def run(self, context: Context, seat: PermitSlot | None, step: Step = unseen) -> Denied | str:
        """The name of the plugin that bound it, or who denied it; a `PluginFault` when something went wrong. `step`:
        told at which point who is at work."""
        if seat is not None:
            with step("Permit", "wait"):
                denied = await self._room.leave(seat)
            if denied is not None:
                return denied
        state, request, node = context.state, context.request, context.node
        for pre_bind in context.profile.pre_binds:
            if not pre_bind.concerns(request):
                continue
            with step("PreBind", pre_bind.name):
                await self._follow(pre_bind, pre_bind.pre_bind(state, request, node), STEP_SECONDS)
        for bind in context.profile.binds:
            # The store may be away for long; what is being written cannot be given up.
            seconds = None if bind.name == DEFAULT_BINDER else STEP_SECONDS
            with unseen() if bind.name == DEFAULT_BINDER else step("Bind", bind.name):
                done = await self._follow(bind, bind.bind(state, request, node), seconds)
            if done:
                return bind.name
        names = ", ".join(plugin.name for plugin in context.profile.binds)
        raise PluginFault(names, "would not bind it")

    async def _follow(self, plugin: Plugin, work: Coroutine[Any, Any, T], seconds: float | None) -> T:
        """With every step watched, and an end to the whole."""
        if seconds is None:
            return await self._watchdog.follow(plugin, work)
        doing = asyncio.ensure_future(self._watchdog.follow(plugin, work))
        late = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({doing, late}, return_when=asyncio.FIRST_COMPLETED)
            if not doing.done():
                raise PluginFault(plugin.name, f"was not done after {seconds:g} seconds")
            if doing.cancelled():
                raise PluginFault(plugin.name, "gave up")
            return doing.result()
        finally:
            doing.cancel()
            late.cancel()
            # A plugin that will not be cancelled holds up nobody but itself.
            await asyncio.wait({doing, late}, timeout=1)
