"""Chooses the release of a workload's template, or creates a new one, and deletes old releases."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mandor.controllers.draft import Draft
from mandor.lib.steps import Steps, chosen
from mandor.model.codec import to_plain
from mandor.model.instance import Instance
from mandor.model.release import is_release_of, release_of
from mandor.model.workload import Release, Workload

RELEASES_KEPT = 10
"""Releases kept in addition to those in use."""
CHANGES_SHOWN = 3
_ABSENT: dict[str, Any] = {}


def current_release(draft: Draft, workload: Workload, releases: Sequence[Release]) -> Release:
    """Return the release of the current template. Templates A, B, A give releases 1, 2, 3, unless release 1 is still
    running because B is not rolled out yet or has failed."""
    by_name = {each.meta.name: each for each in releases}
    newest = max(releases, key=lambda each: each.spec.sequence, default=None)
    rollout = workload.status.rollout
    names = [rollout.release, rollout.target, *rollout.proven[-1:]] if rollout is not None else []
    for each in (*(by_name.get(name) for name in names), newest):
        if each is not None and is_release_of(each, workload):
            return each
    made = release_of(workload, newest.spec.sequence + 1 if newest else 1, _cause(workload, releases))
    draft.put(made)
    return made


def forget_releases(
    draft: Draft, workload: Workload, releases: Sequence[Release], instances: Sequence[Instance]
) -> Steps[None]:
    """Delete old releases that no instance uses and that no rollback would choose."""
    old = sorted(releases, key=lambda each: -each.spec.sequence)[RELEASES_KEPT:]
    if not old:
        return
    found = yield from chosen(instances, lambda piece: {each.spec.release for each in piece})
    used = set(found)
    rollout = workload.status.rollout
    if rollout is not None:
        used |= {rollout.release, rollout.target, *rollout.proven[-1:]}
    for each in old:
        if each.meta.name not in used:
            draft.delete(each)


def _cause(workload: Workload, releases: Sequence[Release]) -> str:
    before = max(releases, key=lambda each: each.spec.sequence, default=None)
    if before is None:
        return "first release"
    same = max(
        (each for each in releases if is_release_of(each, workload)),
        key=lambda each: each.spec.sequence,
        default=None,
    )
    if same is not None:
        return f"same template as {same.meta.name}"
    changes = list(_changes(to_plain(before.spec.groups), to_plain(workload.spec.template)))
    if not changes:
        return "restart"
    more = f" and {len(changes) - CHANGES_SHOWN} more" if len(changes) > CHANGES_SHOWN else ""
    return ", ".join(changes[:CHANGES_SHOWN]) + more


def _changes(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield the paths that differ; for an image also the new value. Other values may be long or secret."""
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in dict.fromkeys((*before, *after)):
            yield from _changes(
                before.get(key, _ABSENT), after.get(key, _ABSENT), f"{path}.{key}" if path else str(key)
            )
    elif path.endswith(".image") and isinstance(after, str):
        yield f"image {after[:100]}"
    else:
        yield path[:100]
