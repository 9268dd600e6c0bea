"""Result of comparing the scheduler's table with the store."""

from msgspec import Struct


class Difference(Struct, frozen=True):
    """A difference between the table and the store."""

    about: str
    """`node NAME` or `instance NAMESPACE/NAME`."""
    table: str
    store: str


class TableReport(Struct, frozen=True):
    nodes: int
    """Number of nodes in the table."""
    instances: int
    """Number of instances that the table counts on nodes."""
    promised: int
    """Number of these instances whose placement is decided but not committed yet."""
    differences: tuple[Difference, ...] = ()
