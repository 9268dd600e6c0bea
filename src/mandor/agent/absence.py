"""What it means that the control plane does not name an instance which this node has: pure."""

from typing import Literal, NamedTuple

from mandor.agent.order import Order


class Source(NamedTuple):
    """Who says so: a complete list, or the watch that goes on from it."""

    cluster: str
    epoch: int
    revision: int


def judge(order: Order | None, source: Source, forget_before_epoch: int) -> tuple[Literal["gone", "held"], str]:
    """`gone`: it may be stopped. `held`: it is left as it is, for the reason given.

    A store that was emptied, restored or exchanged does not know what was ordered before; only a
    list of the very cluster and epoch that gave the order shows that the order was taken back.
    """
    if order is None:
        if forget_before_epoch > 0:
            return "gone", ""
        return "held", "nothing is known about its order: it may be somebody else's"
    if order.cluster and order.cluster != source.cluster:
        return "held", f"it was ordered by cluster {order.cluster}, and this is {source.cluster}"
    if order.epoch < forget_before_epoch:
        return "gone", ""
    if order.epoch != source.epoch:
        return "held", f"it was ordered in epoch {order.epoch} of the cluster, and this is epoch {source.epoch}"
    if order.instance.meta.version > source.revision:
        version = order.instance.meta.version
        return "held", f"its order has version {version}, and the store is only at revision {source.revision}"
    return "gone", ""
