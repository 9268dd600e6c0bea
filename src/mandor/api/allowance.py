"""Checks workloads against the rules of their namespace and the rights of their author (see also `model.allowance`)."""

from collections.abc import Iterator

from mandor.api.caller import Caller
from mandor.errors import Forbidden
from mandor.model.allowance import Allowance
from mandor.model.group import GroupTemplate
from mandor.model.limit_defaults import LimitDefaults, over
from mandor.model.meta import Object
from mandor.model.placement import EVERYWHERE, InstanceSelector
from mandor.model.record import Namespace
from mandor.model.workload import Workload


def check_rules(workload: Workload, namespace: Namespace, priority: int) -> None:
    """Raise `Forbidden` for the first setting that the namespace does not allow."""
    rules, name = namespace.spec, namespace.meta.name
    if rules.priority_most is not None and priority > rules.priority_most:
        raise Forbidden(
            f"the namespace {name} allows no priority above {rules.priority_most}; this is {priority}",
            path="spec.priority",
        )
    allowance = Allowance(name, rules, namespace.status.first_user)
    for path, group in forms_of(workload):
        for refusal in allowance.refusals(group):
            where = f"{path}.{refusal.path}".rstrip(".")
            raise Forbidden(refusal.message, hint=refusal.hint, path=where)


def forms_of(workload: Workload) -> Iterator[tuple[str, GroupTemplate]]:
    """Yield each form of each group of a workload, with its path in the manifest."""
    for name, group in workload.spec.groups.items():
        main, *others = group.forms
        yield f"spec.groups.{name}", main
        yield from ((f"spec.groups.{name}.alternatives[{number}]", form) for number, form in enumerate(others))


def check_neighbour_namespaces(caller: Caller, before: Object | None, value: Object) -> None:
    """Raise `Forbidden` for a new `near` or `apart` rule about instances that its author may not read.

    The placement of an instance shows whether the instances that its rules select exist, and on which nodes. The check
    depends on the rights of the caller only, so its result reveals nothing about other namespaces.
    """
    if not isinstance(value, Workload) or caller.everywhere:
        return
    stored = [each for _, each in _neighbour_rules(before)] if isinstance(before, Workload) else []
    for path, rule in _neighbour_rules(value):
        # Conditions on the labels of namespaces can select any namespace, also a later one.
        chosen = (*rule.namespaces, EVERYWHERE) if rule.namespace_labels else rule.namespaces
        for namespace in () if rule in stored else chosen:
            if namespace == EVERYWHERE or not (namespace == value.meta.namespace or caller.sees(namespace)):
                where = "all namespaces" if namespace == EVERYWHERE else f"the namespace {namespace}"
                raise Forbidden(
                    f"{caller.identity} ({caller.role}) may not use a placement rule about instances of {where}",
                    hint="this requires the verb `get` on the kind `instance` there",
                    path=f"{path}.namespaces",
                )


def _neighbour_rules(workload: Workload) -> Iterator[tuple[str, InstanceSelector]]:
    for path, form in forms_of(workload):
        for kind, rules in (("near", form.placement.near), ("apart", form.placement.apart)):
            yield from ((f"{path}.placement.{kind}[{index}]", rule) for index, rule in enumerate(rules))


def check_most(workload: Workload, defaults: LimitDefaults) -> None:
    for where, group in forms_of(workload):
        for key, task in group.tasks.items():
            found = over(task, defaults.spec.most)
            if found is not None:
                path, amount, most = found
                raise Forbidden(
                    f"task {key} has {path} {amount}; the namespace {workload.meta.namespace} allows {most} at most",
                    hint=f"`mandor get limit-defaults {defaults.meta.name} -o yaml` shows what a task may ask for",
                    path=f"{where}.tasks.{key}.resources.{path}",
                )
