"""Rules for the resource usage of simulated instances: a share of the request or an amount, also temporarily."""

from dataclasses import dataclass, field

from msgspec import Struct

from mandor.lib.quantity import Cpu, Size
from mandor.model.resources import Resources

Amount = str
"""`80%` of the request, or an amount as requests have it."""


class UsageRule(Struct, frozen=True, forbid_unknown_fields=True):
    """Resource usage of one instance: percentages of its request, or amounts."""

    cpu: Amount = "50%"
    memory: Amount = "80%"
    disk: Amount = "100%"

    def __post_init__(self) -> None:
        self.of(Resources())

    def of(self, request: Resources) -> Resources:
        return Resources(
            _amount(self.cpu, request.cpu_milli, Cpu.parse),
            _amount(self.memory, request.memory_bytes, Size.parse),
            _amount(self.disk, request.disk_bytes, Size.parse),
        )


def _amount(text: str, request: int, parse: type[int] | object) -> int:
    if text.endswith("%"):
        try:
            return round(request * float(text[:-1]) / 100)
        except ValueError:
            raise ValueError(f"{text!r} is not a percentage") from None
    return int(parse(text))  # type: ignore[operator]


USUAL = UsageRule()


@dataclass(slots=True)
class UsageRules:
    usual: UsageRule = USUAL
    by_workload: dict[str, UsageRule] = field(default_factory=dict)
    spikes: dict[str, UsageRule] = field(default_factory=dict)
    """Temporary rules by workload; they override the others."""

    def of(self, workload: str, request: Resources) -> Resources:
        unit_usage = self.spikes.get(workload) or self.by_workload.get(workload) or self.usual
        return unit_usage.of(request)
