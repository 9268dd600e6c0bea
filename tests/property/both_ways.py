"""The plan of a workload, held against the plain one, which looks at everything even if all is in place."""

from collections.abc import Generator
from unittest.mock import patch

from mandor.controllers.draft import Draft
from mandor.controllers.in_place_plan import in_place
from mandor.controllers.release_plan import current_release
from mandor.controllers.replicas import ClusterView
from mandor.controllers.workload_plan import WorkloadInputs, plan
from mandor.lib.steps import at_once
from mandor.model.workload import Workload


def check_plans(seen: WorkloadInputs, world: ClusterView) -> None:
    found, calm = plan(seen, world), stands(seen, world)
    with patch("mandor.controllers.workload_plan.in_place", _unknown):
        plain = plan(seen, world)
    assert (found.writes, found.notes) == (plain.writes, plain.notes)
    assert found.again_seconds == (None if calm else plain.again_seconds)


def settled(workload: Workload) -> bool:
    return workload.status.rollout is not None and bool(workload.status.rollout.settled_on)


def stands(seen: WorkloadInputs, world: ClusterView) -> bool:
    """All is in place, and no roll-out is going on."""
    return seen.workload is not None and settled(seen.workload) and in_their_place(seen, world)


def in_their_place(seen: WorkloadInputs, world: ClusterView) -> bool:
    if seen.workload is None or seen.workload.spec.schedule is not None:
        return False
    current = current_release(Draft(), seen.workload, seen.releases)
    return at_once(in_place(seen.workload, current, seen.releases, seen.instances, world))


def _unknown(*_: object) -> Generator[int, None, bool]:
    yield 0
    return False
