"""What a timeline can say of messages, clocks, and the parts of the control plane."""

from typing import Literal

from msgspec import Struct

from mandor.lib.quantity import Percent, Seconds
from mandor.model.meta import InvalidField

DELAY_MOST = 60.0
Part = Literal["scheduler", "controllers", "server"]
"""`server`: whoever hears the nodes' heartbeats."""
PARTS: tuple[Part, ...] = ("scheduler", "controllers", "server")


class Messages(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How messages fare from now on; all absent: as they should."""

    node: str = ""
    """Between this one and the store; absent: between the control plane and its store."""
    delay: Seconds = Seconds(0)
    lost: Percent = Percent(0)
    """So many never arrive, and of as many the answer does not."""
    repeated: Percent = Percent(0)
    """So many arrive twice."""

    def __post_init__(self) -> None:
        if self.delay > DELAY_MOST:
            raise InvalidField(
                f"{self.delay} is too long", "delay", hint=f"at most {Seconds(DELAY_MOST)}; else cut it off"
            )
        for key in ("lost", "repeated"):
            if getattr(self, key) > 100:
                raise InvalidField(f"{getattr(self, key)} is more than there are", key)


class Jump(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Somebody sets a wall clock."""

    node: str = ""
    """Of this one; absent: of the control plane."""
    forward: Seconds = Seconds(0)
    back: Seconds = Seconds(0)

    @property
    def seconds(self) -> float:
        return float(self.forward) - float(self.back)
