"""Claim: room on a node that is held for a virtual machine which somebody else makes."""

from msgspec import Struct

CLAIM_PROFILE = "baremetal"
"""The scheduler profile that places claims."""
DEDICATED = "dedicated"
"""Taint of nodes that accept only claims with `dedicated`."""
SHARED = "vm"
"""The workload that claims without a node of their own stand for: there need be no such object."""


LABELS = {"mandor.vm": "claim"}
"""What all claims have, so that they can be watched without the rest."""


class Claim(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """What an instance holds that no agent runs and no workload has: it is made, and deleted, with its task."""

    task: str
    """The task that it holds room for."""
    cpu_milli: int
    memory_bytes: int
    pool: str
    dedicated: bool = False
    """Its node is its own alone."""
    where: tuple[str, ...] = ()
    """Only on nodes that keep all these rules: `zone == a`."""

    @property
    def name(self) -> str:
        return f"vm-{self.task}"

    @property
    def owner(self) -> str:
        """Whom it stands for beside others: one with a node of its own for itself, all others for one."""
        return self.name if self.dedicated else SHARED

    @property
    def size(self) -> str:
        """The same for all claims that ask for the same."""
        return f"vm.{self.cpu_milli}.{self.memory_bytes}.{self.pool}.{'+'.join(self.where)}"
