"""Records of a pool's machines that do not exist any more: removed on request."""

from typing import Annotated

from msgspec import Meta as Note
from msgspec import Struct
from msgspec.structs import replace

from mandor.api.access import missing
from mandor.api.gate import Gate
from mandor.api.operation import Call, Operation
from mandor.errors import Conflict, NotFound
from mandor.model.machine import MACHINES_MOST
from mandor.model.meta import Key
from mandor.model.node import Node, NodePhase
from mandor.model.pool import NodePool
from mandor.store.base import Put


class Forget(Struct, frozen=True, forbid_unknown_fields=True):
    machines: Annotated[tuple[str, ...], Note(min_length=1, max_length=MACHINES_MOST)]
    """Ids of machines that do not exist any more."""


async def forget_machines(call: Call[None, Forget]) -> NodePool:
    """Remove machines from the status of their pool without a call to the provisioner."""
    parts, key = call.parts, Key(NodePool.kind, "", call.path["name"])
    call.caller.require("update", NodePool.kind, what="change node pools")
    pool = await parts.store.get(key)
    if not isinstance(pool, NodePool):
        raise missing(key)
    known = {each.id for each in pool.machines}
    for name in call.body.machines:
        if name not in known:
            raise NotFound(
                f"the pool {pool.meta.name} has no machine {name}",
                hint=f"`mandor describe node-pool {pool.meta.name}` lists its machines",
            )
        node = await parts.store.get(Key(Node.kind, "", name))
        if isinstance(node, Node) and node.status.phase is not NodePhase.DOWN:
            raise Conflict(
                f"the machine {name} exists: its node is {node.status.phase}",
                hint="set `max: 0` and `min: 0` to return the machines of the pool",
            )
    assert pool.status.scaling is not None
    left = tuple(each for each in pool.machines if each.id not in call.body.machines)
    after = pool.changed(status=replace(pool.status, scaling=replace(pool.status.scaling, machines=left)))
    record = parts.auditor.of_commit(call.caller, "forget", call.address, [(Put(after), pool)])
    stored = after.stamped(version=await parts.store.commit(Put(after), *record))
    if parts.recorder is not None:
        names = ", ".join(call.body.machines)
        parts.recorder.note(stored, "MachineForgotten", f"{call.caller.identity} removed the records of {names}")
    return stored


OPERATIONS = [
    Operation(
        method="POST",
        path="/v1/node-pools/{name}/forget",
        name="forget_machines",
        summary="Remove the records of machines that do not exist any more",
        tag="nodes",
        gate=Gate(verbs=("update",), kind=NodePool.kind),
        handler=forget_machines,
        body=Forget,
        result=NodePool,
        refuses=("not_found", "conflict"),
    ),
]
