"""Fields written by a newer version: removed when an object is read, restored when it is written.

They travel in `meta` like the object's version. Replacing a stored object requires its version, so an update by an
older client keeps fields that it does not know.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from msgspec import inspect

from mandor.model.meta import Meta, Object

_NAMES = ("name", "key", "task", "uid")
"""Fields that identify an item of a list, in order of preference."""


class Step(NamedTuple):
    """One step of the path from an object to a field."""

    at: str | int
    """A key, or an index of a list."""
    always: bool = False
    """Whether the field exists even if unset: encoding omits it when it is empty."""
    item: Any = None
    """For an item of a list: the item as this version decoded it."""
    of: int = 0
    """For an item of a list: the length of the list."""


class UnknownPart(NamedTuple):
    """UnknownPart fields of one part of an object."""

    path: tuple[Step, ...]
    fields: dict[str, Any]

    def __str__(self) -> str:
        return ", ".join(".".join([*(str(step.at) for step in self.path), name]) for name in self.fields)


class UnknownFields:
    """All fields of one object that this version does not know."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[UnknownPart, ...]) -> None:
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnknownFields) and self._by_path() == other._by_path()

    __hash__ = None  # type: ignore[assignment]  # it holds dicts

    def __str__(self) -> str:
        return ", ".join(map(str, self.parts))

    def _by_path(self) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
        """Return paths with their fields, without positions in lists, because items may have moved."""
        parts = [
            (tuple("" if isinstance(step.at, int) else step.at for step in part.path), part.fields)
            for part in self.parts
        ]
        return sorted(parts, key=repr)

    def left_out_of(self, plain: Any, kind: type[Object]) -> Any:
        """Return data without these unknown fields. If the data has other unknown fields, return it unchanged, so that
        validation rejects them.
        """
        known, found = split_unknown_fields(plain, kind)
        here = self._by_path()
        return known if all(part in here for part in found._by_path()) else plain

    def below(self, *at: str) -> "UnknownFields":
        """Return the unknown fields below these keys, with paths relative to them."""
        depth = len(at)
        return UnknownFields(
            tuple(
                UnknownPart(part.path[depth:], part.fields)
                for part in self.parts
                if tuple(step.at for step in part.path[:depth]) == at
            )
        )

    def above(self, *at: str) -> "UnknownFields":
        """Return the same fields with these keys put before their paths."""
        steps = tuple(Step(each, always=True) for each in at)
        return UnknownFields(tuple(UnknownPart((*steps, *part.path), part.fields) for part in self.parts))


