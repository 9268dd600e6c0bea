"""Which release a workload is to have: one that is there, or a new one, and which old ones are kept."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mandor.controllers.draft import Draft
from mandor.lib.steps import Steps, chosen
from mandor.model.codec import to_plain
from mandor.model.instance import Instance
from mandor.model.release import is_release_of, release_of
from mandor.model.workload import Release, Workload

RELEASES_KEPT = 10
"""Besides those in use."""
CHANGES_TOLD = 3
_ABSENT: dict[str, Any] = {}


def current_release(draft: Draft, workload: Workload, releases: Sequence[Release]) -> Release:
    """The release of the template as it is now: A, B, A are 1, 2, 3. Only while B is not through, or after it has
    failed, A is the one that still runs."""
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
    """Those that nobody runs, and nobody would go back to by himself."""
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
        return "the first one"
    same = max(
        (each for each in releases if is_release_of(each, workload)),
        key=lambda each: each.spec.sequence,
        default=None,
    )
    if same is not None:
        return f"as {same.meta.name}"
    changes = list(_changes(to_plain(before.spec.groups), to_plain(workload.spec.template)))
    if not changes:
        return "restart"
    more = f" and {len(changes) - CHANGES_TOLD} more" if len(changes) > CHANGES_TOLD else ""
    return ", ".join(changes[:CHANGES_TOLD]) + more


def _changes(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """What differs, by its path; of an image its value, too: others may be secrets, or long."""
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
