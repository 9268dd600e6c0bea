"""Checks for daemons and batches with `per_node`: what cannot work with one instance on every node."""

from mandor.model.group import Group
from mandor.model.meta import InvalidField


def check_per_node(name: str, group: Group, what: str) -> None:
    """`what`: the kind of workload, for messages."""

    def wrong(message: str, *at: str, hint: str) -> InvalidField:
        return InvalidField(f"group {name}: {message}", "groups", name, *at, hint=hint)

    if group.replicas is not None:
        raise wrong(
            f"{what} cannot set `replicas`: it runs on every matching node",
            "replicas",
            hint="remove `replicas` and select nodes with `placement`; or use `type: service`",
        )
    if group.gang is not None:
        raise wrong(f"{what} cannot be a gang: each instance belongs to its node", "gang", hint="remove `gang`")
    if group.placement.spread:
        raise wrong(
            f"{what} cannot be spread: it runs once on every matching node",
            "placement",
            "spread",
            hint="remove `spread` and select nodes with `where`",
        )
    if group.disruption.max_unavailable is not None:
        raise wrong(
            f"{what} cannot limit disruptions: its instance leaves a node only when the node is drained",
            "disruption",
            "max_unavailable",
            hint="`update: {max_unavailable: …}` limits how many instances may be down during a rollout",
        )
    beside = group.update.surge_key
    if beside and group.update.kind != "canary":
        raise wrong(
            f"{what} cannot run two instances on one node during a rollout: the old instance stops first",
            "update",
            beside,
            hint="remove it; `max_unavailable` limits how many instances may be down at a time",
        )
    for volume, each in group.volumes.items():
        if each.type == "local" and not each.per_instance:
            raise wrong(
                f"the local volume {volume!r} would be on one node, but {what} runs on many",
                "volumes",
                volume,
                hint="`per_instance: true` gives each instance its own; `type: host` mounts a directory of the node",
            )
