"""The log sink interface: what mandor needs from whoever takes log lines.

A sink is given lines in order and says when the receiver has them all. It remembers nothing that matters: the caller
gives the same lines again until they are taken, so a receiver may see a line twice, and never misses one.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence

from mandor.agent.shipping.line import Line

ReadSecret = Callable[[str, str], Awaitable[str]]
"""(reference, namespace) → value; `Unavailable` while there is none."""


class Sink(ABC):
    @abstractmethod
    async def send(self, lines: Sequence[Line]) -> None:
        """Return when the receiver has all of them, as far as its protocol can tell.

        `Unavailable` when nobody took them, or can just now, or nobody may say who we are. `TooLarge` when fewer at
        once would do. `Invalid` when the receiver will never take them.
        """

    async def close(self) -> None:
        """Nothing is sent any more."""
        return
