"""Secrets whose changes reach running instances: by a roll-out (`restart`) or in place (`signal`)."""

from collections.abc import Iterable

from mandor.model.group import Group, GroupTemplate
from mandor.model.secret import secret_of


def restart_secrets(groups: Iterable[Group | GroupTemplate]) -> frozenset[str]:
    """Return the names of the secrets whose change replaces instances of the groups, in any of their forms."""
    tasks = (task for group in groups for form in group.forms for task in form.tasks.values())
    return frozenset(secret_of(each) for task in tasks for each in task.restart_references)


def signal_secrets(groups: Iterable[Group | GroupTemplate]) -> frozenset[str]:
    """Return the names of the secrets whose change replaces files of running instances, in any form of the groups."""
    tasks = (task for group in groups for form in group.forms for task in form.tasks.values())
    return frozenset(secret_of(each) for task in tasks for each in task.signal_references)
