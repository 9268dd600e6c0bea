"""The default profiles."""

from collections.abc import Callable, Mapping

from mandor.model.claim import CLAIM_PROFILE
from mandor.placement.built_in import DEFAULTS
from mandor.placement.config import default_config
from mandor.placement.framework.handle import DETACHED, Handle
from mandor.placement.framework.plugin_factory import Registered, make_plugin
from mandor.placement.framework.profile import Enabled, Profile
from mandor.placement.plugin_source import find_plugins
from mandor.placement.profile_factory import ProfileFactory


def default_profile(handle: Handle = DETACHED) -> Profile:
    """Return the default profile: each default plugin at every point that it serves."""
    return Profile("default", [Enabled(make_plugin(Registered(cls), handle), weight) for cls, weight in DEFAULTS])


def _baremetal(handle: Handle) -> Profile:
    registry = find_plugins(points=())
    return ProfileFactory(handle).profiles(default_config(registry), registry)[CLAIM_PROFILE]


def made_with(
    profiles: Mapping[str, Profile] | Callable[[Handle], Mapping[str, Profile]] | None, handle: Handle
) -> Mapping[str, Profile]:
    """Return given profiles, or make them for a handle; without any, the built-in profiles."""
    if profiles is None:
        return {"default": default_profile(handle), CLAIM_PROFILE: _baremetal(handle)}
    return profiles(handle) if callable(profiles) else profiles
