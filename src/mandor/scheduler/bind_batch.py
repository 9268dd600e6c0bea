"""Bind batches: attempts of a gang that are written together or not at all."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mandor.scheduler.attempt import Attempt


@dataclass(slots=True, eq=False)
class BindBatch:
    attempts: list[Attempt]
    awaited: set[Attempt] = field(default_factory=set)
    """Attempts whose plugins have not finished yet."""
    binding: set[Attempt] = field(default_factory=set)
    """Attempts with a binding cycle of their own, which has to learn how the batch ends."""

    def __post_init__(self) -> None:
        self.awaited = set(self.attempts)


class BindBatches:
    """The open batches. An attempt is in one batch at most, and leaves it when the batch is written or given up."""

    def __init__(self) -> None:
        self._by_attempt: dict[Attempt, BindBatch] = {}

    def open(self, attempts: Sequence[Attempt]) -> BindBatch:
        batch = BindBatch(list(attempts))
        for each in attempts:
            self._by_attempt[each] = batch
        return batch

    def __contains__(self, attempt: Attempt) -> bool:
        return attempt in self._by_attempt

    def begin(self, attempt: Attempt) -> None:
        """Note that the attempt goes through a binding cycle before it can be written."""
        batch = self._by_attempt.get(attempt)
        if batch is not None:
            batch.binding.add(attempt)

    def arrive(self, attempt: Attempt, *, written: bool = False) -> Sequence[Attempt]:
        """Mark an attempt as ready to be written, or as written by its own Bind plugin.

        Return the attempts to write once all of the batch have arrived; else an empty sequence.
        """
        batch = self._by_attempt.get(attempt)
        if batch is None:
            return ()
        batch.awaited.discard(attempt)
        if written:
            batch.attempts.remove(attempt)
            del self._by_attempt[attempt]
        if batch.awaited:
            return ()
        self._close(batch)
        return batch.attempts

    def fail(self, attempt: Attempt) -> list[tuple[Attempt, bool]]:
        """Give a batch up because one attempt failed; return the others, each with whether it has a binding cycle."""
        batch = self._by_attempt.get(attempt)
        if batch is None:
            return []
        self._close(batch)
        return [(each, each in batch.binding) for each in batch.attempts if each is not attempt]

    def _close(self, batch: BindBatch) -> None:
        for each in batch.attempts:
            del self._by_attempt[each]
