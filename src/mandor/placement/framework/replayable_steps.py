"""What is tried out in a table in several goes: undone in between, and done again before the next."""

from collections.abc import Callable, Sequence

Step = Callable[[], object]


class ReplayableSteps:
    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self._steps = list(steps)

    @property
    def steps(self) -> Sequence[Step]:
        return tuple(self._steps)

    def do(self, step: Step) -> None:
        step()
        self._steps.append(step)

    def again(self) -> None:
        """All so far, in a table as it was before the first."""
        for each in self._steps:
            each()
