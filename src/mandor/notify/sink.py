"""The sink interface: what mandor needs from whoever takes its messages.

A sink is given one message at a time and says when it has it for good. It remembers nothing: the caller sends a message
again until it is taken, so every message carries an id by which a repeat is recognised.
"""

from abc import ABC, abstractmethod

from mandor.notify.message import Message


class Sink(ABC):
    @abstractmethod
    async def send(self, message: Message) -> str:
        """Return when the receiver has it for good; the result is a word for the log.

        `Unavailable` when nobody took it, or can just now (`retry_seconds`: not before so long from now): it is not the
        message's fault. `Invalid` when it was refused, for whatever reason.
        """

    async def close(self) -> None:
        """Nothing is sent any more."""
        return
