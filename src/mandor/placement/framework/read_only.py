"""Read-only views: what plugins see of the table's state, without the methods that change it.

A class that plugins read is declared in two parts. The reader (`Column`) has the attributes and the methods that
read; the writer (`MutableColumn`) adds the constructor and the methods that write. The table owns the writer and hands
out `read_only(Column, writer)`: an object of the reader's class with the same state, so that reading costs no copy and
no extra call.
"""

from typing import TypeVar

V = TypeVar("V", bound="ReadOnly")


class ReadOnly:
    """Base of a reader: its attributes cannot be set or deleted."""

    def __setattr__(self, name: str, value: object, /) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only: a plugin does not change the cluster's state")

    def __delattr__(self, name: str, /) -> None:
        raise AttributeError(f"{type(self).__name__}.{name} is read-only: a plugin does not change the cluster's state")


class Writable:
    """Base of a writer, before the reader in the list of bases: its attributes can be set again."""

    __setattr__ = object.__setattr__
    __delattr__ = object.__delattr__


def read_only(reader: type[V], writer: V) -> V:
    """Return a reader that shares the state of a writer and shows its later changes."""
    view = object.__new__(reader)
    object.__setattr__(view, "__dict__", writer.__dict__)
    return view
