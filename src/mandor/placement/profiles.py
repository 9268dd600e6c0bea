"""The profile that is used where nothing is configured."""

from mandor.placement.built_in import DEFAULTS
from mandor.placement.framework.handle import DETACHED, Handle
from mandor.placement.framework.making import Registered, make_plugin
from mandor.placement.framework.profile import Enabled, Profile


def default_profile(handle: Handle = DETACHED) -> Profile:
    """All defaults, each at every point it serves."""
    return Profile("default", [Enabled(make_plugin(Registered(cls), handle), weight) for cls, weight in DEFAULTS])