class ExtendedMeta(Meta, frozen=True, kw_only=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The meta of an object with unknown fields; all other objects have a plain `Meta`."""

    unknown: UnknownFields


def unknown_fields_of(meta: Meta) -> UnknownFields | None:
    return meta.unknown if isinstance(meta, ExtendedMeta) else None


def with_unknown_fields(meta: Meta, unknown: UnknownFields | None) -> Meta:
    """Return the meta with these unknown fields; None removes them."""
    plain = {name: getattr(meta, name) for name in Meta.__struct_fields__}
    return ExtendedMeta(**plain, unknown=unknown) if unknown is not None and unknown.parts else Meta(**plain)


# Separating.


def split_unknown_fields(plain: Any, wanted: Any) -> tuple[Any, UnknownFields]:
    """Split JSON data into the part that a type defines and the unknown fields."""
    found: list[UnknownPart] = []
    known = _separate(plain, _type(wanted), (), found)
    return known, UnknownFields(tuple(found))


@cache
def _type(wanted: Any) -> inspect.Type:
    return inspect.type_info(wanted)


def _separate(plain: Any, kind: inspect.Type, path: tuple[Step, ...], found: list[UnknownPart]) -> Any:
    if isinstance(plain, dict):
        for each in _flat(kind):
            if isinstance(each, inspect.StructType) and _is(plain, each):
                return _of_struct(plain, each, path, found)
            if isinstance(each, inspect.DictType):
                return {
                    key: _separate(value, each.value_type, (*path, Step(key)), found) for key, value in plain.items()
                }
    elif isinstance(plain, list):
        for each in _flat(kind):
            item = getattr(each, "item_type", None)
            if item is not None:
                return [_of_item(plain, place, item, path, found) for place in range(len(plain))]
    return plain


def _flat(kind: inspect.Type) -> Iterator[inspect.Type]:
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _flat(each)
    elif isinstance(kind, inspect.Metadata):
        yield from _flat(kind.type)
    else:
        yield kind


def _is(plain: dict[str, Any], kind: inspect.StructType) -> bool:
    return not kind.array_like and (kind.tag_field is None or plain.get(kind.tag_field, kind.tag) == kind.tag)


def _of_struct(
    plain: dict[str, Any], kind: inspect.StructType, path: tuple[Step, ...], found: list[UnknownPart]
) -> dict[str, Any]:
    fields = {each.encode_name: each for each in kind.fields}
    more = {name: value for name, value in plain.items() if name not in fields and name != kind.tag_field}
    if more:
        found.append(UnknownPart(path, more))
    return {
        name: _separate(value, fields[name].type, (*path, Step(name, fields[name].default is not None)), found)
        if name in fields
        else value
        for name, value in plain.items()
        if name not in more
    }


def _of_item(plain: list[Any], place: int, item: inspect.Type, path: tuple[Step, ...], found: list[UnknownPart]) -> Any:
    first = len(found)
    here = (*path, Step(place))
    known = _separate(plain[place], item, here, found)
    if len(found) > first:  # an item with unknown fields must be found again when they are restored
        step, depth = Step(place, item=known, of=len(plain)), len(path)
        found[first:] = [
            UnknownPart((*each.path[:depth], step, *each.path[depth + 1 :]), each.fields) for each in found[first:]
        ]
    return known


# Restoring.


def restore_unknown_fields(plain: Any, unknown: UnknownFields) -> Any:
    """Return the data with the unknown fields restored. Fields of a part that was removed are dropped."""
    for part in unknown.parts:
        place = plain
        for depth, step in enumerate(part.path):
            place = _follow(place, step, made=all(each.always for each in part.path[depth:]))
        if isinstance(place, dict):
            for name, value in part.fields.items():
                place.setdefault(name, value)
    return plain


def _follow(place: Any, step: Step, *, made: bool) -> Any:
    """Follow one step down. `made` creates a missing part, which encoding had omitted because it was empty."""
    if isinstance(place, dict) and isinstance(step.at, str):
        return place.setdefault(step.at, {}) if made else place.get(step.at)
    if isinstance(place, list | tuple) and isinstance(step.at, int):
        return _same_item(place, step)
    return None


def _same_item(items: Sequence[Any], step: Step) -> Any:
    """Find the item that was decoded as `step.item`: an equal item, else one with the same name, else, if the length of
    the list is unchanged, the one at the same index.
    """
    place, was = int(step.at), step.item if isinstance(step.item, dict) else {}
    tests = [was, *({name: was[name]} for name in _NAMES if name in was)]
    for test in tests:
        found = [each for each in items if isinstance(each, dict) and {key: each.get(key) for key in test} == test]
        if len(found) == 1:
            return found[0]
        if place < len(items) and any(items[place] is each for each in found):
            return items[place]
    return items[place] if len(items) == step.of else None


# Writing.


def keep_unknown_fields(before: Object | None, after: Object) -> Object:
    """Return the object with the unknown fields of the stored one, if the writer did not know them."""
    if (
        before is None
        or not after.meta.uid
        or not isinstance(before.meta, ExtendedMeta)
        or unknown_fields_of(after.meta)
    ):
        return after
    return after.changed(meta=with_unknown_fields(after.meta, before.meta.unknown))
