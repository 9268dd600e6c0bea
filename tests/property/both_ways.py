"""The plan of a workload, held against the plain one, which looks at everything even if all is in place."""

from collections.abc import Generator
from dataclasses import replace
from unittest.mock import patch

from mandor.controllers.draft import Draft
from mandor.controllers.in_place_plan import in_place, stays_in_place
from mandor.controllers.release_plan import current_release
from mandor.controllers.slot import World
from mandor.controllers.workload_plan import Seen, only_tells, plan
from mandor.lib.steps import at_once
from mandor.model.instance import UNSCHEDULABLE, InstanceStatus
from mandor.model.phase import Phase
from mandor.model.workload import Workload
from mandor.store.base import Put, Write

STEPS = (
    *(InstanceStatus(phase=phase) for phase in Phase),
    InstanceStatus(phase=Phase.RUNNING, ready=True),
    InstanceStatus(phase=Phase.PENDING, reason=UNSCHEDULABLE),
)


def check_plans(seen: Seen, world: World) -> None:
    found, calm = plan(seen, world), stands(seen, world)
    with patch("mandor.controllers.workload_plan.in_place", _unknown):
        plain = plan(seen, world)
    assert (found.writes, found.notes) == (plain.writes, plain.notes)
    assert found.again_seconds == (None if calm else plain.again_seconds)
    told = [write for write in found.writes if _only_tells(write, seen.workload)]
    unheeded = plan(seen, replace(world, heeded=False))
    assert unheeded.writes == [write for write in found.writes if write not in told]
    if told == found.writes and told:
        after = told[0].value if isinstance(told[0], Put) else None
        assert isinstance(after, Workload)
        again = plan(replace(seen, workload=after), world)
        assert (again.writes, again.again_seconds) == ([], found.again_seconds)
    check_steps(seen, world)


def check_steps(seen: Seen, world: World) -> None:
    """Of those who are in place, whoever goes on makes no difference to a plan."""
    if not in_their_place(seen, world) or seen.workload is None:
        return
    unheeded = replace(world, heeded=False)
    before = plan(seen, unheeded)
    if before.writes:
        return
    for index, each in enumerate(seen.instances):
        for status in STEPS:
            after = each.changed(status=status)
            if stays_in_place(each, after, settled=settled(seen.workload)):
                others = [*seen.instances[:index], after, *seen.instances[index + 1 :]]
                found = plan(replace(seen, instances=others), unheeded)
                assert (found.writes, found.again_seconds) == ([], before.again_seconds)
                assert found.in_place


def settled(workload: Workload) -> bool:
    return workload.status.rollout is not None and bool(workload.status.rollout.settled_on)


def stands(seen: Seen, world: World) -> bool:
    """All is in place, and no roll-out is going on."""
    return seen.workload is not None and settled(seen.workload) and in_their_place(seen, world)


def in_their_place(seen: Seen, world: World) -> bool:
    if seen.workload is None or seen.workload.spec.schedule is not None:
        return False
    current = current_release(Draft(), seen.workload, seen.releases)
    return at_once(in_place(seen.workload, current, seen.releases, seen.instances, world))


def _unknown(*_: object) -> Generator[int, None, bool]:
    yield 0
    return False


def _only_tells(write: Write, workload: Workload | None) -> bool:
    value = write.value if isinstance(write, Put) else None
    return workload is not None and isinstance(value, Workload) and only_tells(workload, value)
