"""BindBatches: placements that were decided together and are written together or not at all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mandor.scheduler.view import Promise


@dataclass(slots=True, eq=False)
class BindBatch:
    promises: list[Promise]
    awaited: set[int] = field(default_factory=set)
    """Ids of those whose plugins are not done yet."""
    begun: set[int] = field(default_factory=set)
    """Ids of those that have a binding cycle of their own, which hears of the end."""

    def __post_init__(self) -> None:
        self.awaited = {id(each) for each in self.promises}


class BindBatches:
    """A promise is in at most one, and in none any more once its party is being written, or broken up."""

    def __init__(self, *, write: Callable[[Sequence[Promise]], None], give_up: Callable[[Promise, bool], None]) -> None:
        """`give_up`: told of each when another one has failed, and whether it has a binding cycle."""
        self._write = write
        self._give_up = give_up
        self._by_promise: dict[int, BindBatch] = {}

    def open(self, promises: Sequence[Promise]) -> BindBatch:
        party = BindBatch(list(promises))
        for each in promises:
            self._by_promise[id(each)] = party
        return party

    def __contains__(self, promise: Promise) -> bool:
        return id(promise) in self._by_promise

    def begin(self, promise: Promise) -> None:
        """It goes through a binding cycle before it is to be written."""
        party = self._by_promise.get(id(promise))
        if party is not None:
            party.begun.add(id(promise))

    def arrive(self, promise: Promise, *, written: bool = False) -> None:
        """Nothing is left to do for it but the write; `written`: not even that."""
        party = self._by_promise.get(id(promise))
        if party is None:
            return
        party.awaited.discard(id(promise))
        if written:
            party.promises.remove(promise)
            del self._by_promise[id(promise)]
        if not party.awaited:
            self._close(party)
            if party.promises:
                self._write(party.promises)

    def fail(self, promise: Promise) -> None:
        """Then all of them fail."""
        party = self._by_promise.get(id(promise))
        if party is None:
            return
        self._close(party)
        for each in party.promises:
            if each is not promise:
                self._give_up(each, id(each) in party.begun)

    def _close(self, party: BindBatch) -> None:
        for each in party.promises:
            del self._by_promise[id(each)]
