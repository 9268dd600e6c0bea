"""Claim: resources of a node held for a virtual machine that another system creates."""

from typing import Annotated, Literal

from msgspec import Struct

from mandor.model.features import needs

CLAIM_PROFILE = "baremetal"
"""Name of the scheduler profile that places claims."""
DEDICATED = "dedicated"
"""Taint of nodes that accept only claims with `dedicated`."""
Dedication = Literal["host", "class"]
"""Meaning of `dedicated`. `host`: the virtual machine gets a host of its own. `class`: it gets one of the hosts that
are marked as dedicated, beside other such virtual machines."""
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
    """Whether the claim needs a dedicated node."""
    dedication: Annotated[Dedication, needs("dedicated-class")] = "host"
    """Whether a dedicated node is reserved for this claim alone, or has the fact `dedicated`."""
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
        return self.name if self.alone else SHARED

    @property
    def alone(self) -> bool:
        """Whether the node is reserved for this claim alone."""
        return self.dedicated and self.dedication == "host"

    @property
    def size(self) -> str:
        """Key that is equal for claims with equal requirements."""
        kind = "dedicated" if self.dedicated and not self.alone else "vm"
        return f"{kind}.{self.cpu_milli}.{self.memory_bytes}.{self.pool}.{'+'.join(self.where)}"
