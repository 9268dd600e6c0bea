"""Random faults from a seed, each with its start and its repair."""

import random
from collections.abc import Callable, Sequence

from mandor.lib.quantity import Percent, Seconds
from mandor.sim.disturbance import PARTS, Jump, Messages
from mandor.sim.scenario import Slow, TimelineEntry

PAUSE_SECONDS = 12.0
"""Mean time between two faults in seconds."""
JUMPS = (5.0, 90.0, 3700.0, 90_000.0)


class Faults:
    """Generates random faults for nodes and workloads."""

    def __init__(self, chance: random.Random, nodes: Sequence[str], workloads: Sequence[str]) -> None:
        self._chance, self._nodes, self._workloads = chance, nodes, workloads
        self._found: list[TimelineEntry] = []

    def throw(self, begin: float, end: float) -> list[TimelineEntry]:
        """Return the faults in order of time; at `end` all of them are repaired."""
        kinds: list[tuple[int, Callable[[float], None]]] = [
            (5, self._lose_power),
            (5, self._cut_off),
            (3, self._restart_agent),
            (4, self._fail_over),
            (3, self._garble),
            (2, self._garble_the_store),
            (3, self._set_a_clock),
            (3, self._crash),
            (2, self._slow_down),
            (2, self._silence_engines),
        ]
        weights, makers = zip(*kinds, strict=True)
        at = begin + self._chance.expovariate(1 / PAUSE_SECONDS)
        while at < end:
            self._chance.choices(makers, weights)[0](at)
            at += self._chance.expovariate(1 / PAUSE_SECONDS)
        ends = [each for each in self._found if each.at < end]
        whole = TimelineEntry(at=_at(end), up=tuple(self._nodes), messages=(Messages(),))
        return [*sorted(ends, key=lambda each: each.at), whole]

    def _lose_power(self, at: float) -> None:
        node = self._node()
        self._add(at, down=(node,))
        self._add(at + self._while(), up=(node,))

    def _cut_off(self, at: float) -> None:
        node, way = self._node(), self._chance.choice(["partition", "partition", "mute", "deaf"])
        self._add(at, **{way: (node,)})
        self._add(at + self._while(), up=(node,))

    def _restart_agent(self, at: float) -> None:
        self._add(at, restart_agent=(self._node(),))

    def _fail_over(self, at: float) -> None:
        self._add(at, restart=tuple(self._chance.sample(PARTS, self._chance.randint(1, len(PARTS)))))

    def _garble(self, at: float) -> None:
        self._speak(at, self._node(), delay_most=5.0, percent_most=30)

    def _garble_the_store(self, at: float) -> None:
        self._speak(at, "", delay_most=2.0, percent_most=10)

    def _speak(self, at: float, node: str, *, delay_most: float, percent_most: int) -> None:
        messages = Messages(
            node=node,
            delay=_at(self._chance.choice([0.0, 0.05, 0.5, delay_most])),
            lost=Percent(self._chance.randrange(percent_most)),
            repeated=Percent(self._chance.randrange(percent_most)),
        )
        self._add(at, messages=(messages,))
        self._add(at + self._while(), messages=(Messages(node=node),))

    def _set_a_clock(self, at: float) -> None:
        way = self._chance.choice(["forward", "back"])
        node = self._chance.choice(["", self._node()])
        self._add(at, clock=(Jump(node=node, **{way: Seconds(self._chance.choice(JUMPS))}),))

    def _crash(self, at: float) -> None:
        if self._workloads:
            self._add(at, crash=(self._chance.choice(self._workloads),))

    def _slow_down(self, at: float) -> None:
        node = self._node()
        self._add(at, slow=(Slow(node=node, times=self._chance.choice([2.0, 5.0, 20.0])),))
        self._add(at + self._while(), slow=(Slow(node=node, times=1.0),))

    def _silence_engines(self, at: float) -> None:
        node = self._node()
        self._add(at, engine_down=(node,))
        self._add(at + self._while(), up=(node,))

    def _node(self) -> str:
        return self._chance.choice(self._nodes)

    def _while(self) -> float:
        """Return the duration of a fault: from a second to longer than all time limits."""
        return self._chance.choice([1.0, 8.0, 25.0, 70.0, 140.0]) * self._chance.uniform(0.7, 1.3)

    def _add(self, at: float, **fields: object) -> None:
        self._found.append(TimelineEntry(at=_at(at), **fields))  # type: ignore[arg-type]


def _at(seconds: float) -> Seconds:
    return Seconds(round(seconds, 3))
