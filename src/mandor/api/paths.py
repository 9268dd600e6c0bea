"""Finds what answers a path by looking its words up, not by trying one pattern after another."""

from collections.abc import Mapping
from typing import Generic, TypeVar

T = TypeVar("T")

_NONE: Mapping[str, str] = {}


class Paths(Generic[T]):
    """Patterns like `/v1/nodes/{name}/usage`; where several fit, the one that was given first answers."""

    def __init__(self, targets: Mapping[str, T]) -> None:
        self._fixed: dict[str, tuple[int, T]] = {}
        self._shapes: dict[int, dict[tuple[int, ...], dict[str, _Named[T]]]] = {}
        """By how many words there are, by which of them are names, by the others."""
        for rank, (pattern, target) in enumerate(targets.items()):
            words = pattern.split("/")
            at = tuple(index for index, word in enumerate(words) if word.startswith("{"))
            if at:
                named = _Named(rank, target, tuple(words[index][1:-1] for index in at))
                self._shapes.setdefault(len(words), {}).setdefault(at, {}).setdefault(_without(words, at), named)
            else:
                self._fixed[pattern] = (rank, target)

    def find(self, path: str) -> tuple[T, Mapping[str, str]] | None:
        """With what stands in the place of each name, which is never nothing."""
        words = path.split("/")
        fixed = self._fixed.get(path)
        best: _Named[T] | None = None
        places: tuple[int, ...] = ()
        for at, named in self._shapes.get(len(words), {}).items():
            found = named.get(_without(words, at))
            if found is not None and (best is None or found.rank < best.rank) and all(words[each] for each in at):
                best, places = found, at
        if best is None or (fixed is not None and fixed[0] < best.rank):
            return (fixed[1], _NONE) if fixed is not None else None
        return best.target, {name: words[at] for name, at in zip(best.names, places, strict=True)}


class _Named(Generic[T]):
    def __init__(self, rank: int, target: T, names: tuple[str, ...]) -> None:
        self.rank, self.target, self.names = rank, target, names


def _without(words: list[str], at: tuple[int, ...]) -> str:
    """The words that are no names; where those stood is empty."""
    kept = words.copy()
    for each in at:
        kept[each] = ""
    return "/".join(kept)
