"""Machines of an inventory: read from JSON or YAML and validated."""

from collections import Counter
from collections.abc import Sequence
from math import ceil
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.errors import Invalid
from mandor.lib.words import counted
from mandor.lib.yaml12 import Malformed, load_all
from mandor.model.meta import check_labels, check_name

MACHINES_MOST = 20_000
KEYS_MOST = 20  # keys that are named in a report
Amount = Annotated[int, Bounds(ge=0, le=2**40)]
Share = Annotated[float, Bounds(ge=0, le=1)]


class Machine(Struct, frozen=True, kw_only=True):
    """One machine. Usage is given as amounts (`used_cpu`, `used_memory`) or as shares (`usage_cpu`, `usage_mem`)."""

    name: str
    ip: str = ""
    cpu: Annotated[int, Bounds(ge=1, le=100_000)]
    """Cores."""
    memory: Annotated[int, Bounds(ge=1, le=2**40)]
    """MiB."""
    storage: Amount | None = None
    """GB of storage; the fact `storage` of the node."""
    model: str = ""
    """The fact `model` of the node."""
    pool: str = "default"
    dedicated: bool = False
    """Whether only requests with `dedicated` are placed here."""
    used_cpu: Amount | None = None
    """Cores in use."""
    used_memory: Amount | None = None
    """MiB in use."""
    usage_cpu: Share | None = None
    """Share of the cores in use, from 0 to 1."""
    usage_mem: Share | None = None
    """Share of the memory in use, from 0 to 1."""
    vms: tuple[str, ...] | Amount | None = None
    """The virtual machines on it: their names, or their number."""
    current_vms: Amount | None = None
    """The number of virtual machines on it."""
    max_vms: Amount | None = None
    """Maximum number of virtual machines; absent: no limit."""
    ready: bool = True
    labels: dict[str, str] = {}

    def __post_init__(self) -> None:
        check_name(self.name)
        check_name(self.pool, "pool")
        check_labels(self.labels)
        for one, other in (("used_cpu", "usage_cpu"), ("used_memory", "usage_mem"), ("vms", "current_vms")):
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise ValueError(f"it has both `{one}` and `{other}`; leave out one of them")

    @property
    def used_cpu_milli(self) -> int:
        return (self.used_cpu or 0) * 1000 if self.usage_cpu is None else ceil(self.usage_cpu * self.cpu * 1000)

    @property
    def used_memory_mib(self) -> int:
        return self.used_memory or 0 if self.usage_mem is None else ceil(self.usage_mem * self.memory)

    @property
    def vm_count(self) -> int:
        if isinstance(self.vms, tuple):
            return len(self.vms)
        return self.vms or self.current_vms or 0

    def shows(self, vm: str) -> bool:
        """Return whether the used resources may include this virtual machine; always true without a name."""
        return not vm or not isinstance(self.vms, tuple) or vm in self.vms


KNOWN_KEYS = frozenset(Machine.__struct_fields__)


class MachineList(NamedTuple):
    machines: list[Machine]
    unknown: tuple[str, ...] = ()
    """Keys that no reader understands, each with the number of machines that have it: `rack (12 machines)`."""


def read_machines(text: bytes) -> MachineList:
    """Read a list, or a list under `nodes` or `machines`; `Invalid` names the machine with an error."""
    plain = _plain(text)
    if isinstance(plain, dict):
        plain = plain.get("nodes", plain.get("machines"))
    if not isinstance(plain, list):
        raise Invalid("an inventory is a list of machines", hint="[{name, ip, cpu, memory, pool, …}, …]")
    if len(plain) > MACHINES_MOST:
        raise Invalid(f"the inventory lists {len(plain)} machines; at most {MACHINES_MOST:,} are allowed")
    found = [_machine(each, index) for index, each in enumerate(plain)]
    _check_once(found)
    return MachineList(found, _unknown(plain))


def _unknown(plain: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    seen = Counter(str(key)[:60] for each in plain for key in each if key not in KNOWN_KEYS)
    most = sorted(seen, key=lambda key: (-seen[key], key))[:KEYS_MOST]
    return tuple(f"{key} ({counted(seen[key], 'machine')})" for key in most)


def _machine(plain: Any, index: int) -> Machine:
    try:
        return msgspec.convert(plain, Machine)
    except (msgspec.ValidationError, ValueError) as error:
        named = plain.get("name", "") if isinstance(plain, dict) else ""
        raise Invalid(f"machine {index} {str(named)[:60]!r}: {error}") from error


def _check_once(machines: Sequence[Machine]) -> None:
    seen: set[str] = set()
    for each in machines:
        if each.name in seen:
            raise Invalid(f"the inventory lists two machines with the name {each.name}")
        seen.add(each.name)


def _plain(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        pass
    try:
        documents = load_all(text)
    except Malformed as error:
        raise Invalid(f"line {error.line}: {error.message}", hint=error.hint, line=error.line) from error
    if len(documents) != 1:
        raise Invalid(f"the inventory has {len(documents)} YAML documents; it must be one")
    return documents[0].value
