"""Plan for groups with `depends_on`: which conditions their new instances wait for.

Waiting instances exist and name the missing conditions; the scheduler skips them. A condition that was met once for a
release stays met: a dependency that fails later stops no dependent.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from mandor.controllers import replicas
from mandor.controllers.batch_plan import done
from mandor.controllers.daemon_plan import at_home
from mandor.controllers.draft import Draft
from mandor.controllers.node_batch_plan import progress
from mandor.controllers.replicas import ClusterView
from mandor.lib.steps import FEW, WRITTEN, Steps, chosen, pieces
from mandor.model.group import CONDITION_WORDS, Condition
from mandor.model.instance import Instance
from mandor.model.phase import Phase
from mandor.model.workload import Release, Workload
from mandor.store.base import Put, Write

Members = Mapping[str, Sequence[Instance]]
Waits = Mapping[str, tuple[str, ...]]
"""Unmet conditions by group, such as `db to be healthy`."""

_BEGUN = frozenset({Phase.RUNNING, Phase.STOPPING, Phase.SUCCEEDED})


class _Stand(NamedTuple):
    """Which conditions a dependency meets."""

    started: bool = False
    healthy: bool = False
    completed: bool = False
    never: str = ""
    """Why the condition can never be met; empty: it can."""

    def missing(self, name: str, condition: Condition) -> str:
        if getattr(self, condition):
            return ""
        return f"{name} {CONDITION_WORDS[condition]}" + (f" ({self.never})" if self.never else "")


def find_waits(workload: Workload, members: Members, release: Release, cluster: ClusterView) -> Steps[Waits]:
    """Return the unmet conditions by group; none in a rehearsal, which shows where all instances would run."""
    found = {}
    for name, group in workload.spec.groups.items():
        if group.depends_on and name not in _opened(workload, release) and not cluster.rehearsed:
            stands = {}
            for other in group.depends_on:
                stands[other] = yield from _stand(other, workload, members, release, cluster)
            waits = (stands[other].missing(other, condition) for other, condition in group.depends_on.items())
            unmet = tuple(filter(None, waits))
            if unmet:
                found[name] = unmet
    return found


def opened(workload: Workload, waits: Waits) -> tuple[str, ...]:
    """Return the groups with dependencies whose conditions are all met."""
    return tuple(name for name, group in workload.spec.groups.items() if group.depends_on and name not in waits)


def all_open(workload: Workload, release: Release) -> bool:
    """Return whether no group of the workload waits."""
    known = _opened(workload, release)
    return all(name in known for name, group in workload.spec.groups.items() if group.depends_on)


def _opened(workload: Workload, release: Release) -> Sequence[str]:
    return workload.status.opened if workload.status.release == release.meta.name else ()


def describe_waits(draft: Draft, workload: Workload, waits: Waits, release: Release) -> str:
    """Return the status message; record an event when waiting starts and when it ends."""
    many = len(workload.spec.groups) > 1
    message = "; ".join(f"{f'{name} ' if many else ''}waits for {', '.join(waits[name])}" for name in waits)
    before = workload.status.message
    if message and message != before:
        draft.note(workload, "Waits", message)
    news = [name for name in opened(workload, waits) if name not in _opened(workload, release)]
    if news and "waits for " in before:
        draft.note(
            workload, "DependenciesMet", f"dependencies met: {', '.join(news) if many else 'the workload'} starts"
        )
    return message


def hold(draft: Draft, members: Members, waits: Waits, release: Release) -> Steps[None]:
    """Make new instances wait for unmet conditions, and release instances whose conditions are met."""
    if waits:
        draft.writes = yield from chosen(draft.writes, lambda piece: [_held(write, waits, release) for write in piece])
        draft.rest = _all_held(draft.rest, waits, release)
    waiting: list[Instance] = []
    for group in members.values():
        waiting += yield from chosen(group, lambda piece: [each for each in piece if each.spec.waits])
    if not waiting:
        return
    written = {write.key for write in draft.writes}
    for piece in pieces(waiting, FEW):
        for each in piece:
            wanted = waits.get(each.spec.group, ()) if each.spec.release == release.meta.name else ()
            if _waiting(each) and each.spec.waits != wanted and each.key not in written:
                draft.put(each.changed(spec=replace(each.spec, waits=wanted)))
        yield WRITTEN * len(piece)


def _waiting(each: Instance) -> bool:
    return bool(each.spec.waits) and not each.spec.node and each.spec.stop is None


def _all_held(writes: Iterable[Write], waits: Waits, release: Release) -> Iterator[Write]:
    return (_held(each, waits, release) for each in writes)


def _held(write: Write, waits: Waits, release: Release) -> Write:
    value = write.value if isinstance(write, Put) else None
    if not isinstance(value, Instance) or value.meta.uid or value.spec.release != release.meta.name:
        return write
    unmet = waits.get(value.spec.group)
    return Put(value.changed(spec=replace(value.spec, waits=unmet))) if unmet else write


# The state of dependencies.


def _stand(name: str, workload: Workload, members: Members, release: Release, cluster: ClusterView) -> Steps[_Stand]:
    if name in workload.spec.groups:
        stand = yield from _group_stand(name, workload, members[name], release, cluster)
        return stand
    other = cluster.other(name)
    if other is None:
        return _Stand(never="there is no group or workload of that name yet")
    return _workload_stand(other.workload, current=other.current)


def _group_stand(
    name: str, workload: Workload, members: Sequence[Instance], release: Release, cluster: ClusterView
) -> Steps[_Stand]:
    """Return the conditions that the group's instances of the wanted release meet."""
    if workload.spec.type == "batch":
        mine = yield from _of(release, members)
        begun = any(each.phase in _BEGUN for each in mine)
        healthy = any(each.status.ready or each.phase is Phase.SUCCEEDED for each in mine)
        if workload.spec.per_node:
            found = yield from progress(workload, name, members, release, cluster)
            over = found.over and found.wanted > 0 and not found.failed
        else:
            over = yield from done(workload, name, members, release)
        return _Stand(begun, healthy, over)
    wanted = workload.spec.groups[name].count
    if workload.spec.type == "daemon":
        wanted, members = at_home(release, name, members, cluster)
    mine = yield from _of(release, members)
    healthy = 0 < wanted <= sum(map(replicas.serving, mine))
    return _Stand(healthy or 0 < wanted <= sum(each.phase in _BEGUN for each in mine), healthy)


def _of(release: Release, members: Sequence[Instance]) -> Steps[list[Instance]]:
    return chosen(members, lambda piece: [each for each in piece if each.spec.release == release.meta.name])


def _workload_stand(other: Workload, *, current: bool) -> _Stand:
    """`current`: whether the status describes the current template."""
    spec, status = other.spec, other.status
    if spec.schedule is not None:
        return _Stand(never="it runs on a schedule and never completes")
    if not current:
        return _Stand()
    if spec.type == "batch":
        over = status.phase == "Succeeded"
        never = "it failed" if status.phase == "Failed" else ""
        begun = status.running + status.succeeded > 0
        return _Stand(over or begun, over or status.ready + status.succeeded > 0, over, never)
    whole = status.rollout is not None and status.rollout.settled_on == status.release and status.ready > 0
    healthy = whole or 0 < status.wanted <= status.ready
    return _Stand(healthy or 0 < status.wanted <= status.running, healthy)
