"""Runs the points after a node was chosen: Reserve, Unreserve, Permit and PostBind."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import Plugin, Wait
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault, blamed
from mandor.placement.framework.watch import Unwatched, Watch

P = TypeVar("P", bound=Plugin)


@dataclass(frozen=True, slots=True)
class Context:
    """One placement between decision and bind, with the profile that decided it."""

    profile: Profile
    request: PlacementRequest
    node: str
    state: CycleState


@dataclass(frozen=True, slots=True)
class Permission:
    """Combined answer of the Permit plugins."""

    denied_by: Plugin | None = None
    why: str = ""
    waits: tuple[tuple[str, float], ...] = ()
    """Names of the plugins that want to wait, with their timeouts in seconds."""


def run_reserve(context: Context, watch: Watch | None = None) -> None:
    """Call all Reserve plugins. A plugin that refuses raises; the caller then runs `run_unreserve`."""
    watch = watch or Unwatched()
    try:
        for plugin in context.profile.reserves:
            watch.begin(plugin.name, "Reserve")
            with blamed(plugin):
                plugin.reserve(context.state, context.request, context.node)
    finally:
        watch.end()


def run_unreserve(context: Context, watch: Watch | None = None) -> list[PluginFault]:
    """Call `unreserve` of all Reserve plugins in reverse order; return the faults of those that raised."""
    plugins = reversed(context.profile.reserves)
    return _call_each(
        plugins, lambda each: each.unreserve(context.state, context.request, context.node), "Reserve", watch
    )


def run_permits(context: Context, watch: Watch | None = None) -> Permission:
    """Call the Permit plugins in order, until one denies."""
    watch = watch or Unwatched()
    waits: list[tuple[str, float]] = []
    try:
        for plugin in context.profile.permits:
            watch.begin(plugin.name, "Permit")
            with blamed(plugin):
                answer = plugin.permit(context.state, context.request, context.node)
                if isinstance(answer, str):
                    return Permission(plugin, answer)
                if isinstance(answer, Wait):
                    if not 0 <= answer.seconds < float("inf"):
                        raise PluginFault(plugin.name, f"returned a wait of {answer.seconds} seconds")
                    waits.append((plugin.name, float(answer.seconds)))
                elif answer is not None:
                    raise PluginFault(plugin.name, f"returned {answer!r}; a Permit returns None, a string or Wait(…)")
    finally:
        watch.end()
    return Permission(waits=tuple(waits))


def run_post_binds(context: Context, watch: Watch | None = None) -> list[PluginFault]:
    """Call all PostBind plugins; return the faults of those that raised."""
    plugins = context.profile.post_binds
    return _call_each(
        plugins, lambda each: each.post_bind(context.state, context.request, context.node), "PostBind", watch
    )


def _call_each(plugins: Iterable[P], call: Callable[[P], None], point: str, watch: Watch | None) -> list[PluginFault]:
    watch = watch or Unwatched()
    faults: list[PluginFault] = []
    for plugin in plugins:
        watch.begin(plugin.name, point)
        try:
            with blamed(plugin):
                call(plugin)
        except PluginFault as fault:
            faults.append(fault)
    watch.end()
    return faults
