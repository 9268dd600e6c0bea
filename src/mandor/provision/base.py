"""The provisioner interface: creates and deletes machines.

The agent of a new machine joins the cluster by itself, with the token that the machine was given; a provisioner does
not wait for it. Every method is idempotent: an order has the id of its machine, and the same id is the same machine.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

from msgspec import Struct

from mandor.errors import Unavailable
from mandor.lib.egress import STRICT, Egress
from mandor.model.machine import MachineKind


class NotMade(Unavailable):
    """The machine cannot be created now, and no part of it exists."""


class JoinInfo(Struct, frozen=True, kw_only=True):
    """Settings that the agent of a new machine needs to join."""

    servers: tuple[str, ...]
    token: str
    """Join token with a limited life."""
    ca: str = ""
    """Certificates to trust (PEM); empty: those of the machine."""


class MachineOrder(Struct, frozen=True, kw_only=True):
    id: str
    """Id of the machine, and name of its node."""
    cluster: str
    """Id of the cluster; machines of other clusters are never touched."""
    pool: str
    kind: str
    what: MachineKind
    join: JoinInfo


class Made(Struct, frozen=True, kw_only=True):
    """A machine as its provisioner reports it."""

    id: str
    state: Literal["making", "there", "failed"]
    message: str = ""


class Provisioner(ABC):
    name: ClassVar[str]
    options: ClassVar[type[Struct]]
    """Type of `kinds.NAME.options`."""
    file_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that name files; only files of the folder `secret_files` are allowed."""
    url_settings: ClassVar[tuple[str, ...]] = ()
    """Settings that name hosts; only hosts of `egress_allow` are allowed."""
    egress: Egress = STRICT
    """Hosts that the provisioner may call."""

    def restrict(self, egress: Egress) -> None:
        """Set the egress policy; called once, before the first use."""
        self.egress = egress

    @abstractmethod
    async def create(self, order: MachineOrder) -> None:
        """Start to create a machine, without waiting for it.

        Raise `Invalid` if it can never be created, `NotMade` if it cannot be created now and does not exist, and
        `Unavailable` if it may exist.
        """

    @abstractmethod
    async def list(self, cluster: str) -> Sequence[Made] | None:
        """Return all machines of the cluster; None: the provisioner cannot list them."""

    @abstractmethod
    async def delete(self, cluster: str, machine: str) -> None:
        """Delete a machine in any state, without waiting for it; a missing machine is no error."""

    async def close(self) -> None:
        """Release connections; no method is called afterwards."""
        return
