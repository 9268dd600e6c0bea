"""Refuses what a namespace does not allow its workloads: see `model.allowance`; priorities and amounts are here."""

from collections.abc import Iterator

from mandor.errors import Forbidden
from mandor.model.allowance import Allowance
from mandor.model.limit_defaults import LimitDefaults, over
from mandor.model.record import Namespace
from mandor.model.workload import GroupTemplate, Workload


def check_rules(workload: Workload, namespace: Namespace, priority: int) -> None:
    """Raise `Forbidden` for the first thing that the namespace does not allow."""
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
    """Each form of each group of a workload, with its path in the manifest."""
    for name, group in workload.spec.groups.items():
        main, *others = group.forms
        yield f"spec.groups.{name}", main
        yield from ((f"spec.groups.{name}.alternatives[{number}]", form) for number, form in enumerate(others))


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
