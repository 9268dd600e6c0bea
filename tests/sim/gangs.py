"""A gang for a test, and who of it has a node."""

from __future__ import annotations

from typing import Any

from mandor.model.workload import Workload
from tests.scenarios.make import make_workload
from tests.scenarios.world import World


def gang(name: str = "mpi", replicas: int = 3, **fields: Any) -> Workload:
    return make_workload(name, replicas=replicas, **{"gang": {}, "cpu": "1", **fields})


def bound(world: World, workload: str = "mpi") -> list[str]:
    return [
        each.meta.name
        for each in world.instances(workload)
        if each.node and not each.phase.over and each.spec.stop is None
    ]
