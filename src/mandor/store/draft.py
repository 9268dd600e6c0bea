"""Computes the changes of a commit: the rules for versions and uids, shared by all stores."""

from collections.abc import Mapping, Sequence

from msgspec.structs import force_setattr

from mandor.errors import Conflict, Invalid, TooLarge
from mandor.lib.ids import NewId
from mandor.model.codec import encode
from mandor.model.meta import Key, Meta, Object
from mandor.store.base import Change, Delete, KeyTuple, Put, Write

OBJECT_BYTES_MOST = 1 << 20
"""Bytes per encoded object; etcd's default limit."""

_NO_LABELS: dict[str, str] = {}

Pending = Mapping[KeyTuple, Change]
NO_PENDING: Pending = {}


def draft(
    writes: Sequence[Write],
    keys: Sequence[Key],
    objects: Mapping[KeyTuple, Object],
    *,
    revision: int,
    now: float,
    new_uid: NewId,
    pending: Pending = NO_PENDING,
) -> list[Change]:
    """Return the changes that these writes make at this revision, on top of the pending ones.

    Raise `Conflict` if an object's stored version is not the expected one.
    """
    changes: list[Change] = []
    for write, key in zip(writes, keys, strict=True):
        before = pending[key].after if key in pending else objects.get(key)
        version = before.meta.version if before is not None else 0
        if type(write) is Put:
            value = write.value
            meta = value.meta
            if meta.version != version:
                raise conflict(key, meta.version, version)
            if meta.uid and before is not None and meta.uid != before.meta.uid:
                raise other_uid(key, meta.uid, before.meta.uid)
            after = stamp(value, version=revision, now=now, new_uid=new_uid)
            # The key tuple of a new object is kept as long as the object exists, so it must be a plain tuple.
            changes.append(Change(revision, before, after, None, key if before is not None else tuple(key)))
            continue
        assert not isinstance(write, Put)
        if write.version != version:
            raise conflict(key, write.version, version)
        if type(write) is Delete:
            if before is None:
                raise conflict(key, 0, 0)
            changes.append(Change(revision, before, None, None, key))
    return changes


def conflict(key: Key, wanted: int, version: int) -> Conflict:
    if not version:
        message = f"{key} does not exist"
    elif not wanted:
        message = f"{key} already exists, with version {version}"
    else:
        message = f"{key} has version {version}, not {wanted}"
    return Conflict(message, hint="read it again, then retry", key=key, version=version)


def other_uid(key: Key, given: str, stored: str) -> Invalid:
    """Return the error for a put whose uid is not the stored one."""
    return Invalid(
        f"{key} has the uid {stored}, not {given}",
        hint="leave the uid out to replace the object by another one",
    )


def stamp(value: Object, *, version: int, now: float, new_uid: NewId) -> Object:
    """Return a copy with this version; a new object gets its uid and creation time."""
    # Copied, not constructed again: its name and labels were validated when it was made.
    meta: Meta = value.meta.__copy__()  # type: ignore[attr-defined]
    force_setattr(meta, "version", version)
    if not meta.uid:
        force_setattr(meta, "uid", new_uid())
        force_setattr(meta, "created_at", now)
    if not meta.labels:
        force_setattr(meta, "labels", _NO_LABELS)
    if meta.schema != value.schema:
        _reshape(value, meta)
    stamped: Object = value.__copy__()  # type: ignore[attr-defined]
    force_setattr(stamped, "meta", meta)
    return stamped


def _reshape(value: Object, meta: Meta) -> None:
    """Raise the object's schema version to the current one; `Invalid` if the object has a newer one."""
    if meta.schema > value.schema:
        raise Invalid(
            f"{value.key} has schema version {meta.schema}, but this version of mandor writes {value.schema}",
            hint="a newer server wrote the object: upgrade this server",
        )
    force_setattr(meta, "schema", value.schema)


def share(meta: Meta) -> None:
    """Replace an empty label dictionary by a shared one to save memory."""
    if not meta.labels:
        force_setattr(meta, "labels", _NO_LABELS)


def encoded(value: Object, key: KeyTuple) -> bytes:
    """Return the object's encoded form; raise `Invalid` or `TooLarge` if it cannot be stored."""
    try:
        data = encode(value)
    except UnicodeEncodeError as error:
        raise Invalid(f"{value.key} contains text that is not valid Unicode: {error.reason}") from error
    if len(data) > OBJECT_BYTES_MOST:
        raise TooLarge(f"{value.key} has {len(data)} bytes; at most {OBJECT_BYTES_MOST} are allowed")
    return data
