"""Credentials and expectations for opening a store."""

from dataclasses import dataclass, field

from mandor.store.marker import MarkerContent


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Options for opening a store; each store uses those that apply to it. `ca`, `cert` and `key` are PEM files."""

    tls: bool = False
    """Use TLS even if no certificate file is given."""
    ca: str = ""
    """Certificate authorities to trust; empty: those of this machine."""
    cert: str = ""
    key: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    marker: MarkerContent | None = None
    """Content of the marker file; a store that holds an older state is refused."""
    accept_older: bool = False
    """Open a store that holds an older state than the marker file nevertheless."""

    @property
    def secure(self) -> bool:
        return self.tls or bool(self.ca or self.cert)


ANONYMOUS = StoreAccess()
