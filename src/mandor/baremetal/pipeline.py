"""The pipeline interface: how mandor has virtual machines created and deleted.

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
    """The machine to create it on."""
    address: str
    cpu: int
    memory_mib: int


@dataclass(slots=True)
class Run:
    """Id of a pipeline run, kept in the store, so that a restarted server follows the run instead of repeating it."""

    id: str
    keep: Callable[[str], Awaitable[None]]


class Pipeline(ABC):
    @abstractmethod
    async def create(self, order: VmOrder, run: Run) -> None:
        """Create the machine; raise `Invalid` if that can never succeed, `Unavailable` if a retry may."""

    @abstractmethod
    async def delete(self, order: VmOrder, run: Run) -> None:
        """Delete the machine; one that does not exist is no error."""

    async def close(self) -> None:
        """Release resources; no further calls follow."""
        return
