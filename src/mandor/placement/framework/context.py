"""The rest of a scheduling context: what happens between the choice of a node and the bind, and how it is undone."""

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
    """One placement on its way: the plugins that decided it are those that see it end."""

    profile: Profile
    request: PlacementRequest
    node: str
    state: CycleState


@dataclass(frozen=True, slots=True)
class Permission:
    """What the Permit plugins said together."""

    denied_by: Plugin | None = None
    why: str = ""
    waits: tuple[tuple[str, float], ...] = ()
    """Who tells it to wait, and for how many seconds at most."""


def run_reserve(context: Context, watch: Watch | None = None) -> None:
    """Each is told; if one refuses, all are told to undo it, and the refusal is raised."""
    watch = watch or Unwatched()
    try:
        for plugin in context.profile.reserves:
            watch.begin(plugin.name, "Reserve")
            with blamed(plugin):
                plugin.reserve(context.state, context.request, context.node)
    finally:
        watch.end()


def run_unreserve(context: Context, watch: Watch | None = None) -> list[PluginFault]:
    """In reverse order, each of them, whatever the others do; the faults are for the log."""
    plugins = reversed(context.profile.reserves)
    return _tell_each(
        plugins, lambda each: each.unreserve(context.state, context.request, context.node), "Reserve", watch
    )


def run_permits(context: Context, watch: Watch | None = None) -> Permission:
    """In order; the first that denies ends it."""
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
                        raise PluginFault(plugin.name, f"tells it to wait for {answer.seconds} seconds")
                    waits.append((plugin.name, float(answer.seconds)))
                elif answer is not None:
                    raise PluginFault(plugin.name, f"answered {answer!r}; a Permit answers None, a text or Wait(…)")
    finally:
        watch.end()
    return Permission(waits=tuple(waits))


def run_post_binds(context: Context, watch: Watch | None = None) -> list[PluginFault]:
    """Each is told; it is bound whatever they make of it."""
    plugins = context.profile.post_binds
    return _tell_each(
        plugins, lambda each: each.post_bind(context.state, context.request, context.node), "PostBind", watch
    )


def _tell_each(plugins: Iterable[P], tell: Callable[[P], None], point: str, watch: Watch | None) -> list[PluginFault]:
    watch = watch or Unwatched()
    faults: list[PluginFault] = []
    for plugin in plugins:
        watch.begin(plugin.name, point)
        try:
            with blamed(plugin):
                tell(plugin)
        except PluginFault as fault:
            faults.append(fault)
    watch.end()
    return faults
