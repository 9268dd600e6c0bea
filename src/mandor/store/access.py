"""How to get into a store that asks who we are."""

from dataclasses import dataclass, field

from mandor.store.marker import Remembered


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Each home uses what it has a use for; `ca`, `cert` and `key` are names of PEM files."""

    tls: bool = False
    """Speak TLS even if no file is named."""
    ca: str = ""
    """Whom to trust; empty: whom this machine trusts."""
    cert: str = ""
    key: str = ""
    user: str = ""
    password: str = field(default="", repr=False)
    remembered: Remembered | None = None
    """What is known to have been stored there; a store that holds less is refused."""
    accept_older: bool = False
    """Take a store that holds less nevertheless."""

    @property
    def secure(self) -> bool:
        return self.tls or bool(self.ca or self.cert)


NOBODY = StoreAccess()
