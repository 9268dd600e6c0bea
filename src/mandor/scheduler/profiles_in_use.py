"""The scheduler profiles of the current configuration."""

from collections.abc import Iterable, Mapping, Sequence

from mandor.placement.framework.incremental import IncrementalFilter
from mandor.placement.framework.points import PreEnqueuePlugin
from mandor.placement.framework.profile import Profile, check_together
from mandor.placement.framework.request import PlacementRequest


class ProfilesInUse:
    """Profiles by name; a reload replaces all of them."""

    def __init__(self) -> None:
        self.by_name: Mapping[str, Profile] = {}

    def replace(self, profiles: Mapping[str, Profile]) -> None:
        check_together(profiles)
        self.by_name = profiles

    def get(self, name: str) -> Profile | None:
        return self.by_name.get(name)

    def pre_enqueues(self, request: PlacementRequest) -> Iterable[PreEnqueuePlugin]:
        """Return the PreEnqueue plugins of the request's profile."""
        profile = self.by_name.get(request.profile)
        return profile.pre_enqueues if profile is not None else ()

    def outright(self, request: PlacementRequest) -> Sequence[IncrementalFilter]:
        """Return the Filter plugins of the request's profile that can rule a node out by its attributes."""
        profile = self.by_name.get(request.profile)
        return profile.outright if profile is not None else ()
