"""What is allowed and yet seldom meant: told with an apply, at once, rather than found out later."""

from collections.abc import Sequence, Set

from mandor.model.meta import Object
from mandor.model.node import Node
from mandor.model.workload import Workload
from mandor.placement.daemon_nodes import DaemonNodes, has_eligible_node


def advice(value: Object, nodes: Sequence[Node], secrets: Set[tuple[str, str]] = frozenset()) -> tuple[str, ...]:
    """`secrets`: those there are, or are about to be, by namespace and name."""
    if not isinstance(value, Workload):
        return ()
    return (*_undrainable(value), *_homeless(value, nodes), *_counted(value), *_unknown_secrets(value, secrets))


def secrets_of(workload: Workload) -> set[str]:
    """The names of those that it needs."""
    return {name for group in workload.spec.groups.values() for form in group.forms for name in form.secrets}


def _unknown_secrets(workload: Workload, secrets: Set[tuple[str, str]]) -> list[str]:
    missing = sorted(name for name in secrets_of(workload) if (workload.meta.namespace, name) not in secrets)
    return [f"there is no secret {name} yet; what needs it waits for it" for name in missing]


def _homeless(workload: Workload, nodes: Sequence[Node]) -> list[str]:
    """Daemons that would be nowhere."""
    spec = workload.spec
    if spec.type != "daemon":
        return []
    where = "{}: " if len(spec.groups) > 1 else ""
    homeless = {name: group for name, group in spec.groups.items() if not has_eligible_node(group, nodes)}
    return [where.format(name) + DaemonNodes.of(group, nodes).refusal for name, group in homeless.items()]


def _counted(workload: Workload) -> list[str]:
    """A metric that nobody answers for is found out later; a count that means nothing is told at once."""
    found = []
    for name, group in workload.spec.groups.items():
        scaling = group.autoscale
        if scaling is not None and scaling.min == scaling.max:
            where = "" if len(workload.spec.groups) == 1 else f" of the group {name}"
            found.append(f"`autoscale`{where} can change nothing: `min` and `max` are both {scaling.max}")
    return found


def _undrainable(workload: Workload) -> list[str]:
    """A service starts another one first, and so keeps any budget; who cannot do that needs one that lets it go."""
    found = []
    spec = workload.spec
    for name, group in spec.groups.items():
        stops_first = spec.type == "batch" or bool(spec.gang_of(name))
        together = spec.together(name)
        if stops_first and together and group.disruption.most_unavailable(together) == 0:
            what = "gang" if spec.gang_of(name) else "batch"
            where = "" if len(spec.groups) == 1 else f" of the group {name}"
            found.append(
                f"the budget{where} forbids every drain of a node it runs on: max_unavailable is 0, and nothing of a "
                f"{what} is started elsewhere first"
            )
    return found
