"""Which lane a request takes: by what it asks for, and by who asks."""

from mandor.api.caller import Caller
from mandor.api.operation import Operation
from mandor.api.turn_plan import Lane

WEIGHTS = {"component": 4}
"""Turns of an identity for one of another, by its role: a component works for many."""


def lane_of(operation: Operation, caller: Caller) -> Lane:
    """Nodes have lanes of their own: what is bulk for people is how an agent begins."""
    if operation.lane is Lane.HEARTBEAT:
        # Only those who have a heart: anybody else waits for the refusal.
        trusted = operation.open or caller.role == "node" or not caller.token
        return Lane.HEARTBEAT if trusted else Lane.PEOPLE
    if caller.role in {"node", "join"}:
        return Lane.REPORT if operation.reports else Lane.AGENT
    return operation.lane or Lane.PEOPLE


def weight_of(caller: Caller) -> int:
    return WEIGHTS.get(caller.role, 1)
