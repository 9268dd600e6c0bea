"""The plan of a workload, held against the plain one, which looks at everything even if all is in place."""

from collections.abc import Generator
from dataclasses import replace
from unittest.mock import patch

from mandor.controllers.draft import Draft
from mandor.controllers.in_place_plan import in_place
from mandor.controllers.release_plan import current_release
from mandor.controllers.slot import World
from mandor.controllers.workload_plan import Seen, only_tells, plan
from mandor.lib.steps import at_once
from mandor.model.workload import Workload
from mandor.store.base import Put, Write


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


def stands(seen: Seen, world: World) -> bool:
    """All is in place."""
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
