"""Plans for changed secrets: the restart of a workload, and the content ids that its instances are to have."""

from collections.abc import Iterable, Mapping, Set

from msgspec.structs import replace

from mandor.controllers.draft import Draft
from mandor.model.instance import Instance
from mandor.model.phase import Phase
from mandor.model.secret_change import signal_secrets
from mandor.model.workload import Release, Workload

RESTART = "restart"
"""The cause of a release whose template is that of the release before it."""
NAMES_MOST = 3


def changed_secrets(release: Release, current: Mapping[str, str]) -> list[str]:
    """Secrets whose values have changed since the release was made; `current`: content ids of the secrets that exist.

    A deleted secret changes nothing: running tasks keep its value. A secret that did not exist when the release was
    made kept its tasks from starting, so its first value is no change."""
    known = release.status.secrets
    return sorted(
        name for name, now in current.items() if (now != known[name] if name in known else not _first_value(now))
    )


def with_content_ids(
    release: Release, before: Release | None, current: Mapping[str, str], restarts: Set[str]
) -> Release:
    """A new release with the content ids of its secrets. Its cause names those of `restarts` that changed since
    `before`."""
    causes = {name: now for name, now in current.items() if name in restarts}
    changed = changed_secrets(before, causes) if before is not None and before.status.secrets else []
    spec = release.spec
    if changed and spec.cause == RESTART:
        spec = replace(spec, cause=f"{RESTART}: {_sentence(changed)}")
    return release.changed(spec=spec, status=replace(release.status, secrets=dict(current)))


def plan_change(workload: Workload, release: Release, current: Mapping[str, str]) -> Draft:
    """Restart the workload if a secret has changed since its current release was made: the roll-out of that restart
    respects `update` and `disruption`. Otherwise write down the secrets that were created since then."""
    draft = Draft()
    if changed := changed_secrets(release, current):
        draft.put(workload.changed(spec=replace(workload.spec, restarted=workload.spec.restarted + 1)))
        draft.note(workload, "SecretChanged", f"{_sentence(changed)}: its instances are replaced in a roll-out")
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
