"""Plans for changed secrets: the restart of a workload, and the content ids that its instances are to have."""

from collections.abc import Iterable, Mapping, Set

from msgspec.structs import replace

from mandor.controllers.draft import Draft
from mandor.model.instance import Instance
from mandor.model.phase import Phase
from mandor.model.secret_change import signal_secrets
from mandor.model.workload import Release, Workload

RESTART = "restart"
"""Cause of a release with the same template as the previous one."""
NAMES_MOST = 3


def changed_secrets(release: Release, current: Mapping[str, str]) -> list[str]:
    """Return the secrets whose values changed since the release was made; `current`: content ids by name.

    A deleted secret is no change: running tasks keep its value. The first value of a secret that did not exist when the
    release was made is no change either, because its tasks could not start without it."""
    known = release.status.secrets
    return sorted(
        name for name, now in current.items() if (now != known[name] if name in known else not _first_value(now))
    )


def with_content_ids(
    release: Release, before: Release | None, current: Mapping[str, str], restarts: Set[str]
) -> Release:
    """Return a new release with the content ids of its secrets; its cause names those of `restarts` that changed since
    `before`."""
    causes = {name: now for name, now in current.items() if name in restarts}
    changed = changed_secrets(before, causes) if before is not None and before.status.secrets else []
    spec = release.spec
    if changed and spec.cause == RESTART:
        spec = replace(spec, cause=f"{RESTART}: {_sentence(changed)}")
    return release.changed(spec=spec, status=replace(release.status, secrets=dict(current)))


def plan_change(workload: Workload, release: Release, current: Mapping[str, str]) -> Draft:
    """Restart the workload if a secret changed since its release was made; the roll-out respects `update` and
    `disruption`. Otherwise store the content ids of secrets that were created since then."""
    draft = Draft()
    if changed := changed_secrets(release, current):
        draft.put(workload.changed(spec=replace(workload.spec, restarted=workload.spec.restarted + 1)))
        draft.note(workload, "SecretChanged", f"{_sentence(changed)}: restarting the instances in a roll-out")
    elif new := {name: now for name, now in current.items() if name not in release.status.secrets}:
        draft.put(release.changed(status=replace(release.status, secrets={**release.status.secrets, **new})))
    return draft


def plan_signals(
    workload: Workload, instances: Iterable[Instance], releases: Mapping[str, Release], current: Mapping[str, str]
) -> Draft:
    """Write the content ids of changed secrets to the instances with files of them (`on_change: signal`): their nodes
    replace the files. `releases`: by name; `current`: content ids of the secrets that exist."""
    draft = Draft()
    names: set[str] = set()
    running = 0
    for instance in instances:
        spec, release = instance.spec, releases.get(instance.spec.release)
        if release is None or not spec.node or spec.stop is not None or instance.phase.over:
            continue
        group = release.spec.groups.get(spec.group)
        used = signal_secrets([group]) if group is not None else frozenset()
        changed = changed_secrets(release, {name: now for name, now in current.items() if name in used})
        wanted = {**(spec.secrets or {}), **{name: current[name] for name in changed}}
        if changed and wanted != spec.secrets:
            names.update(name for name in changed if wanted[name] != (spec.secrets or {}).get(name))
            running += instance.phase is Phase.RUNNING
            draft.put(instance.changed(spec=replace(spec, secrets=wanted)))
    if running:
        count = f"{running} instance{'s' * (running > 1)}"
        draft.note(workload, "SecretChanged", f"{_sentence(sorted(names))}: files in {count} are being replaced")
    return draft


def _first_value(content_id: str) -> bool:
    return content_id.endswith(".0")


def _sentence(names: list[str]) -> str:
    more = f" and {len(names) - NAMES_MOST} more" if len(names) > NAMES_MOST else ""
    return f"secret{'s' * (len(names) > 1)} {', '.join(names[:NAMES_MOST])}{more} changed"
