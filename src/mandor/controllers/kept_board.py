"""A board that is kept while somebody needs it, and brought up to date in small steps when it is looked at."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from mandor.model.meta import Key
from mandor.placement.board import Board
from mandor.store.base import Change
from mandor.store.mirror import Mirror

STEP = 25
"""So many objects are taken over before others have their turn: about two milliseconds of nodes."""


class KeptBoard:
    """What changes is only noted; so whoever looks may try things out on the board, and let others have their turn."""

    def __init__(self, kinds: Sequence[str]) -> None:
        """`kinds`: in this order; whatever says how much an instance takes before the instances."""
        self._kinds = kinds
        self.board: Board | None = None
        self._changed: dict[str, dict[Key, None]] = {}

    def see(self, changes: Sequence[Change]) -> None:
        """Some changes of one kind."""
        if self.board is not None:
            noted = self._changed.setdefault(changes[0].key.kind, {})
            for change in changes:
                noted[change.key] = None

    def drop(self) -> None:
        self.board = None
        self._changed.clear()

    def catch_up(self, mirrors: Mapping[str, Mirror]) -> Iterator[None]:
        """Until `board` shows what there was when this began, or what came after it."""
        if self.board is None:
            self.board = Board()
            keys: Iterable[Key] = (each.key for kind in self._kinds for each in list(mirrors[kind].items()))
        else:
            changed, self._changed = self._changed, {}
            keys = (key for kind in self._kinds for key in changed.get(kind, ()))
        for number, key in enumerate(keys):
            if number % STEP == 0:
                yield
            found = mirrors[key.kind].get(key)
            if found is None:
                self.board.remove(key)
            else:
                self.board.put(found)
