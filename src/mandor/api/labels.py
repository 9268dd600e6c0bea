"""Selection of objects by labels; an instance has the labels of its workload."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mandor.api.selector import Selector
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.store.base import Filter, Store

Labels = Mapping[str, str]
_NONE: Labels = {}


@dataclass(slots=True)
class Select:
    """A selector with the labels of workloads, by (namespace, name)."""

    selector: Selector
    workloads: dict[tuple[str, str], Labels] = field(default_factory=dict)

    def matches(self, value: Object) -> bool:
        if not self.selector:
            return True
        if isinstance(value, Instance):
            labels = self.workloads.get((value.meta.namespace, value.spec.workload), _NONE)
        else:
            labels = value.labels
        return self.selector.matches(labels)

    async def learn(self, store: Store, value: Object) -> None:
        """Update the labels of an instance's workload; a deleted workload keeps its last labels."""
        if self.selector and isinstance(value, Instance):
            place = (value.meta.namespace, value.spec.workload)
            found = await store.get(Key("workload", *place))
            if found is not None:
                self.workloads[place] = found.labels


async def select_for(store: Store, kind: str | None, where: Filter, selector: Selector) -> Select:
    select = Select(selector)
    if selector and kind in {"instance", None}:
        workloads = await store.list("workload", Filter(namespace=where.namespace))
        select.workloads = {(each.meta.namespace, each.meta.name): each.labels for each in workloads.items}
    return select
