"""Messages between the agent and its name server process, and the state on disk."""

import msgspec

from mandor.network.base import NameRecord, NameTable

FIRST = "169.254.53.53"
"""Address of the name server of a machine; further agents of the machine use the following ones."""
CANDIDATES_MOST = 128


class Listen(msgspec.Struct, frozen=True):
    """Addresses of the server, and the servers for other names."""

    addresses: tuple[str, ...]
    """Addresses in order of preference; the server uses the first free one."""
    port: int = 53
    upstream: tuple[tuple[str, int], ...] = ()
    """Servers for other names; empty: those of the machine."""
    add: bool = True
    """Whether the server adds its address to the loopback interface if no interface has it."""


class Table(msgspec.Struct, frozen=True):
    """A table of names."""

    records: dict[str, NameRecord] = {}
    clients: dict[str, str] = {}
    reverse: dict[str, str] = {}
    default_namespace: str = "default"

    @staticmethod
    def of(table: NameTable) -> "Table":
        """Return the message form of a table."""
        return Table(dict(table.records), dict(table.clients), dict(table.reverse), table.default_namespace)

    def table(self) -> NameTable:
        """Return the table."""
        return NameTable(self.records, self.clients, self.reverse, self.default_namespace)


class Request(msgspec.Struct, frozen=True):
    """A request to the process. Both parts None: only asks for the address."""

    listen: Listen | None = None
    table: Table | None = None


class Reply(msgspec.Struct, frozen=True):
    """Answer to every request, sent when it is in effect."""

    address: str = ""
    """Address at which the server answers; empty: none yet."""
    port: int = 0


class State(msgspec.Struct, frozen=True):
    """The part of the state with which a new process uses the same address."""

    listen: Listen
    address: str
    added: bool
    """Whether the server has added the address to the loopback interface."""


def candidates(first: str = FIRST) -> tuple[str, ...]:
    """Return the addresses that agents of one machine choose from."""
    start, _, last = first.rpartition(".")
    return tuple(f"{start}.{number}" for number in range(int(last), min(255, int(last) + CANDIDATES_MOST)))
