"""How much of its quotas a namespace uses: what has a node and is not over."""

from collections.abc import Callable, Hashable, Sequence

from mandor.lib.steps import Steps, pieces
from mandor.model.instance import Instance
from mandor.model.quota import Quota, QuotaStatus, used_of
from mandor.model.resources import Resources

LOOKS = 6
"""That counting one instance takes."""
Alike = list[tuple[Instance, int]]
"""One of each kind of instances that ask for the same, and how many there are."""


def plan(
    quotas: Sequence[Quota],
    instances: Sequence[Instance],
    request: Callable[[Instance], Resources],
    priority_class: Callable[[Instance], str],
) -> Steps[list[Quota]]:
    """The quotas that show something else now."""
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
