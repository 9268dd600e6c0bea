"""What a namespace allows its workloads: engines, options, users, host paths, priorities, amounts."""

from collections.abc import Collection, Iterator

from mandor.errors import Forbidden
from mandor.model.limit_defaults import LimitDefaults, over
from mandor.model.record import Namespace
from mandor.model.task import Task
from mandor.model.volume import path_allowed
from mandor.model.workload import GroupTemplate, Workload


def check_rules(workload: Workload, namespace: Namespace, priority: int) -> None:
    rules, name = namespace.spec, namespace.meta.name
    if rules.priority_most is not None and priority > rules.priority_most:
        raise Forbidden(
            f"the namespace {name} allows no priority above {rules.priority_most}; this is {priority}",
            path="spec.priority",
        )
    for path, group in forms_of(workload):
        if rules.engines is not None:
            _check_allowed_engines(group, rules.engines, name, path)
        if rules.host_paths is not None:
            _check_host_paths(group, rules.host_paths, name, path)
        for task_name, task in group.tasks.items():
            if rules.options is not None:
                _check_options(task, rules.options, name, f"{path}.tasks.{task_name}")
                _check_security(task, rules.options, name, f"{path}.tasks.{task_name}")
            if rules.users is not None:
                _check_user(task, rules.users, name, f"{path}.tasks.{task_name}")


def forms_of(workload: Workload) -> Iterator[tuple[str, GroupTemplate]]:
    """Each form of each of its groups, and where it stands."""
    for name, group in workload.spec.groups.items():
        main, *others = group.forms
        yield f"spec.groups.{name}", main
        yield from ((f"spec.groups.{name}.alternatives[{number}]", form) for number, form in enumerate(others))


def _check_allowed_engines(group: GroupTemplate, allowed: Collection[str], namespace: str, path: str) -> None:
    hint = f"it allows: {', '.join(allowed) or '(none)'}"
    if not group.engine:
        raise Forbidden(
            f"the namespace {namespace} allows only some engines, so `engine` must be given", hint=hint, path=path
        )
    for name in group.engine:
        if name not in allowed:
            story = f"the namespace {namespace} does not allow the engine {name}"
            raise Forbidden(story, hint=hint, path=f"{path}.engine")


def _check_host_paths(group: GroupTemplate, allowed: Collection[str], namespace: str, path: str) -> None:
    for name, volume in group.volumes.items():
        if volume.path is not None and not path_allowed(volume.path, allowed):
            raise Forbidden(
                f"the namespace {namespace} does not allow the host path {volume.path}",
                hint=f"it allows: {', '.join(allowed) or '(none)'}",
                path=f"{path}.volumes.{name}",
            )


def _check_options(task: Task, allowed: Collection[str], namespace: str, path: str) -> None:
    for engine, options in task.options.items():
        for key in options:
            if f"{engine}.{key}" not in allowed and f"{engine}.*" not in allowed:
                raise Forbidden(
                    f"the namespace {namespace} does not allow the option {engine}.{key}",
                    hint=f"it allows: {', '.join(allowed) or '(none)'}",
                    path=f"{path}.options.{engine}.{key}",
                )


def _check_security(task: Task, allowed: Collection[str], namespace: str, path: str) -> None:
    """Powers beyond the usual ones are options, too."""
    for key in ("privileged", "cap_add"):
        if getattr(task.security, key) and f"security.{key}" not in allowed and "security.*" not in allowed:
            raise Forbidden(
                f"the namespace {namespace} does not allow security.{key}",
                hint=f"it allows: {', '.join(allowed) or '(none)'}",
                path=f"{path}.security.{key}",
            )


def _check_user(task: Task, allowed: Collection[str], namespace: str, path: str) -> None:
    user = task.security.user
    if user is None or str(user) not in allowed:
        raise Forbidden(
            f"the namespace {namespace} does not allow tasks to run as "
            f"{'the user of the agent' if user is None else user}",
            hint=f"set security.user to one of: {', '.join(allowed) or '(none)'}",
            path=f"{path}.security.user",
        )


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
