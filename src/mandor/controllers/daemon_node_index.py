"""DaemonNodeIndex: the nodes that match each group of daemons, updated when a node changes."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from mandor.lib.steps import Steps, pieces
from mandor.model.group import GroupTemplate
from mandor.model.node import Node
from mandor.model.workload import Release
from mandor.placement.daemon_nodes import DaemonNodes
from mandor.store.base import Change

SOME = 200  # nodes per step
JUDGED = 50
"""Cost of evaluating one node, in steps of `lib.steps`."""


class DaemonGroup(NamedTuple):
    namespace: str
    workload: str
    group: str


class DaemonNodeIndex:
    """A node change costs one evaluation per group of daemons; other workloads cost nothing."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._sites: dict[DaemonGroup, tuple[str, DaemonNodes]] = {}
        """Matching nodes by group, with the name of the release that they were computed for."""

    def site(self, release: Release, group: str) -> DaemonNodes:
        spec = release.spec
        key = DaemonGroup(release.meta.namespace, spec.workload, group)
        known = self._sites.get(key)
        if known is not None and known[0] == release.meta.name:
            return known[1]
        made = DaemonNodes.of(spec.groups[group], self._nodes.values())
        self._sites[key] = release.meta.name, made
        return made

    def snapshot(self) -> Callable[[Release, str], DaemonNodes]:
        """Return `site` with cached copies, which do not change during a plan."""
        found: dict[tuple[str, str], DaemonNodes] = {}

        def site(release: Release, group: str) -> DaemonNodes:
            key = (release.meta.name, group)
            if key not in found:
                found[key] = self.site(release, group).copy()
            return found[key]

        return site

    def prepare(self, release: Release) -> Steps[None]:
        """Compute the matching nodes of all groups of a release in small steps."""
        for group, template in release.spec.groups.items():
            key = DaemonGroup(release.meta.namespace, release.spec.workload, group)
            known = self._sites.get(key)
            if known is None or known[0] != release.meta.name:
                made = yield from self._made(template)
                self._sites[key] = release.meta.name, made

    def _made(self, template: GroupTemplate) -> Steps[DaemonNodes]:
        made, seen = DaemonNodes(template), dict[str, Node]()
        for piece in pieces(list(self._nodes.values()), SOME):
            for node in piece:
                made.see(node)
                seen[node.meta.name] = node
            yield JUDGED * len(piece)
        # Nodes that changed meanwhile.
        for name, node in self._nodes.items():
            if seen.get(name) is not node:
                made.see(node)
        for name in seen.keys() - self._nodes.keys():
            made.forget(name)
        return made

    def see(self, change: Change) -> Iterable[DaemonGroup]:
        """Take a changed node; return the groups for which it matches differently now."""
        before, after, name = change.before, change.after, change.key.name
        if not isinstance(after, Node):
            self._nodes.pop(name, None)
            return [key for key, (_, site) in self._sites.items() if site.forget(name)]
        self._nodes[name] = after
        if isinstance(before, Node) and _matters(before) == _matters(after):
            return ()
        return [key for key, (_, site) in self._sites.items() if site.see(after)]

    def forget(self, namespace: str, workload: str) -> None:
        """Remove a workload that was deleted or is no longer a daemon."""
        for key in [key for key in self._sites if key[:2] == (namespace, workload)]:
            del self._sites[key]  # the number of groups of daemons is small


def _matters(node: Node) -> tuple[object, ...]:
    status = node.status
    return node.spec, node.meta.labels, status.phase, status.engines, status.facts, node.drain is None
