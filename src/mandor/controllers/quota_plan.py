"""Computes how much of its quotas a namespace uses: instances with a node that have not ended."""

from collections.abc import Callable, Hashable, Sequence

from mandor.lib.steps import Steps, pieces
from mandor.model.instance import Instance
from mandor.model.quota import Quota, QuotaStatus, used_of
from mandor.model.resources import Resources

LOOKS = 6
"""Cost of counting one instance, in steps of `lib.steps`."""
Alike = list[tuple[Instance, int]]
"""One instance of each set of equal requests, with the size of the set."""


def plan(
    quotas: Sequence[Quota],
    instances: Sequence[Instance],
    request: Callable[[Instance], Resources],
    priority_class: Callable[[Instance], str],
) -> Steps[list[Quota]]:
    """Return the quotas whose used amounts have changed."""
    alike = yield from _alike(instances)
    changed = []
    for quota in quotas:
        wanted = quota.spec.priority_class
        counted = [each for each in alike if wanted is None or priority_class(each[0]) == wanted]
        asked = sum((request(one).times(count) for one, count in counted), Resources())
        used = used_of(quota.spec, asked, sum(count for _, count in counted))
        if used != quota.status.used:
            changed.append(quota.changed(status=QuotaStatus(used=used)))
    return changed


def _alike(instances: Sequence[Instance]) -> Steps[Alike]:
    found: dict[Hashable, tuple[Instance, int]] = {}
    for piece in pieces(instances):
        for each in piece:
            spec = each.spec
            if spec.node and not each.phase.over:
                claim = (spec.claim.cpu_milli, spec.claim.memory_bytes) if spec.claim is not None else None
                kind = spec.workload, spec.release, spec.group, spec.variant, claim
                one, count = found.get(kind, (each, 0))
                found[kind] = one, count + 1
        yield LOOKS * len(piece)
    return list(found.values())
