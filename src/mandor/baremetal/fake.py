"""Fake pipeline: makes nothing and records its calls, for rehearsals and tests with failures."""

import asyncio
from dataclasses import dataclass, field

from mandor.baremetal.pipeline import Pipeline, Run, VmOrder
from mandor.errors import Invalid, Unavailable


@dataclass
class FakePipeline(Pipeline):
    takes: float = 0.0
    """Seconds that each call takes."""
    fails: int = 0
    """Number of the next `create` calls that fail."""
    broken: bool = False
    """Whether every `create` call fails permanently."""
    hangs: bool = False
    """Whether machines are made without ever being reported."""
    stays: int = 0
    """Number of the next `delete` calls that fail."""
    there: dict[str, VmOrder] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    async def create(self, order: VmOrder, run: Run) -> None:
        self.calls.append(f"create {order.name} on {order.node}")
        if self.broken:
            raise Invalid("the fake pipeline is set to fail")
        if self.fails:
            self.fails -= 1
            raise Unavailable("the fake pipeline is set to fail this attempt")
        await asyncio.sleep(self.takes)
        self.there[order.name] = order
        if self.hangs:
            await asyncio.Event().wait()

    async def delete(self, order: VmOrder, run: Run) -> None:
        self.calls.append(f"delete {order.name}")
        if self.stays:
            self.stays -= 1
            raise Unavailable("the fake pipeline is set to fail this deletion")
        self.there.pop(order.name, None)
