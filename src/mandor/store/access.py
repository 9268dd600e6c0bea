"""How to get into a store that asks who we are."""

from dataclasses import dataclass, field


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

    @property
    def secure(self) -> bool:
        return self.tls or bool(self.ca or self.cert)


NOBODY = StoreAccess()
