"""Machines of an inventory: read from JSON or YAML and validated."""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.errors import Invalid
from mandor.lib.yaml12 import Malformed, load_all
from mandor.model.meta import check_labels, check_name

MACHINES_MOST = 20_000
Amount = Annotated[int, Bounds(ge=0, le=2**40)]


class Machine(Struct, frozen=True, kw_only=True):
    """One machine; other keys of the list are ignored."""

    name: str
    ip: str = ""
    cpu: Annotated[int, Bounds(ge=1, le=100_000)]
    """Cores."""
    memory: Annotated[int, Bounds(ge=1, le=2**40)]
    """MiB."""
    pool: str = "default"
    dedicated: bool = False
    """Whether only requests with `dedicated` are placed here."""
    used_cpu: Amount = 0
    used_memory: Amount = 0
    vms: tuple[str, ...] | Amount = 0
    """The virtual machines on it: their names, or their number."""
    max_vms: Amount | None = None
    """Maximum number of virtual machines; absent: no limit."""
    ready: bool = True
    labels: dict[str, str] = {}

    def __post_init__(self) -> None:
        check_name(self.name)
        check_name(self.pool, "pool")
        check_labels(self.labels)

    @property
    def vm_count(self) -> int:
        return self.vms if isinstance(self.vms, int) else len(self.vms)

    def shows(self, vm: str) -> bool:
        """Return whether the used resources may include this virtual machine; always true without a name."""
        return not vm or isinstance(self.vms, int) or vm in self.vms


def read_machines(text: bytes) -> list[Machine]:
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
    return found


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
