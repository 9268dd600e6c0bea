"""What a commit would change: the rules of versions and uids, the same in every home."""

from collections.abc import Callable, Sequence

from mandor.errors import Conflict, Invalid, TooLarge
from mandor.lib.ids import NewId
from mandor.model.codec import encode
from mandor.model.meta import Key, Object
from mandor.store.base import Change, Delete, Put, Write

OBJECT_BYTES_MOST = 1 << 20
"""The most bytes of one object: what etcd takes."""

Find = Callable[[Key], Object | None]


def draft(writes: Sequence[Write], find: Find, *, revision: int, now: float, new_uid: NewId) -> list[Change]:
    """The changes these writes make at this revision; `Conflict` if an object has moved on."""
    changes = []
    for write in writes:
        before = find(write.key)
        expect(write, before.meta.version if before is not None else 0)
        if isinstance(write, Put):
            check_uid(write.value, before)
            after = stamp(write.value, version=revision, now=now, new_uid=new_uid)
            changes.append(Change(revision, before, after))
        elif isinstance(write, Delete):
            changes.append(Change(revision, before, None))
    return changes


def expect(write: Write, version: int) -> None:
    """Raise `Conflict` unless the stored version is the one the write was made for."""
    wanted = write.value.meta.version if isinstance(write, Put) else write.version
    if wanted != version or (not version and isinstance(write, Delete)):
        raise conflict(write, wanted, version)


def conflict(write: Write, wanted: int, version: int) -> Conflict:
    key = write.key
    if not version:
        story = f"{key} does not exist (any more)"
    elif not wanted:
        story = f"{key} exists already, with version {version}"
    else:
        story = f"{key} has version {version} by now, not {wanted}"
    return Conflict(story, hint="read it again, then retry", key=key, version=version)


def check_uid(value: Object, before: Object | None) -> None:
    """No uid: another object takes this place. With one, it must be the uid that is there."""
    if before is not None and value.meta.uid and value.meta.uid != before.meta.uid:
        raise Invalid(
            f"{value.key} has the uid {before.meta.uid}, not {value.meta.uid}",
            hint="leave the uid out to replace the object by another one",
        )


def stamp(value: Object, *, version: int, now: float, new_uid: NewId) -> Object:
    """The object as the store keeps it: a new one gets its uid and time."""
    if value.meta.uid:
        return value.stamped(version=version)
    return value.stamped(version=version, uid=new_uid(), created_at=now)


def encoded(value: Object) -> bytes:
    """The object as a home keeps it; what cannot be kept is refused."""
    try:
        data = encode(value)
    except UnicodeEncodeError as error:
        raise Invalid(f"{value.key} holds text that is none: {error.reason}") from error
    if len(data) > OBJECT_BYTES_MOST:
        raise TooLarge(f"{value.key} has {len(data)} bytes; at most {OBJECT_BYTES_MOST} are allowed")
    return data
