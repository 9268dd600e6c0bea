"""The sink interface: delivers messages to one kind of receiver.

A sink gets one message at a time and returns when the receiver has stored it. A sink has no state: the caller repeats a
message until it is delivered, so every message has an id by which receivers recognise repeats.
"""

from abc import ABC, abstractmethod

from mandor.notify.message import Message


class Sink(ABC):
    @abstractmethod
    async def send(self, message: Message) -> str:
        """Deliver a message and return a short text for the log.

        Raise `Unavailable` if the receiver did not answer or is overloaded (`retry_seconds`: earliest retry), and
        `Invalid` if it refused the message.
        """

    async def close(self) -> None:
        """Release connections; no message is sent afterwards."""
        return
