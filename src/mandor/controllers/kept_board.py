"""A board that is kept while somebody needs it, and brought up to date in small steps when it is looked at."""

from collections.abc import Mapping, Sequence
from itertools import chain

from mandor.lib.steps import WRITTEN, Steps, pieces
from mandor.model.meta import Key
from mandor.placement.cluster_model import STEP, ClusterModel
from mandor.store.base import Change
from mandor.store.mirror import Mirror


class KeptBoard:
    """What changes is only noted; so whoever looks may try things out on the board, and let others have their turn."""

    def __init__(self, kinds: Sequence[str]) -> None:
        """`kinds`: in this order; whatever says how much an instance takes before the instances."""
        self._kinds = kinds
        self.board: ClusterModel | None = None
        self._changed: dict[str, dict[Key, None]] = {}

    def see(self, changes: Sequence[Change]) -> None:
        """Some changes of one kind."""
        if self.board is not None:
            noted = self._changed.setdefault(changes[0].key.kind, {})
            for change in changes:
                noted[change.key] = None

    def drop(self) -> Steps[None]:
        dropped, self.board = self.board, None
        self._changed.clear()
        if dropped is not None:
            yield from dropped.dismantle()

    def catch_up(self, mirrors: Mapping[str, Mirror]) -> Steps[None]:
        """Until `board` shows what there was when this began, or what came after it."""
        if self.board is None:
            self.board = ClusterModel()
            yield from self.board.put_all(list(chain.from_iterable(mirrors[kind].items() for kind in self._kinds)))
            return
        changed, self._changed = self._changed, {}
        for piece in pieces([key for kind in self._kinds for key in changed.get(kind, ())], STEP):
            for key in piece:
                found = mirrors[key.kind].get(key)
                if found is None:
                    self.board.remove(key)
                else:
                    self.board.put(found)
            yield 4 * WRITTEN * len(piece)
