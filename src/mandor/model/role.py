"""Custom roles (rules that allow verbs on kinds), the bindings that grant roles to users, and OpenID issuers."""

from typing import Annotated, ClassVar, Literal, get_args

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.lib.words import did_you_mean
from mandor.model.features import needs
from mandor.model.meta import InvalidField, Object, check_labels, check_name
from mandor.model.record import ALL_NAMESPACES, Empty, Role

ANY = "*"
READS = ("get", "list", "watch")
WRITES = ("create", "update", "delete")
SPECIAL = (
    *("exec", "forward", "logs", "plan", "explain", "simulate", "scale", "rollout", "drain"),
    *("load", "join", "test", "metrics", "debug", "backup"),
)
SERVE = "serve"
"""Verb of gateways: it reads the certificates of routes, and nothing else of secrets. `*` does not include it."""
READ_VALUE = "read-value"
"""Verb that reads the values of a secret. Only workload identities can use it; `*` does not include it."""
VERBS = (*READS, *WRITES, *SPECIAL, READ_VALUE, SERVE)
BY_NAME_ONLY = frozenset({READ_VALUE, SERVE})
"""Verbs that `*` does not include."""
BUILT_IN = frozenset({*get_args(Role), "gateway"})
RULES_MOST = 100
DEFAULT_ISSUER = "default"
"""Name of the issuer in the server's settings."""

Text = Annotated[str, Bounds(min_length=1, max_length=256)]
Texts = Annotated[tuple[Text, ...], Bounds(max_length=100)]
SomeTexts = Annotated[tuple[Text, ...], Bounds(min_length=1, max_length=100)]


