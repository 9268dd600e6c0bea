"""Maximum number of virtual machines or instances of each node, read from a fact or label."""

from mandor.placement.framework.column import Scores
from mandor.placement.framework.snapshot import Snapshot

FACT = "vm.quota"
"""Default name of the fact or label."""
UNBOUNDED = 2**31
"""Value for nodes without a limit."""


def machine_quotas(nodes: Snapshot, fact: str = FACT, otherwise: int = UNBOUNDED) -> Scores:
    """Return the limit of each node; `otherwise` for nodes without the fact."""
    return nodes.fact(fact).scores((FACT, otherwise), lambda value: _number(value[0], otherwise))


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) < 10 else otherwise
