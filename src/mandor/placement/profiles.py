"""The profile that is used where nothing is configured."""

from collections.abc import Callable, Mapping

from mandor.placement.built_in import DEFAULTS
from mandor.placement.framework.handle import DETACHED, Handle
from mandor.placement.framework.making import Registered, make_plugin
from mandor.placement.framework.profile import Enabled, Profile


def default_profile(handle: Handle = DETACHED) -> Profile:
    """All defaults, each at every point it serves."""
    return Profile("default", [Enabled(make_plugin(Registered(cls), handle), weight) for cls, weight in DEFAULTS])


def made_with(
    profiles: Mapping[str, Profile] | Callable[[Handle], Mapping[str, Profile]] | None, handle: Handle
) -> Mapping[str, Profile]:
    """Profiles that are given, or made for this handle; without any, what is built in."""
    if profiles is None:
        return {"default": default_profile(handle)}
    return profiles(handle) if callable(profiles) else profiles
