"""The pipeline interface: what mandor needs from whoever makes virtual machines.

A pipeline is told to make one on a machine that was chosen, and to take it away again; each verb returns when that is
done. Both are idempotent: the name of the virtual machine is the key, and the same order again is the same machine.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from msgspec import Struct


class VmOrder(Struct, frozen=True, kw_only=True):
    name: str
    cluster: str
    node: str
    """The machine that it goes to."""
    address: str
    cpu: int
    memory_mib: int


@dataclass(slots=True)
class Run:
    """What a pipeline calls its work, kept in the store: after a restart it is followed, not begun again."""

    id: str
    keep: Callable[[str], Awaitable[None]]


class Pipeline(ABC):
    @abstractmethod
    async def create(self, order: VmOrder, run: Run) -> None:
        """`Invalid` for what can never be made, `Unavailable` for what may work at the next try."""

    @abstractmethod
    async def delete(self, order: VmOrder, run: Run) -> None:
        """Take it away; one that is not there is no error."""

    async def close(self) -> None:
        """Nothing is asked of it any more."""
        return
