"""Where daemons belong: asked once for all nodes, then kept by what changes about a node."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from mandor.lib.steps import Steps, pieces
from mandor.model.node import Node
from mandor.model.workload import GroupTemplate, Release
from mandor.placement.daemon_nodes import DaemonNodes
from mandor.store.base import Change

SOME = 200
JUDGED = 50
"""Looks that judging a node takes."""


class DaemonGroup(NamedTuple):
    namespace: str
    workload: str
    group: str


class Homes:
    """A change of a node costs one question for each group of daemons; other workloads cost nothing."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._sites: dict[DaemonGroup, tuple[str, DaemonNodes]] = {}
        """With the release that it is about: the one that its instances are to have."""

    def site(self, release: Release, group: str) -> DaemonNodes:
        spec = release.spec
        key = DaemonGroup(release.meta.namespace, spec.workload, group)
        known = self._sites.get(key)
        if known is not None and known[0] == release.meta.name:
            return known[1]
        made = DaemonNodes.of(spec.groups[group], self._nodes.values())
        self._sites[key] = release.meta.name, made
        return made

    def still(self) -> Callable[[Release, str], DaemonNodes]:
        """As `site`; what it has answered once does not change any more."""
        found: dict[tuple[str, str], DaemonNodes] = {}

        def site(release: Release, group: str) -> DaemonNodes:
            key = (release.meta.name, group)
            if key not in found:
                found[key] = self.site(release, group).copy()
            return found[key]

        return site

    def prepare(self, release: Release) -> Steps[None]:
        """For all its groups, what `site` would do."""
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
        # What has changed meanwhile.
        for name, node in self._nodes.items():
            if seen.get(name) is not node:
                made.see(node)
        for name in seen.keys() - self._nodes.keys():
            made.forget(name)
        return made

    def see(self, change: Change) -> Iterable[DaemonGroup]:
        """A node as it was and as it is: to whom it is something else now."""
        before, after, name = change.before, change.after, change.key.name
        if not isinstance(after, Node):
            self._nodes.pop(name, None)
            return [key for key, (_, site) in self._sites.items() if site.forget(name)]
        self._nodes[name] = after
        if isinstance(before, Node) and _matters(before) == _matters(after):
            return ()
        return [key for key, (_, site) in self._sites.items() if site.see(after)]

    def forget(self, namespace: str, workload: str) -> None:
        """It is gone, or no daemon any more."""
        for key in [key for key in self._sites if key[:2] == (namespace, workload)]:
            del self._sites[key]  # few have any: there are as many as groups of daemons


def _matters(node: Node) -> tuple[object, ...]:
    status = node.status
    return node.spec, node.meta.labels, status.phase, status.engines, status.facts, node.drain is None