class RoleRule(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Allows each of its verbs on each of its kinds, for objects in its namespaces and with its names and labels."""

    verbs: SomeTexts
    """Allowed verbs: `get`, `list`, `watch`, `create`, `update`, `delete`; `exec`, `forward` and `logs` (instance);
    `plan`, `scale` and `rollout` (workload); `explain` (instance, workload, service); `drain` and `load` (node);
    `simulate`, `metrics`, `debug` and `backup` (cluster); `test` (webhook, event-bus); `join` (node); `read-value`
    (secret); `serve` (route). `*` means all except `read-value` and `serve`.
    """
    kinds: SomeTexts
    """Kinds such as `workload` and `instance`; `*` means all."""
    namespaces: SomeTexts = (ALL_NAMESPACES,)
    """Namespaces of the objects. Defaults to `*`, all. Cluster-wide objects such as nodes are covered only by `*`."""
    names: SomeTexts = (ANY,)
    """Exact names, or prefixes such as `shop-*`. Defaults to all."""
    labels: dict[str, str] = {}
    """Labels that the objects must all have."""

    def __post_init__(self) -> None:
        for verb in self.verbs:
            if verb not in {ANY, *VERBS}:
                raise InvalidField(f"unknown verb {verb[:40]!r}", "verbs", hint=did_you_mean(verb, VERBS))
        for name in self.namespaces:
            if name != ALL_NAMESPACES:
                _checked(name, "namespaces", "namespace")
        for name in self.names:
            if name != ANY:
                _checked(name.removesuffix(ANY).rstrip("-._") or "-", "names", "name")
        check_labels(self.labels)

    def __hash__(self) -> int:
        return hash((self.verbs, self.kinds, self.namespaces, self.names))


def _checked(name: str, at: str, what: str) -> None:
    try:
        check_name(name, what, most=253)
    except ValueError as error:
        raise InvalidField(str(error), at) from error


class RoleSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    rules: Annotated[tuple[RoleRule, ...], Bounds(min_length=1, max_length=RULES_MOST), needs("custom-roles")] = ()
    """Rules of the role, 1 to 100. A request that no rule allows is denied."""

    def __post_init__(self) -> None:
        if not self.rules:
            raise InvalidField("a role must have at least one rule", "rules")


class CustomRole(Object, frozen=True, tag="role"):
    """A named set of rules that tokens and role bindings refer to."""

    kind: ClassVar[str] = "role"
    plural: ClassVar[str] = "roles"
    namespaced: ClassVar[bool] = False
    spec: RoleSpec
    status: Empty = field(default_factory=Empty)

    def __post_init__(self) -> None:
        if self.meta.name in BUILT_IN:
            raise ValueError(f"{self.meta.name} is a built-in role; choose another name")


class RoleBindingSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Grants a role to callers with a matching ID token of an issuer."""

    role: Annotated[Text, needs("oidc")] = ""
    """`admin`, `operator`, `viewer`, or the name of a `kind: role`."""
    namespaces: SomeTexts = (ALL_NAMESPACES,)
    """Namespaces in which the role is granted. Defaults to `*`, the whole cluster."""
    issuer: Text = DEFAULT_ISSUER
    """Name of a `kind: issuer`. Defaults to `default`, the issuer in the servers' settings."""
    users: Texts = ()
    """Exact user names, as in the issuer's `username_claim`."""
    groups: Texts = ()
    """Exact group names, as in the issuer's `groups_claim`."""
    claims: dict[str, Text] = {}
    """Further claims that the token must have, with exactly these values."""

    def __post_init__(self) -> None:
        if not self.role or self.role in {"node", "join", "component", "custom"}:
            raise InvalidField("`role` must be admin, operator, viewer or the name of a `kind: role`", "role")
        if not (self.users or self.groups or self.claims):
            raise InvalidField("set `users`, `groups` or `claims`; without them the binding would match every caller")
        for name in self.namespaces:
            if name != ALL_NAMESPACES:
                _checked(name, "namespaces", "namespace")


class RoleBinding(Object, frozen=True, tag="role-binding"):
    """Gives a role to users, groups or workload identities of an issuer."""

    kind: ClassVar[str] = "role-binding"
    plural: ClassVar[str] = "role-bindings"
    namespaced: ClassVar[bool] = False
    spec: RoleBindingSpec
    status: Empty = field(default_factory=Empty)


class IssuerSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """An OpenID provider whose ID tokens the API accepts."""

    url: Annotated[str, Bounds(max_length=2048), needs("oidc")] = ""
    """Issuer URL, equal to the `iss` claim of its tokens; its configuration is read from
    `URL/.well-known/openid-configuration`. Must be https, except for loopback addresses.
    """
    audience: SomeTexts
    """Accepted values of the `aud` claim: the client id, or for workloads the requested audience."""
    subjects: Literal["people", "workloads"] = "people"
    """`people`: tokens identify users. `workloads`: tokens identify programs, which can be granted `read-value` on
    secrets. Defaults to `people`.
    """
    username_claim: Text = "sub"
    """Claim with the user name. Defaults to `sub`."""
    groups_claim: Text = "groups"
    """Claim with the list of groups. Defaults to `groups`."""
    ca: Annotated[str, Bounds(max_length=65536)] = ""
    """CA certificates for the issuer's URL, in PEM format. Defaults to the system's CA certificates."""

    def __post_init__(self) -> None:
        check_issuer_url(self.url)


def check_issuer_url(url: str) -> None:
    from urllib.parse import urlsplit

    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        parts, host = urlsplit(""), ""
    loopback = host in {"127.0.0.1", "::1", "localhost"}
    if not host or parts.query or parts.fragment or parts.username or parts.scheme not in {"https", "http"}:
        raise InvalidField(f"{url[:80]!r} is not an issuer URL", "url", hint="https://HOST/PATH")
    if parts.scheme == "http" and not loopback:
        raise InvalidField("the URL of an issuer must use https, except on loopback", "url")


class IdentityKeySpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    public: dict[str, str] = {}
    """Public key as a JWK."""
    sealed: Annotated[str, needs("workload-identity")] = ""
    """Private key in PEM format, encrypted with the cluster's secret key."""
    made_at: float = 0.0


class IdentityKey(Object, frozen=True, tag="identity-key"):
    """A key that signs workload identity tokens. The newest key signs; older ones are published until their tokens
    expire.
    """

    kind: ClassVar[str] = "identity-key"
    plural: ClassVar[str] = "identity-keys"
    namespaced: ClassVar[bool] = False
    spec: IdentityKeySpec
    status: Empty = field(default_factory=Empty)


class Issuer(Object, frozen=True, tag="issuer"):
    """An OpenID provider whose ID tokens the cluster accepts."""

    kind: ClassVar[str] = "issuer"
    plural: ClassVar[str] = "issuers"
    namespaced: ClassVar[bool] = False
    spec: IssuerSpec
    status: Empty = field(default_factory=Empty)
