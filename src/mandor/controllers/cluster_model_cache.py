"""ClusterModelCache: a cluster model that is kept while a controller needs it, and updated in small steps."""

from collections.abc import Mapping, Sequence
from itertools import chain

from mandor.lib.steps import WRITTEN, Steps, pieces
from mandor.model.meta import Key
from mandor.placement.cluster_model import STEP, ClusterModel
from mandor.store.base import Change
from mandor.store.mirror import Mirror


class ClusterModelCache:
    """Only records which objects changed, so that the model may be used for trials until the next `catch_up`."""

    def __init__(self, kinds: Sequence[str]) -> None:
        """`kinds`: order in which objects are added; kinds that define an instance's size come before instances."""
        self._kinds = kinds
        self.board: ClusterModel | None = None
        self._changed: dict[str, dict[Key, None]] = {}

    def see(self, changes: Sequence[Change]) -> None:
        """Record changes of one kind."""
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
        """Update the model to the state at the time of the call, or a later one."""
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
