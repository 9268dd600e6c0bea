"""How many virtual machines each node may hold, as it says itself."""

from mandor.placement.framework.column import Scores
from mandor.placement.framework.snapshot import Snapshot

FACT = "vm.quota"
"""The fact or label that says so, where nothing else is configured."""
UNBOUNDED = 2**31
"""As many as fit."""


def machine_quotas(nodes: Snapshot, fact: str = FACT, otherwise: int = UNBOUNDED) -> Scores:
    """`otherwise`: of nodes that do not say."""
    return nodes.fact(fact).scores((FACT, otherwise), lambda value: _number(value[0], otherwise))


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) < 10 else otherwise
