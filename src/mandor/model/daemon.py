"""What a group of daemons cannot ask for: there is one on every node that matches, and never two."""

from typing import TYPE_CHECKING

from mandor.model.meta import Misfit

if TYPE_CHECKING:
    from mandor.model.workload import Group


def check_daemon(name: str, group: "Group") -> None:
    def wrong(message: str, *at: str, hint: str) -> Misfit:
        return Misfit(f"group {name}: {message}", "groups", name, *at, hint=hint)

    if group.replicas is not None:
        raise wrong(
            "a daemon has no number of replicas: it is on every node that matches",
            "replicas",
            hint="leave `replicas` out, and say with `placement` which nodes match; or write `type: service`",
        )
    if group.gang is not None:
        raise wrong("daemons are no gang: each belongs to its node", "gang", hint="leave `gang` out")
    if group.placement.spread:
        raise wrong(
            "daemons are not spread: there is one on every node that matches",
            "placement",
            "spread",
            hint="leave `spread` out, and choose nodes with `where`",
        )
    if group.disruption.max_unavailable is not None:
        raise wrong(
            "a daemon leaves its node only with everything else",
            "disruption",
            "max_unavailable",
            hint="`update: {max_unavailable: …}` says how many may be away during a roll-out",
        )
    beside = group.update.asks_for_beside
    if beside and group.update.kind != "canary":
        raise wrong(
            "no daemon is started beside another one: the old one stops first",
            "update",
            beside,
            hint="leave it out; `max_unavailable` says how many may be away at a time",
        )
    for volume, each in group.volumes.items():
        if each.type == "local" and not each.per_instance:
            raise wrong(
                f"the volume {volume!r} would be on one node, and the daemons are on many",
                "volumes",
                volume,
                hint="`per_instance: true` gives each its own; `type: host` is a folder of its node",
            )
