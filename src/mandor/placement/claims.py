"""Allocations without an agent: claims for virtual machines, and the usage that an inventory reports for a node."""

from functools import lru_cache

from mandor.model.claim import CLAIM_PROFILE, DEDICATED, Claim
from mandor.model.instance import Instance
from mandor.model.meta import Key
from mandor.model.node import Node, Occupied
from mandor.model.placement import Toleration, Where
from mandor.placement.framework.identity import NO_IDENTITY, Identity
from mandor.placement.framework.occupancy import AllocationTerms, Rank
from mandor.placement.framework.request import CPU, MEMORY, PlacementRequest, Shape
from mandor.placement.table import Table

CLAIM_RANK = Rank(preempts=False, spared=True, profile=CLAIM_PROFILE)
"""The rank of virtual machines: they are never preempted and preempt no other instance."""
_OCCUPIED = "occupied"


def shape_of(claim: Claim) -> Shape:
    where = claim.where
    if claim.dedicated and not claim.alone:
        where = (*where, f"{DEDICATED} == true")
    return _shape(claim.cpu_milli, claim.memory_bytes, claim.pool, claim.dedicated, claim.alone, where)


@lru_cache(maxsize=4096)
def _shape(cpu_milli: int, memory_bytes: int, pool: str, dedicated: bool, alone: bool, where: tuple[str, ...]) -> Shape:
    """Return the shape of a claim; equal claims share one object and so its cached scores."""
    wanted = ((CPU, cpu_milli), (MEMORY, memory_bytes))
    return Shape(
        wanted=tuple(each for each in wanted if each[1] > 0),
        counted=(cpu_milli, memory_bytes),
        host_ports=(),
        engines=(),
        images=frozenset(),
        pool=pool,
        home=pool,
        tolerate=(Toleration(key=DEDICATED),) if dedicated else (),
        must=tuple(Where(rule=text) for text in where),
        should=(),
        prefer=(),
        dedicated=alone,
        machine=True,
    )


def claim_request(instance: Instance, claim: Claim) -> PlacementRequest:
    identity = Identity(instance.meta.namespace, claim.owner, instance.spec.group)
    return PlacementRequest(instance.key, shape_of(claim), profile=CLAIM_PROFILE, preempts=False, identity=identity)


# Usage from an inventory.


def occupied_key(node: str) -> Key:
    return Key(_OCCUPIED, "", node)


def set_node(table: Table, node: Node) -> None:
    """Add a node to the table like `Table.set_node`, with the usage that its inventory reports."""
    table.set_node(node)
    key, occupied = occupied_key(node.meta.name), node.status.occupied
    if occupied is None:
        table.drop_allocation(key)
        return
    table.set_allocation(key, node.meta.name, _occupied(occupied), NO_IDENTITY, AllocationTerms(CLAIM_RANK))


def remove_node(table: Table, name: str) -> None:
    table.drop_allocation(occupied_key(name))
    table.remove_node(name)


@lru_cache(maxsize=4096)
def _occupied(occupied: Occupied) -> Shape:
    plain = _shape(occupied.cpu_milli, occupied.memory_bytes, "", False, False, ())
    return Shape(
        wanted=plain.wanted,
        counted=plain.counted,
        host_ports=(),
        engines=(),
        images=frozenset(),
        pool=None,
        tolerate=(),
        must=(),
        should=(),
        prefer=(),
        machine=True,
        heads=occupied.machines,
    )
