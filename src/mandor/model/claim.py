"""Claim: resources of a node held for a virtual machine that another system creates."""

from msgspec import Struct

CLAIM_PROFILE = "baremetal"
"""Name of the scheduler profile that places claims."""
DEDICATED = "dedicated"
"""Taint of nodes that accept only claims with `dedicated`."""
SHARED = "vm"
"""Workload name shared by all claims without a dedicated node. No such object needs to exist."""


LABELS = {"mandor.vm": "claim"}
"""Labels of all claims, used to watch them separately from other instances."""


class Claim(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Resources held by an instance that no agent runs and no workload owns. It is created and deleted with its VM
    request.
    """

    task: str
    """Name of the VM request that the resources are held for."""
    cpu_milli: int
    memory_bytes: int
    pool: str
    dedicated: bool = False
    """Whether the node is reserved for this claim alone."""
    where: tuple[str, ...] = ()
    """Node rules that must all hold, for example `zone == a`."""

    @property
    def name(self) -> str:
        return f"vm-{self.task}"

    @property
    def owner(self) -> str:
        """Workload name used for placement rules: the claim's own name if it has a dedicated node, else a name shared
        by all claims.
        """
        return self.name if self.dedicated else SHARED

    @property
    def size(self) -> str:
        """Key that is equal for claims with equal requirements."""
        return f"vm.{self.cpu_milli}.{self.memory_bytes}.{self.pool}.{'+'.join(self.where)}"
