"""Timeline entries about messages, clocks and parts of the control plane."""

from typing import Literal

from msgspec import Struct

from mandor.lib.quantity import Percent, Seconds
from mandor.model.meta import InvalidField

DELAY_MOST = 60.0
Part = Literal["scheduler", "controllers", "server"]
"""`server` receives the heartbeats of nodes."""
PARTS: tuple[Part, ...] = ("scheduler", "controllers", "server")


class Messages(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Faults of messages from this time on; without keys, faults end."""

    node: str = ""
    """The node whose messages are disturbed; absent: messages between the control plane and its store."""
    delay: Seconds = Seconds(0)
    lost: Percent = Percent(0)
    """Percentage of messages that are lost; as many answers are lost."""
    repeated: Percent = Percent(0)
    """Percentage of messages that arrive twice."""

    def __post_init__(self) -> None:
        if self.delay > DELAY_MOST:
            raise InvalidField(
                f"{self.delay} is too long", "delay", hint=f"at most {Seconds(DELAY_MOST)}; else cut it off"
            )
        for key in ("lost", "repeated"):
            if getattr(self, key) > 100:
                raise InvalidField(f"{getattr(self, key)} is more than 100 %", key)


class Jump(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Change of a wall clock."""

    node: str = ""
    """The node whose clock changes; absent: the control plane."""
    forward: Seconds = Seconds(0)
    back: Seconds = Seconds(0)

    @property
    def seconds(self) -> float:
        return float(self.forward) - float(self.back)
