"""Differences between two objects: paths with the values before and after."""

from typing import Any

from msgspec import Struct

from mandor.model.codec import to_plain
from mandor.model.meta import Object
from mandor.model.secret import Secret

CHANGES_MOST = 200
HIDDEN = "(hidden)"
_NOTHING: Any = object()


class FieldChange(Struct, frozen=True, omit_defaults=True, kw_only=True):
    path: str
    before: Any = None
    """The former value; absent: the field was not set."""
    after: Any = None
    """The new value; absent: the field is no longer set."""


def differences(
    before: Object | None, after: Object | None, *, status: bool = False, most: int = CHANGES_MOST
) -> list[FieldChange]:
    """Return the changed fields of labels and spec, at most `most`; `status`: also those of the status."""
    found: list[FieldChange] = []
    old_labels = before.meta.labels if before is not None else {}
    _compare("meta.labels", old_labels, after.meta.labels if after is not None else {}, found)
    for part in ("spec", "status") if status else ("spec",):
        old = to_plain(getattr(before, part)) if before is not None else {}
        _compare(part, old, to_plain(getattr(after, part)) if after is not None else {}, found)
    if isinstance(before, Secret) or isinstance(after, Secret):
        found = [_hidden(each) for each in found]
    return found[:most]


def _hidden(change: FieldChange) -> FieldChange:
    before, after = (None if each is None else HIDDEN for each in (change.before, change.after))
    return change if not change.path.startswith("spec.") else FieldChange(path=change.path, before=before, after=after)


def _compare(path: str, before: Any, after: Any, found: list[FieldChange]) -> None:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in sorted({*before, *after}):
            _compare(f"{path}.{key}", before.get(key, _NOTHING), after.get(key, _NOTHING), found)
        return
    old = None if before is _NOTHING else before
    new = None if after is _NOTHING else after
    if isinstance(old, dict) and new is None and old:
        _compare(path, old, {}, found)
    elif isinstance(new, dict) and old is None and new:
        _compare(path, {}, new, found)
    else:
        found.append(FieldChange(path=path, before=old, after=new))
