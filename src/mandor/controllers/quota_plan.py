"""How much of its quotas a namespace uses: what has a node and is not over."""

from collections.abc import Callable, Sequence

from mandor.model.instance import Instance
from mandor.model.quota import Quota, QuotaStatus, used_of
from mandor.model.resources import Resources


def plan(
    quotas: Sequence[Quota],
    instances: Sequence[Instance],
    request: Callable[[Instance], Resources],
    priority_class: Callable[[Instance], str],
) -> list[Quota]:
    """The quotas that show something else now."""
    placed = [each for each in instances if each.spec.node and not each.phase.over]
    changed = []
    for quota in quotas:
        wanted = quota.spec.priority_class
        counted = [each for each in placed if wanted is None or priority_class(each) == wanted]
        used = used_of(quota.spec, sum((request(each) for each in counted), Resources()), len(counted))
        if used != quota.status.used:
            changed.append(quota.changed(status=QuotaStatus(used=used)))
    return changed
