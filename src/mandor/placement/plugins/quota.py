"""Quota: limits what the instances of a namespace take."""

from collections.abc import Hashable, Iterator

import numpy as np
from msgspec import Struct
from msgspec.structs import force_setattr

from mandor.lib.quantity import Cpu, Size
from mandor.model.resources import resource_name
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.incremental import IncrementalFilter, Reach
from mandor.placement.framework.points import SKIP, ClusterChange, ClusterEvent, Hint, PreFilterPlugin, Skip
from mandor.placement.framework.quotas import INSTANCES
from mandor.placement.framework.quotas import Quota as Limit
from mandor.placement.framework.request import CPU, DISK, MEMORY, PlacementRequest
from mandor.placement.framework.snapshot import Snapshot

_PARSE = {CPU: Cpu.parse, MEMORY: Size.parse, DISK: Size.parse}


class QuotaArgs(Struct, frozen=True, forbid_unknown_fields=True):
    namespaces: dict[str, dict[str, str | int | float]] = {}
    """Limits by namespace in addition to quota objects: `cpu`, `memory`, `disk`, devices and `instances`. `*`: all
    other namespaces."""

    def __post_init__(self) -> None:
        known: dict[str, dict[str, str | int | float]] = {}
        for namespace, limits in self.namespaces.items():
            known[namespace] = {
                each if each == INSTANCES else resource_name(each, "namespaces", namespace, each): amount
                for each, amount in limits.items()
            }
            for resource, amount in known[namespace].items():
                _amount(resource, amount)
        force_setattr(self, "namespaces", known)


class Quota(PreFilterPlugin, IncrementalFilter):
    """Counts instances from the decision until they have ended."""

    name = "Quota"
    Args = QuotaArgs
    retry_on = frozenset({ClusterEvent.ROOM_FREED, ClusterEvent.QUOTA_CHANGED})
    by_class = True

    def __init__(self, args: QuotaArgs | None = None) -> None:
        self._own = {
            namespace: Limit("", {resource: _amount(resource, amount) for resource, amount in limits.items()})
            for namespace, limits in (args or QuotaArgs()).namespaces.items()
        }

    def reach(self, request: PlacementRequest, nodes: Snapshot) -> Reach:
        """Return `CLUSTER` if the namespace has quotas: any placement of it changes the answer."""
        return Reach.CLUSTER if self._limits(request, nodes) else Reach.ATTRIBUTES

    def cache_key(self, request: PlacementRequest) -> Hashable:
        return request.key.namespace, request.identity.priority_class

    def pre_filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Skip | None:
        return None if self._limits(request, nodes) else SKIP

    def filter(self, state: CycleState, request: PlacementRequest, nodes: Snapshot) -> Mask:
        return np.full(len(nodes), next(self._over(request, nodes), None) is None, dtype=np.bool_)

    def why(self, request: PlacementRequest, nodes: Snapshot, refused: Mask) -> str:
        return "; ".join(_message(request.key.namespace, limit, short) for limit, short in self._over(request, nodes))

    def hint(self, request: PlacementRequest, change: ClusterChange) -> Hint:
        """Retry only after changes in the same namespace."""
        about = change.instance
        return Hint.SKIP if about is not None and about.namespace != request.key.namespace else Hint.QUEUE

    def _limits(self, request: PlacementRequest, nodes: Snapshot) -> list[Limit]:
        found = nodes.quotas.of(request.identity, request.key.namespace)
        own = self._own.get(request.key.namespace, self._own.get("*"))
        return found if own is None else [*found, own]

    def _over(self, request: PlacementRequest, nodes: Snapshot) -> Iterator[tuple[Limit, dict[str, int]]]:
        """Yield the quotas that would be exceeded, with the missing amounts by resource."""
        wanted = {**dict(request.shape.wanted), INSTANCES: 1}
        for limit in self._limits(request, nodes):
            used = nodes.quotas.used(request.key.namespace, limit.priority_class)
            sums = {
                each: used.get(each, 0) + wanted[each] - most for each, most in limit.most.items() if each in wanted
            }
            short = {resource: over for resource, over in sums.items() if over > 0}
            if short:
                yield limit, short


def _message(namespace: str, limit: Limit, short: dict[str, int]) -> str:
    which = f"quota {limit.name} of the namespace {namespace}" if limit.name else f"quota of the namespace {namespace}"
    return f"the {which} is exceeded by {', '.join(f'{_shown(each, over)} {each}' for each, over in short.items())}"


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
