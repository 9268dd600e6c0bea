"""The binding cycle of one attempt, for profiles whose plugins take part in it: Permit's wait, PreBind and Bind."""

import asyncio
from collections.abc import Coroutine
from contextlib import nullcontext
from typing import Any, TypeVar

from mandor.lib.clock import Clock
from mandor.model.instance import Instance
from mandor.placement.framework.context import Context
from mandor.placement.framework.points import Plugin
from mandor.placement.framework.profile import DEFAULT_BINDER
from mandor.placement.framework.runtime import PluginFault
from mandor.scheduler.attempt import Attempt
from mandor.scheduler.binding import NotBound
from mandor.scheduler.outcomes import Outcomes
from mandor.scheduler.pending_work import PendingWork
from mandor.scheduler.permits import Denied, PermitSlot, PermitWaits
from mandor.scheduler.store_retry import stored_now
from mandor.scheduler.tracing import Step, Tracing, step_of
from mandor.scheduler.watchdog import Watchdog
from mandor.store.base import Store

T = TypeVar("T")

STEP_SECONDS = 600.0
"""Seconds that a plugin may take at PreBind or Bind; Kubernetes gives a volume the same ten minutes."""


class BindingCycle:
    """Runs one cycle per task; many run at the same time."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        permits: PermitWaits,
        outcomes: Outcomes,
        work: PendingWork,
        watchdog: Watchdog,
        tracing: Tracing | None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._permits = permits
        self._outcomes = outcomes
        self._work = work
        self._watchdog = watchdog
        self._tracing = tracing

    async def run(self, attempt: Attempt, slot: PermitSlot | None) -> None:
        """Bind the attempt or give it up. `slot`: where it waits for permits; None: no permit is needed."""
        context = attempt.context
        assert context is not None, "plugins take part"
        try:
            end = await self._bind(context, slot, step_of(self._tracing, attempt))
        except PluginFault as fault:
            if isinstance(fault.__cause__, NotBound):
                self._outcomes.failed(attempt)
            else:
                self._outcomes.abort(attempt, str(fault))
        else:
            await self._conclude(attempt, end)
        finally:
            self._work.running -= 1
            self._work.wake.set()

    async def _conclude(self, attempt: Attempt, end: Denied | str) -> None:
        if isinstance(end, Denied):
            self._outcomes.deny(attempt, end.plugin, end.why)
        elif end == DEFAULT_BINDER or await self._is_bound(attempt):
            self._outcomes.bound(attempt)
        else:
            message = f"the plugin {end} reported a bind to {attempt.node}, but the instance is not bound there"
            self._outcomes.abort(attempt, message)

    async def _is_bound(self, attempt: Attempt) -> bool:
        stored = await stored_now(self._store, self._clock, attempt.key)
        same = isinstance(stored, Instance) and stored.meta.uid == attempt.uid
        return same and stored is not None and stored.node == attempt.node

    async def _bind(self, context: Context, slot: PermitSlot | None, step: Step) -> Denied | str:
        """Return the name of the plugin that bound the instance, or the denial; raise `PluginFault` on failure."""
        if slot is not None:
            with step("Permit", "wait"):
                denied = await self._permits.leave(slot)
            if denied is not None:
                return denied
        state, request, node = context.state, context.request, context.node
        for pre_bind in context.profile.pre_binds:
            if not pre_bind.concerns(request):
                continue
            with step("PreBind", pre_bind.name):
                await self._call(pre_bind, pre_bind.pre_bind(state, request, node), STEP_SECONDS)
        for bind in context.profile.binds:
            # The store may be unavailable for long, and a commit that was sent cannot be taken back: no limit.
            default = bind.name == DEFAULT_BINDER
            with nullcontext() if default else step("Bind", bind.name):
                done = await self._call(bind, bind.bind(state, request, node), None if default else STEP_SECONDS)
            if done:
                return bind.name
        names = ", ".join(plugin.name for plugin in context.profile.binds)
        raise PluginFault(names, "would not bind it")

    async def _call(self, plugin: Plugin, work: Coroutine[Any, Any, T], seconds: float | None) -> T:
        """Run a plugin's coroutine with each step watched; `seconds`: limit for the whole call."""
        if seconds is None:
            return await self._watchdog.follow(plugin, work)
        call = asyncio.ensure_future(self._watchdog.follow(plugin, work))
        timeout = asyncio.ensure_future(self._clock.sleep(seconds))
        try:
            await asyncio.wait({call, timeout}, return_when=asyncio.FIRST_COMPLETED)
            if not call.done():
                raise PluginFault(plugin.name, f"was not done after {seconds:g} seconds")
            if call.cancelled():
                raise PluginFault(plugin.name, "gave up")
            return call.result()
        finally:
            call.cancel()
            timeout.cancel()
            # A plugin that ignores its cancellation delays only this cycle, by one second.
            await asyncio.wait({call, timeout}, timeout=1)
