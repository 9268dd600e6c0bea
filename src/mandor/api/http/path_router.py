"""PathRouter: finds the target of a URL path with dictionary lookups instead of trying one pattern after another."""

from collections.abc import Mapping
from typing import Generic, TypeVar

T = TypeVar("T")

_NO_PARAMETERS: Mapping[str, str] = {}


class PathRouter(Generic[T]):
    """Maps patterns like `/v1/nodes/{name}/usage` to targets; of several matching patterns the first one wins."""

    def __init__(self, targets: Mapping[str, T]) -> None:
        self._fixed: dict[str, tuple[int, T]] = {}
        self._patterns: dict[int, dict[tuple[int, ...], dict[str, _Pattern[T]]]] = {}
        """Patterns with parameters: by number of segments, by positions of the parameters, by fixed segments."""
        for rank, (pattern, target) in enumerate(targets.items()):
            segments = pattern.split("/")
            at = tuple(index for index, segment in enumerate(segments) if segment.startswith("{"))
            if at:
                made = _Pattern(rank, target, tuple(segments[index][1:-1] for index in at))
                self._patterns.setdefault(len(segments), {}).setdefault(at, {}).setdefault(_fixed(segments, at), made)
            else:
                self._fixed[pattern] = (rank, target)

    def find(self, path: str) -> tuple[T, Mapping[str, str]] | None:
        """Return the target of a path and its parameters, none of which is empty."""
        segments = path.split("/")
        fixed = self._fixed.get(path)
        best: _Pattern[T] | None = None
        positions: tuple[int, ...] = ()
        for at, patterns in self._patterns.get(len(segments), {}).items():
            found = patterns.get(_fixed(segments, at))
            if found is not None and (best is None or found.rank < best.rank) and all(segments[each] for each in at):
                best, positions = found, at
        if best is None or (fixed is not None and fixed[0] < best.rank):
            return (fixed[1], _NO_PARAMETERS) if fixed is not None else None
        return best.target, {name: segments[at] for name, at in zip(best.names, positions, strict=True)}


class _Pattern(Generic[T]):
    def __init__(self, rank: int, target: T, names: tuple[str, ...]) -> None:
        self.rank, self.target, self.names = rank, target, names


def _fixed(segments: list[str], at: tuple[int, ...]) -> str:
    """Return the path with empty segments at the positions of its parameters."""
    fixed = segments.copy()
    for each in at:
        fixed[each] = ""
    return "/".join(fixed)
