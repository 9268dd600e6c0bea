"""Finds what an importer does with each key of a foreign file, by changing its value and importing the file again.

A key that is mapped changes the manifest; a key that is not mapped has a note. A key that does neither is lost without
a trace, and this module finds it whatever the importer reports.
"""

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from mandor.errors import Invalid
from mandor.importers.base import Imported
from mandor.importers.report import Note

Tree = Any
Step = str | int
Path = tuple[Step, ...]
Read = Callable[[Tree], Imported]
"""Imports a file that is already parsed."""
Outcome = Literal["mapped", "guessed", "dropped", "ignored", "told", "checked", "silent"]
"""`told`: the value is the default, and other values have a note; `checked`: every other value is an error."""

_AMOUNT = re.compile(r"(\d+)(\.\d+|\D*)")


@dataclass(frozen=True, slots=True)
class KeyFate:
    path: Path
    outcome: Outcome
    becomes: tuple[str, ...] = ()
    """Paths of the manifests that the key changes."""
    note: str = ""


def key_fates(tree: Tree, read: Read, others: Mapping[str, Sequence[Any]]) -> Iterator[KeyFate]:
    """Return the outcome of each key with a value; `others`: alternative values for keys with a fixed set of them."""
    base = read(tree)
    for path in list(leaves(tree)):
        yield _fate(tree, path, read, base, others)


def leaves(tree: Tree, path: Path = ()) -> Iterator[Path]:
    """Return the keys whose value is neither a mapping nor a list of mappings."""
    if isinstance(tree, dict) and tree:
        for key, each in tree.items():
            yield from leaves(each, (*path, key))
    elif isinstance(tree, list) and any(isinstance(each, dict) for each in tree):
        for index, each in enumerate(tree):
            if isinstance(each, dict):
                yield from leaves(each, (*path, index))
    elif path:
        yield path


def _fate(tree: Tree, path: Path, read: Read, base: Imported, others: Mapping[str, Sequence[Any]]) -> KeyFate:
    places = [path_text(path[:length], tree) for length in range(len(path), 0, -1)]
    note = _note_of(places, base.report.notes)
    if _among(places, base.report.left):
        return KeyFate(path, "dropped", note=note)
    if _among(places, base.report.idle):
        return KeyFate(path, "ignored")
    refused, said = False, ""
    for value in changed_values(path[-1], at(tree, path), others):
        try:
            found = read(with_value(tree, path, value))
        except Invalid:
            refused = True
            continue
        if changed := tuple(sorted(set(differences(_made(base), _made(found))))):
            return KeyFate(path, "guessed" if note else "mapped", changed, note)
        if _among(places, found.report.left):
            said = said or _note_of(places, found.report.notes) or "left out"
        said = said or _note_of(places[:2], found.report.notes)
    if note or said:
        return KeyFate(path, "guessed" if note else "told", note=note or said)
    return KeyFate(path, "checked" if refused else "silent")


def _made(imported: Imported) -> list[Any]:
    return [each.manifest for each in imported.made]


def _among(places: list[str], keys: frozenset[tuple[str, str]]) -> bool:
    """Return whether one of these paths, or a parent of one, is in the set."""
    return any(place in {path for _, path in keys} for place in places)


def _note_of(places: list[str], notes: Sequence[Note]) -> str:
    """Return the note of the key, else of an item of its list, else of its nearest parent."""
    said = {note.path: note.text for note in notes}
    item = next((text for path, text in said.items() if path.startswith(f"{places[0]}[")), "")
    return said.get(places[0]) or item or next((said[place] for place in places[1:] if place in said), "")


def path_text(path: Path, tree: Tree) -> str:
    """Return the path as notes write it: a block by its title, an item by its index."""
    text = ""
    for step in path:
        tree = tree[step]
        if isinstance(step, int):
            title = getattr(tree, "title", "")
            text += f".{title}" if title else f"[{step}]"
        else:
            text += f".{step}" if text else step
    return text


def at(tree: Tree, path: Path) -> Any:
    for step in path:
        tree = tree[step]
    return tree


def with_value(tree: Tree, path: Path, value: Any) -> Tree:
    """Return a copy with one value changed; subtrees off the path are shared."""
    made = copy.copy(tree)
    made[path[0]] = value if len(path) == 1 else with_value(tree[path[0]], path[1:], value)
    if len(path) == 1 and hasattr(made, "texts"):
        made.texts = {key: text for key, text in made.texts.items() if key != path[0]}
    return made


def changed_values(key: Step, value: Any, others: Mapping[str, Sequence[Any]]) -> list[Any]:
    """Return other values of the same type."""
    if isinstance(key, str) and key in others:
        return [each for each in others[key] if each != value]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value + 1, value * 2 + 1]
    if isinstance(value, list):
        return [[*changed_values(key, value[0], others)[:1], *value[1:]], value[:-1]] if value else [["x"]]
    if isinstance(value, str):
        amount = _AMOUNT.fullmatch(value)
        return [f"{int(amount[1]) + 1}{amount[2]}"] if amount else [f"{value}x", f"x{value}"]
    return ["x", 1, True]


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Return the paths at which two manifests differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from differences(one.get(key), other.get(key), f"{path}.{key}" if path else str(key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for left, right in zip(one, other, strict=True):
            yield from differences(left, right, path)
    elif one != other:
        yield path
