"""What a newer version wrote and this one does not know: set aside when an object is read, put back when it is written.

It travels in `meta`, as the version does: nobody replaces a stored object without the one, so nobody loses the other.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

from msgspec import inspect

from mandor.model.meta import Meta, Object

_NAMES = ("name", "key", "task", "uid")
"""By one of these an item of a list is found again."""


class Step(NamedTuple):
    """One step from an object down to a field."""

    at: str | int
    """A key, or the place in a list."""
    always: bool = False
    """The field is there even if nobody wrote it: it is left out when it says nothing."""
    item: Any = None
    """Of a list: the item as this version understood it."""
    of: int = 0
    """Of a list: how long it was."""


class Unknown(NamedTuple):
    """Fields of one part of an object that this version does not know."""

    path: tuple[Step, ...]
    fields: dict[str, Any]

    def __str__(self) -> str:
        return ", ".join(".".join([*(str(step.at) for step in self.path), name]) for name in self.fields)


class Beyond:
    """All that of one object."""

    __slots__ = ("parts",)

    def __init__(self, parts: tuple[Unknown, ...]) -> None:
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Beyond) and self._told() == other._told()

    __hash__ = None  # type: ignore[assignment]  # it holds dicts

    def __str__(self) -> str:
        return ", ".join(map(str, self.parts))

    def _told(self) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
        """What is where; items of a list may have changed places."""
        told = [
            (tuple("" if isinstance(step.at, int) else step.at for step in part.path), part.fields)
            for part in self.parts
        ]
        return sorted(told, key=repr)

    def left_out_of(self, plain: Any, kind: type[Object]) -> Any:
        """Data without these unknown fields, if they are just as here; others stay, for whoever refuses them."""
        known, found = separate(plain, kind)
        here = self._told()
        return known if all(part in here for part in found._told()) else plain

    def below(self, *at: str) -> "Beyond":
        """The part of it below these keys, as seen from there."""
        depth = len(at)
        return Beyond(
            tuple(
                Unknown(part.path[depth:], part.fields)
                for part in self.parts
                if tuple(step.at for step in part.path[:depth]) == at
            )
        )

    def above(self, *at: str) -> "Beyond":
        """The same, as seen from so much higher up."""
        steps = tuple(Step(each, always=True) for each in at)
        return Beyond(tuple(Unknown((*steps, *part.path), part.fields) for part in self.parts))


class WideMeta(Meta, frozen=True, kw_only=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The meta of an object that says more than this version knows; all others have a plain one."""

    beyond: Beyond


def beyond_of(meta: Meta) -> Beyond | None:
    return meta.beyond if isinstance(meta, WideMeta) else None


def widened(meta: Meta, beyond: Beyond | None) -> Meta:
    """The same meta with other unknown fields; None: with none."""
    plain = {name: getattr(meta, name) for name in Meta.__struct_fields__}
    return WideMeta(**plain, beyond=beyond) if beyond is not None and beyond.parts else Meta(**plain)


# Setting aside.


def separate(plain: Any, wanted: Any) -> tuple[Any, Beyond]:
    """JSON data without what a type does not know, and that."""
    found: list[Unknown] = []
    known = _separate(plain, _type(wanted), (), found)
    return known, Beyond(tuple(found))


@cache
def _type(wanted: Any) -> inspect.Type:
    return inspect.type_info(wanted)


def _separate(plain: Any, kind: inspect.Type, path: tuple[Step, ...], found: list[Unknown]) -> Any:
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
    plain: dict[str, Any], kind: inspect.StructType, path: tuple[Step, ...], found: list[Unknown]
) -> dict[str, Any]:
    fields = {each.encode_name: each for each in kind.fields}
    more = {name: value for name, value in plain.items() if name not in fields and name != kind.tag_field}
    if more:
        found.append(Unknown(path, more))
    return {
        name: _separate(value, fields[name].type, (*path, Step(name, fields[name].default is not None)), found)
        if name in fields
        else value
        for name, value in plain.items()
        if name not in more
    }


def _of_item(plain: list[Any], place: int, item: inspect.Type, path: tuple[Step, ...], found: list[Unknown]) -> Any:
    first = len(found)
    here = (*path, Step(place))
    known = _separate(plain[place], item, here, found)
    if len(found) > first:  # who has something to be put back has to be found again
        step, depth = Step(place, item=known, of=len(plain)), len(path)
        found[first:] = [
            Unknown((*each.path[:depth], step, *each.path[depth + 1 :]), each.fields) for each in found[first:]
        ]
    return known


# Putting back.


def put_back(plain: Any, beyond: Beyond) -> Any:
    """The data with the unknown fields where they were; those of a part that was taken away went with it."""
    for part in beyond.parts:
        place = plain
        for depth, step in enumerate(part.path):
            place = _follow(place, step, made=all(each.always for each in part.path[depth:]))
        if isinstance(place, dict):
            for name, value in part.fields.items():
                place.setdefault(name, value)
    return plain


def _follow(place: Any, step: Step, *, made: bool) -> Any:
    """One step down; `made`: what is missing there says nothing else, and is made."""
    if isinstance(place, dict) and isinstance(step.at, str):
        return place.setdefault(step.at, {}) if made else place.get(step.at)
    if isinstance(place, list | tuple) and isinstance(step.at, int):
        return _same_item(place, step)
    return None


def _same_item(items: Sequence[Any], step: Step) -> Any:
    """The item that was understood as `step.item`: the same, or one of that name, or in a list as long as it was the
    one in that place."""
    place, was = int(step.at), step.item if isinstance(step.item, dict) else {}
    tests = [was, *({name: was[name]} for name in _NAMES if name in was)]
    for test in tests:
        found = [each for each in items if isinstance(each, dict) and {key: each.get(key) for key in test} == test]
        if len(found) == 1:
            return found[0]
        if place < len(items) and any(items[place] is each for each in found):
            return items[place]
    return items[place] if len(items) == step.of else None


# What may be written.


def carried(before: Object | None, after: Object) -> Object:
    """The object with what the stored one says beyond it, if its author did not know of that."""
    if before is None or not after.meta.uid or not isinstance(before.meta, WideMeta) or beyond_of(after.meta):
        return after
    return after.changed(meta=widened(after.meta, before.meta.beyond))
