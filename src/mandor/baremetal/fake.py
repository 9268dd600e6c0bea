"""A pipeline that makes nothing and remembers what it would have made: to rehearse, and to fail on cue."""

import asyncio
from dataclasses import dataclass, field

from mandor.baremetal.pipeline import Pipeline, Run, VmOrder
from mandor.errors import Invalid, Unavailable


@dataclass
class FakePipeline(Pipeline):
    takes: float = 0.0
    """Seconds, for each."""
    fails: int = 0
    """So many of the next tries to make one fail."""
    broken: bool = False
    """None can ever be made."""
    hangs: bool = False
    """It is made, and never says so."""
    stays: int = 0
    """So many of the next tries to take one away fail."""
    there: dict[str, VmOrder] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    async def create(self, order: VmOrder, run: Run) -> None:
        self.calls.append(f"create {order.name} on {order.node}")
        if self.broken:
            raise Invalid("it is broken")
        if self.fails:
            self.fails -= 1
            raise Unavailable("not now")
        await asyncio.sleep(self.takes)
        self.there[order.name] = order
        if self.hangs:
            await asyncio.Event().wait()

    async def delete(self, order: VmOrder, run: Run) -> None:
        self.calls.append(f"delete {order.name}")
        if self.stays:
            self.stays -= 1
            raise Unavailable("it does not go")
        self.there.pop(order.name, None)
