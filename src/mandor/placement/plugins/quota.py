"""Quota: a namespace takes so much of the cluster and no more."""

import numpy as np
from msgspec import Struct

from mandor.lib.quantity import Cpu, Size
from mandor.placement.framework.ask import CPU, DISK, MEMORY, Ask
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.points import SKIP, FilterPlugin, Happening, PreFilterPlugin, Skip
from mandor.placement.framework.snapshot import INSTANCES, Snapshot

_PARSE = {CPU: Cpu.parse, MEMORY: Size.parse, DISK: Size.parse}


class QuotaArgs(Struct, frozen=True, forbid_unknown_fields=True):
    namespaces: dict[str, dict[str, str | int | float]] = {}
    """By namespace: the most of `cpu`, `memory`, `disk`, of a device, and of `instances`; `*`: for all others."""

    def __post_init__(self) -> None:
        for limits in self.namespaces.values():
            for resource, amount in limits.items():
                _amount(resource, amount)


class Quota(PreFilterPlugin, FilterPlugin):
    """Counted is what is placed, from the decision on until it is over."""

    name = "Quota"
    Args = QuotaArgs
    retry_on = frozenset({Happening.ROOM_FREED})
    by_class = True

    def __init__(self, args: QuotaArgs | None = None) -> None:
        self._limits = {
            namespace: {resource: _amount(resource, amount) for resource, amount in limits.items()}
            for namespace, limits in (args or QuotaArgs()).namespaces.items()
        }

    def pre_filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Skip | None:
        return None if self._over(ask, nodes) else SKIP

    def filter(self, state: CycleState, ask: Ask, nodes: Snapshot) -> Mask:
        return np.full(len(nodes), not self._over(ask, nodes), dtype=np.bool_)

    def why(self, ask: Ask, nodes: Snapshot, refused: Mask) -> str:
        over = ", ".join(f"{_shown(resource, short)} {resource}" for resource, short in self._over(ask, nodes))
        return f"the quota of the namespace {ask.key.namespace} is exceeded by {over}"

    def _over(self, ask: Ask, nodes: Snapshot) -> list[tuple[str, int]]:
        """By how much it would exceed what."""
        limits = self._limits.get(ask.key.namespace, self._limits.get("*"))
        if not limits:
            return []
        used, wanted = nodes.used_by(ask.key.namespace), {**dict(ask.shape.wanted), INSTANCES: 1}
        sums = ((each, used.get(each, 0) + wanted.get(each, 0) - most) for each, most in limits.items())
        return [(resource, short) for resource, short in sums if short > 0 and wanted.get(resource)]


def _amount(resource: str, amount: str | float) -> int:
    parse = _PARSE.get(resource)
    if parse is not None:
        return int(parse(amount))
    if not isinstance(amount, int) or amount < 0:
        raise ValueError(f"{resource}: {amount!r} is not a number of them")
    return amount


def _shown(resource: str, amount: int) -> str:
    if resource == CPU:
        return str(Cpu(amount))
    return str(Size(amount)) if resource in {MEMORY, DISK} else str(amount)
