"""Plan for one group of a batch with `per_node`: run it once to completion on every matching node.

The instance of a node stays as the record that its node is done, until the node is removed. A node that joins or starts
to match later runs the work as well, except in a run of a schedule, which ends once.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from mandor.controllers import replicas
from mandor.controllers.batch_plan import Ending, failed_for_good, seconds_left, start_again, succeeded
from mandor.controllers.draft import Draft
from mandor.controllers.replicas import ClusterView
from mandor.lib.steps import FEW, WRITTEN, Steps, pieces
from mandor.model.instance import Instance, daemon_name
from mandor.model.phase import Phase
from mandor.model.workload import Release, Workload
from mandor.placement.daemon_nodes import NO_MATCH, DaemonNodes

NAMED_MOST = 3
"""Failed nodes that a message names."""


class NodeProgress(NamedTuple):
    """Counts nodes of a group by the result of their instances of one release."""

    wanted: int = 0
    """Matching nodes, and other nodes with an instance that is done or still runs."""
    succeeded: int = 0
    failed: tuple[Instance, ...] = ()
    """Instances without attempts left."""

    @property
    def over(self) -> bool:
        return self.succeeded + len(self.failed) >= self.wanted

    def plus(self, other: "NodeProgress") -> "NodeProgress":
        return NodeProgress(self.wanted + other.wanted, self.succeeded + other.succeeded, (*self.failed, *other.failed))


def progress(
    workload: Workload, group: str, members: Sequence[Instance], release: Release, cluster: ClusterView
) -> Steps[NodeProgress]:
    site = cluster.site(release, group)
    counted, good, failed = set(site.eligible), 0, list[Instance]()
    for piece in pieces(members):
        for each in piece:
            home = each.spec.home
            if home not in site.eligible and home not in site.refusals:
                continue  # the node was removed
            if succeeded(each, release):
                good += 1
                counted.add(home)
            elif failed_for_good(workload, group, each, release):
                failed.append(each)
                counted.add(home)
            elif each.phase in {Phase.STARTING, Phase.RUNNING, Phase.STOPPING}:
                counted.add(home)
        yield 5 * len(piece)
    return NodeProgress(len(counted), good, tuple(failed))


def ending_per_node(
    workload: Workload, members: Mapping[str, Sequence[Instance]], release: Release, cluster: ClusterView
) -> Steps[Ending | None]:
    """Return the result once no matching node is left to run it; None: it goes on."""
    status, batch = workload.status, workload.spec.batch
    left = seconds_left(workload, release, cluster.now)
    late = left is not None and left <= 0
    final = late or bool(workload.spec.run_of)
    if final and status.release == release.meta.name and status.phase in {"Succeeded", "Failed"}:
        return Ending(status.phase, status.message)
    total = NodeProgress()
    for group, instances in members.items():
        found = yield from progress(workload, group, instances, release, cluster)
        total = total.plus(found)
    finished = f"finished on {total.succeeded} of {total.wanted} nodes"
    if late and not total.over:
        return Ending("Failed", f"{finished} within its deadline of {batch.deadline if batch is not None else None}")
    if not total.over or not (total.wanted or workload.spec.run_of):
        return None  # Without a matching node it waits for one; a run of a schedule must not block the next run.
    if total.failed:
        return Ending("Failed", _failures(total), final=final)
    return Ending("Succeeded", finished if total.wanted else NO_MATCH, final=final)


def _failures(total: NodeProgress) -> str:
    named = [f"{each.spec.home} ({replicas.shown_end(each)})" for each in total.failed[:NAMED_MOST]]
    more = len(total.failed) - len(named)
    return f"failed on {len(total.failed)} of {total.wanted} nodes: {', '.join(named)}" + (
        f" and {more} more" if more else ""
    )


def plan_per_node(
    draft: Draft, workload: Workload, name: str, members: Sequence[Instance], release: Release, cluster: ClusterView
) -> Steps[None]:
    site = cluster.site(release, name)
    left = seconds_left(workload, release, cluster.now)
    if left is not None and left > 0:
        draft.again(left)
    here: dict[str, Instance] = {}
    active = 0
    for piece in pieces(members, FEW):
        for each in piece:
            why = _misplaced(each, site, release)
            if why:
                deleted = replicas.lose(draft, each, why, cluster.now)
                active += not deleted
                continue
            here[each.spec.home] = each
            active += not replicas.ended(each)
            if each.spec.release != release.meta.name and not replicas.ended(each):
                replicas.stop(draft, each, replicas.updated_to(release), cluster.now)
        yield WRITTEN * len(piece)
    assert workload.spec.batch is not None
    room = workload.spec.batch.together - active
    for ended in pieces(sorted(home for home, each in here.items() if replicas.ended(each)), FEW):
        for home in ended:
            each = here[home]
            runs = home in site.eligible and not failed_for_good(workload, name, each, release)
            if runs and room > 0 and start_again(draft, workload, name, each, release, cluster):
                room -= 1
        yield WRITTEN * len(ended)
    _fill(draft, workload, name, sorted(site.eligible - here.keys()), room, release, cluster)


def _misplaced(each: Instance, site: DaemonNodes, release: Release) -> str:
    """Return why the instance has no place on its node any more; empty: it has, or is the record that it ended."""
    home = each.spec.home
    if home in site.eligible or home in site.retained:
        return ""
    if home not in site.refusals:
        return f"node {home} no longer exists"
    recorded = each.spec.release == release.meta.name and replicas.ended(each)
    return "" if recorded else f"node {home} no longer matches"


def _fill(
    draft: Draft,
    workload: Workload,
    name: str,
    nodes: Sequence[str],
    room: int,
    release: Release,
    cluster: ClusterView,
) -> None:
    left = replicas.at_once(len(nodes))
    for node in nodes:
        if room <= 0 or cluster.taken(daemon_name(workload.meta.name, name, node)):
            continue
        if not left:
            draft.again(0.0)
            return
        replicas.create_at(draft, workload, name, node, release)
        room -= 1
        left -= 1
