"""Caller: who sends a request, and in which namespaces they have a say."""

from dataclasses import dataclass, field

from mandor.errors import Forbidden
from mandor.model.record import ALL_NAMESPACES, Role

USER_ROLES = frozenset({"admin", "operator", "viewer"})


@dataclass(frozen=True, slots=True)
class Caller:
    identity: str
    """`user:ani`, `node:n1`, `component:scheduler`"""
    role: Role
    namespaces: frozenset[str] = frozenset({ALL_NAMESPACES})
    token: str = ""
    """The name of the token they showed; empty: none was needed."""
    proof: str = field(default="", repr=False, compare=False)
    """The hash of the secret they showed with it."""

    @property
    def user(self) -> bool:
        return self.role in USER_ROLES

    @property
    def node(self) -> str:
        """The node it speaks for; empty: none."""
        return self.identity.removeprefix("node:") if self.role == "node" else ""

    @property
    def everywhere(self) -> bool:
        return ALL_NAMESPACES in self.namespaces

    def sees(self, namespace: str) -> bool:
        return self.everywhere or namespace in self.namespaces

    def require(self, *roles: Role, what: str) -> None:
        """Raise `Forbidden` unless the caller has one of the roles, for the whole cluster."""
        if self.role not in roles:
            raise Forbidden(
                f"{self.identity} ({self.role}) may not {what}",
                hint=f"this takes the role {' or '.join(roles)}",
                role=self.role,
            )
        if self.user and not self.everywhere:
            raise Forbidden(
                f"{self.identity} may not {what}",
                hint="this takes a token for all namespaces",
                namespaces=sorted(self.namespaces),
            )


LOCAL = Caller("user:local", "admin")
"""Whoever is on this machine, where no tokens are asked for."""
