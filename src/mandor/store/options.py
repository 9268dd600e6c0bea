"""What can be set about a store, whichever home it has."""

from dataclasses import dataclass, field
from pathlib import Path

from mandor.store.index import HISTORY_MOST


@dataclass(frozen=True, slots=True)
class StoreTls:
    """Files in PEM form; `cert_file` and `key_file` are what the store asks of us, if it does."""

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Each home uses what it has a use for."""

    tls: StoreTls | None = None
    user: str = ""
    password: str = field(default="", repr=False)
    history_most: int = HISTORY_MOST
    """So many changes are kept for watchers that come back."""
    compact_seconds: float = 300.0
    """etcd forgets what is older than this; 0: somebody else sees to that."""
    wait_seconds: float = 15.0
    """A commit that is not through by then is reported as not known to be stored."""


DEFAULT_OPTIONS = StoreOptions()
