"""Profiles of the default plugins with those of a test beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mandor.placement.built_in import DEFAULTS
from mandor.placement.framework.handle import Handle
from mandor.placement.framework.plugin_factory import Registered, make_plugin
from mandor.placement.framework.points import Plugin
from mandor.placement.framework.profile import Enabled, Profile

Making = Callable[[Handle], Sequence[Plugin]]


def profiles(
    making: Making, name: str = "default", *, first: bool = False, without: str = ""
) -> Callable[[Handle], dict[str, Profile]]:
    """The defaults, but for one, with these plugins behind (or before) them."""

    def made(handle: Handle) -> dict[str, Profile]:
        kept = [(cls, weight) for cls, weight in DEFAULTS if cls.name != without]
        usual = [Enabled(make_plugin(Registered(cls), handle), weight) for cls, weight in kept]
        own = [Enabled(plugin) for plugin in making(handle)]
        return {name: Profile(name, own + usual if first else usual + own)}

    return made
