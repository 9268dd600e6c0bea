"""VolumeBinding: places instances on the nodes of their volumes; new volumes need enough disk."""

from collections.abc import Hashable

import numpy as np

from mandor.lib.quantity import Size
from mandor.model.volume import HOST_PATHS, path_allowed
from mandor.placement.framework.column import Mask, Scores
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.handle import DETACHED, Handle
from mandor.placement.framework.incremental import IncrementalFilter, IncrementalScore, Reach
from mandor.placement.framework.node_rule import matching_all
from mandor.placement.framework.points import (
    CAPACITY_EVENTS,
    SCORE_MOST,
    SKIP,
    Only,
    PreBindPlugin,
    PreFilterPlugin,
    PreScorePlugin,
    Skip,
)
from mandor.placement.framework.request import DISK, PlacementRequest
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.volumes import WantedVolume


class VolumeBinding(PreFilterPlugin, IncrementalFilter, PreScorePlugin, IncrementalScore, PreBindPlugin):
    """The table counts new volumes together with the instance; PreBind writes them to the store before the bind.

    The score is the share of the disk that is left with the new volumes. The node of an earlier attempt gets 100.
    """

    name = "VolumeBinding"
    retry_on = CAPACITY_EVENTS
    by_class = True

    def __init__(self, handle: Handle = DETACHED) -> None:
        self._handle = handle

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        return Reach.CLUSTER if request.shape.volumes else Reach.ATTRIBUTES

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return request.class_key if request.shape.volumes else None

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Only | Skip | None:
        if not request.shape.volumes:
            return SKIP
        if _problems(request, nodes):
            return Only(frozenset())
        found = {node for wanted in request.local_volumes if (node := nodes.volumes.node_of(wanted.key))}
        if len(found) > 1:
            return Only(frozenset())
        return Only(frozenset(found)) if found else None

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        fits = _has_room(request, nodes)
        for wanted in _new(request, nodes):
            fits = fits & _keeps_rules(wanted, nodes)
        for each in request.shape.volumes.values():
            if each.path is not None:
                fits = fits & _allows(each.path, nodes)
        return fits

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        problems = _problems(request, nodes) or _elsewhere(request, nodes, refused)
        if problems:
            return "; ".join(problems)
        short = _needed(request, nodes) - int(nodes.free[nodes.rows[DISK]][refused].max())
        reasons = [f"short of {Size(short)} disk for its volumes"] if short > 0 else []
        reasons += [
            f"not where the volume {wanted.key.name} may be"
            for wanted in _new(request, nodes)
            if not _keeps_rules(wanted, nodes)[refused].any()
        ]
        reasons += [
            f"the host path {each.path} is not allowed"
            for each in request.shape.volumes.values()
            if each.path is not None and not _allows(each.path, nodes)[refused].any()
        ]
        return "; ".join(reasons) or "each lacks something that its volumes need"

    def pre_score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Skip | None:
        return None if self.concerns(request) else SKIP

    def score(self, state: CycleState, request: PlacementRequest, nodes: Snapshot, feasible: Mask) -> Scores:
        scores = np.zeros(len(nodes), dtype=np.int64)
        needed, row = _needed(request, nodes), nodes.rows[DISK]
        if needed:
            left = np.maximum(nodes.free[row] - needed, 0)
            scores = left * (SCORE_MOST - 1) // np.maximum(nodes.allocatable[row], 1)
        for wanted in _new(request, nodes):
            slot = nodes.slots.get(_earlier(wanted, nodes))
            if slot is not None:
                scores[slot] = SCORE_MOST
        return np.minimum(scores, SCORE_MOST)

    def concerns(self, request: PlacementRequest) -> bool:
        volumes = request.shape.volumes
        return bool(volumes) and any(each.type == "local" for each in volumes.values())

    async def pre_bind(self, state: CycleState, request: PlacementRequest, node: str) -> None:
        await self._handle.place_volumes(request, node)


def _new(request: PlacementRequest, nodes: Snapshot) -> list[WantedVolume]:
    """Return the volumes of the request that have no node yet."""
    return [each for each in request.local_volumes if not nodes.volumes.node_of(each.key)]


def _earlier(wanted: WantedVolume, nodes: Snapshot) -> str:
    """Return the node that was planned for a volume before, if its instance was not bound."""
    known = nodes.volumes.get(wanted.key)
    return known.node if known is not None else ""


def _needed(request: PlacementRequest, nodes: Snapshot) -> int:
    """Return the disk space of the new volumes and the instance in bytes; 0: there are no new volumes."""
    volumes = sum(nodes.volumes.size_of(each) for each in _new(request, nodes))
    return volumes + dict(request.shape.wanted).get(DISK, 0) if volumes else 0


def _has_room(request: PlacementRequest, nodes: Snapshot) -> Mask:
    needed = _needed(request, nodes)
    enough: Mask = nodes.free[nodes.rows[DISK]] >= needed if needed else np.ones(len(nodes), dtype=np.bool_)
    return enough


def _keeps_rules(wanted: WantedVolume, nodes: Snapshot) -> Mask:
    known = nodes.volumes.get(wanted.key)
    if known is None or not (known.only_node or known.pool or known.where):
        return np.ones(len(nodes), dtype=np.bool_)
    fits = matching_all(known.where, nodes).copy()
    if known.only_node is not None:
        fits &= nodes.fact("node").where(("is", known.only_node), lambda value: value[0] == known.only_node)
    if known.pool is not None:
        fits &= nodes.pools.where(("is", known.pool), lambda pool: pool == known.pool)
    return fits


def _allows(path: str, nodes: Snapshot) -> Mask:
    return nodes.fact(HOST_PATHS).where(("allows", path), lambda value: path_allowed(path, (value[0] or "").split(",")))


def _problems(request: PlacementRequest, nodes: Snapshot) -> list[str]:
    """Return the problems of the volumes that exist on every node."""
    found = []
    for key, spec in request.local_volumes:
        known = nodes.volumes.get(key)
        if spec.volume is not None:
            if known is None:
                found.append(f"there is no volume {key.name}")
        elif known is not None and known.workload not in {"", request.identity.workload}:
            found.append(f"the volume {key.name} belongs to the workload {known.workload}")
    return found


def _elsewhere(request: PlacementRequest, nodes: Snapshot, refused: Mask) -> list[str]:
    """Return the volumes that have a node, if the other nodes are refused for that."""
    placed = [(key.name, node) for key, _ in request.local_volumes if (node := nodes.volumes.node_of(key))]
    there = {node for _, node in placed}
    if len(there) == 1 and any(node in nodes.slots and refused[nodes.slots[node]] for node in there):
        return []
    return [
        f"its volume {name} is on {node}" + ("" if node in nodes.slots else ", which is gone") for name, node in placed
    ]
