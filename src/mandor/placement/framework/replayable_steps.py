"""Changes of a long trial that is run in parts: undone between two parts and repeated before the next."""

from collections.abc import Callable, Sequence

Step = Callable[[], object]


class ReplayableSteps:
    """A list of changes that can be repeated."""

    def __init__(self, steps: Sequence[Step] = ()) -> None:
        self._steps = list(steps)

    @property
    def steps(self) -> Sequence[Step]:
        return tuple(self._steps)

    def do(self, step: Step) -> None:
        """Make a change and record it."""
        step()
        self._steps.append(step)

    def again(self) -> None:
        """Repeat all changes, on a table as it was before the first."""
        for each in self._steps:
            each()
