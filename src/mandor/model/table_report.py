"""What comes out when the scheduler's table is compared with the store."""

from msgspec import Struct


class Difference(Struct, frozen=True):
    """Something that the table and the store do not say alike."""

    about: str
    """`node NAME` or `instance NAMESPACE/NAME`."""
    table: str
    store: str


class TableReport(Struct, frozen=True):
    nodes: int
    """So many the table holds."""
    instances: int
    """So many it counts on nodes."""
    promised: int
    """So many of these are decided, and not written yet."""
    differences: tuple[Difference, ...] = ()
