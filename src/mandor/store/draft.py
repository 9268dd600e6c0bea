"""What a commit would change: the rules of versions and uids, the same in every home."""

from collections.abc import Mapping, Sequence

from msgspec.structs import force_setattr

from mandor.errors import Conflict, Invalid, TooLarge
from mandor.lib.ids import NewId
from mandor.model.codec import encode
from mandor.model.meta import Key, Meta, Object
from mandor.store.base import Change, Delete, Place, Put, Write

OBJECT_BYTES_MOST = 1 << 20
"""The most bytes of one object: what etcd takes."""

_NO_LABELS: dict[str, str] = {}

Pending = Mapping[Place, Change]
NOTHING: Pending = {}


def draft(
    writes: Sequence[Write],
    keys: Sequence[Key],
    objects: Mapping[Place, Object],
    *,
    revision: int,
    now: float,
    new_uid: NewId,
    pending: Pending = NOTHING,
) -> list[Change]:
    """The changes these writes make at this revision, on top of those that are pending.

    `Conflict` if an object has moved on.
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
            # The place of a new object stays for as long as it lives, that of a change does not.
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
        story = f"{key} does not exist (any more)"
    elif not wanted:
        story = f"{key} exists already, with version {version}"
    else:
        story = f"{key} has version {version} by now, not {wanted}"
    return Conflict(story, hint="read it again, then retry", key=key, version=version)


def other_uid(key: Key, given: str, stored: str) -> Invalid:
    """No uid: another object takes this place. With one, it must be the uid that is there."""
    return Invalid(
        f"{key} has the uid {stored}, not {given}",
        hint="leave the uid out to replace the object by another one",
    )


def stamp(value: Object, *, version: int, now: float, new_uid: NewId) -> Object:
    """The object as the store keeps it: a new one gets its uid and time."""
    # Copied, not made anew: its name and labels were checked when it was made.
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
    """It is written in our shape, unless that is older than its own: then we would spoil it."""
    if meta.schema > value.schema:
        raise Invalid(
            f"{value.key} has the schema {meta.schema}, and this version of mandor writes {value.schema}",
            hint="a newer server wrote it, and has to change it: upgrade this one",
        )
    force_setattr(meta, "schema", value.schema)


def share(meta: Meta) -> None:
    """Most objects have no labels: they need not have a dict of none each."""
    if not meta.labels:
        force_setattr(meta, "labels", _NO_LABELS)


def encoded(value: Object, key: Place) -> bytes:
    """The object as a home keeps it; what cannot be kept is refused."""
    try:
        data = encode(value)
    except UnicodeEncodeError as error:
        raise Invalid(f"{value.key} holds text that is none: {error.reason}") from error
    if len(data) > OBJECT_BYTES_MOST:
        raise TooLarge(f"{value.key} has {len(data)} bytes; at most {OBJECT_BYTES_MOST} are allowed")
    return data
