"""Caller: the authenticated identity of a request, with its rules."""

from dataclasses import dataclass, field

from mandor.api.id_token import Verified
from mandor.api.rights import Rules, about, allowed, built_in, lacking, rule_text
from mandor.errors import Forbidden
from mandor.model.record import ALL_NAMESPACES
from mandor.model.role import READ_VALUE

USER_ROLES = frozenset({"admin", "operator", "viewer"})
"""The built-in roles for people and programs that act for them."""
PARTS = frozenset({"node", "join", "component"})
"""Roles of the cluster's own parts."""


@dataclass(frozen=True, slots=True)
class Caller:
    identity: str
    """`user:ani`, `oidc:default:ani`, `workload:east:…`, `node:n1`, `component:scheduler`"""
    role: str
    """A built-in role or the name of a `kind: role`; several roles are joined by `+`."""
    namespaces: frozenset[str] = frozenset({ALL_NAMESPACES})
    token: str = ""
    """The name of the token; empty: no token was needed, or an ID token was used."""
    proof: str = field(default="", repr=False, compare=False)
    """The hash of the token's secret, or the id of the certificate's key."""
    rules: Rules | None = field(default=None, repr=False)
    """Rules of the caller; computed from a built-in role if not given."""
    workload: bool = False
    """Whether the caller is a workload rather than a person, according to a trusted issuer."""
    verified: Verified | None = field(default=None, repr=False, compare=False)
    """The verified ID token; None: another kind of authentication."""

    def __post_init__(self) -> None:
        if self.rules is None:
            object.__setattr__(self, "rules", built_in(self.role, self.namespaces))

    @property
    def held(self) -> Rules:
        assert self.rules is not None
        return self.rules

    @property
    def user(self) -> bool:
        """Whether the caller is a user, whose rights are rules, and not one of the cluster's own parts."""
        return self.role not in PARTS

    @property
    def node(self) -> str:
        """The node of a caller that is an agent; empty: the caller is no agent."""
        return self.identity.removeprefix("node:") if self.role == "node" else ""

    def may(self, verb: str, kind: str, namespace: str = "", name: str = "") -> bool:
        """Return whether the rules allow the verb; `read-value` is only ever allowed for workloads."""
        if verb == READ_VALUE and not self.workload:
            return False
        return allowed(self.held, verb, kind, namespace, name)

    def may_somewhere(self, verb: str, kind: str) -> bool:
        """Return whether the caller may use the verb on some object of the kind."""
        return bool(about(self.held, verb, kind))

    @property
    def everywhere(self) -> bool:
        """Whether the caller may read all instances of the cluster."""
        return self.role == "component" or allowed(self.held, "get", "instance", ALL_NAMESPACES)

    def sees(self, namespace: str) -> bool:
        """Return whether the caller may read the instances of the namespace."""
        return self.role == "component" or allowed(self.held, "get", "instance", namespace)

    def require(self, verb: str, kind: str, namespace: str = "", name: str = "", *, what: str) -> None:
        """Raise `Forbidden` unless the rules of the caller allow the verb."""
        if not self.may(verb, kind, namespace, name):
            raise Forbidden(f"{self.identity} ({self.role}) may not {what}", hint=lacks(verb, kind), role=self.role)

    def require_somewhere(self, verb: str, kind: str, *, what: str) -> None:
        if not self.may_somewhere(verb, kind):
            raise Forbidden(f"{self.identity} ({self.role}) may not {what}", hint=lacks(verb, kind), role=self.role)

    def require_all(self, wanted: Rules, *, what: str) -> None:
        """Raise `Forbidden` unless the caller has every right of `wanted`: only a holder can grant a right."""
        beyond = lacking(self.held, wanted)
        if beyond is not None:
            raise Forbidden(
                f"{self.identity} ({self.role}) may not {what}: it would grant more than {self.identity} has",
                hint=f"missing: {rule_text(beyond)}",
                role=self.role,
            )


def lacks(verb: str, kind: str) -> str:
    return f"this requires the verb `{verb}` on the kind `{kind}`; `mandor auth whoami` shows your rules"


LOCAL = Caller("user:local", "admin")
"""The caller of a local request to a server that requires no tokens."""
