"""The provisioner interface: what mandor needs from whoever makes machines.

A provisioner is told to make a machine and to take it away again. The machine starts an agent by itself, which joins
with the token it was given; nobody waits for it here. Every verb is idempotent: an order carries the id of its machine,
and the same id is the same machine, however often it is ordered.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

from msgspec import Struct

from mandor.lib.egress import STRICT, Egress
from mandor.model.machine import MachineKind


class JoinInfo(Struct, frozen=True, kw_only=True):
    """What the agent of a new machine needs to become a node."""

    servers: tuple[str, ...]
    token: str
    """Good for a while, and for joining only."""
    ca: str = ""
    """Certificates to trust (PEM); empty: those of the machine."""


class MachineOrder(Struct, frozen=True, kw_only=True):
    id: str
    """Of the machine, and the name of its node."""
    cluster: str
    """Whose it is: machines of other clusters are left alone."""
    pool: str
    kind: str
    what: MachineKind
    join: JoinInfo


class Made(Struct, frozen=True, kw_only=True):
    """A machine, as its provisioner sees it now."""

    id: str
    state: Literal["making", "there", "failed"]
    message: str = ""


class Provisioner(ABC):
    name: ClassVar[str]
    options: ClassVar[type[Struct]]
    """What `kinds.NAME.options` may say."""
    file_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that name files: of the folder `secret_files`, and of no other."""
    url_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that name hosts: those that `egress_allow` allows."""
    egress: Egress = STRICT
    """Which hosts it may call."""

    def restrict(self, egress: Egress) -> None:
        """Called once, before it is used."""
        self.egress = egress

    @abstractmethod
    async def create(self, order: MachineOrder) -> None:
        """Begin to make it; it may take as long as it takes after that. `Invalid` for what can never be made,
        `Unavailable` for what cannot be made now."""

    @abstractmethod
    async def list(self, cluster: str) -> Sequence[Made] | None:
        """All machines of the cluster; None: nobody here knows."""

    @abstractmethod
    async def delete(self, cluster: str, machine: str) -> None:
        """Take it away, whatever it does; one that is not there is no error. It may go on for a while after that."""

    async def close(self) -> None:
        """Nothing is asked of it any more."""
        return
