"""What changes between two objects, as paths with the value before and after."""

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
    """Absent: it was not set."""
    after: Any = None
    """Absent: it is not set any more."""


def differences(before: Object | None, after: Object) -> list[FieldChange]:
    """Labels and spec; what the cluster itself keeps about an object is no change a user made."""
    found: list[FieldChange] = []
    old_labels = before.meta.labels if before is not None else {}
    _compare("meta.labels", old_labels, after.meta.labels, found)
    old_spec = to_plain(before.spec) if before is not None else {}
    _compare("spec", old_spec, to_plain(after.spec), found)
    if isinstance(after, Secret):
        found = [_hidden(each) for each in found]
    return found[:CHANGES_MOST]


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
