"""Roles: named sets of rules, each of which allows verbs on kinds; and the bindings that grant them to people."""

from typing import Annotated, ClassVar, Literal, get_args

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.lib.words import did_you_mean
from mandor.model.features import needs
from mandor.model.meta import Misfit, Object, check_labels, check_name
from mandor.model.record import ALL_NAMESPACES, Empty, Role

ANY = "*"
READS = ("get", "list", "watch")
WRITES = ("create", "update", "delete")
SPECIAL = (
    *("exec", "logs", "plan", "explain", "simulate", "scale", "rollout", "drain"),
    *("load", "join", "test", "metrics", "debug", "backup"),
)
READ_VALUE = "read-value"
"""Reads the values of a secret. Only workload identities can use it; `*` does not include it."""
VERBS = (*READS, *WRITES, *SPECIAL, READ_VALUE)
BUILT_IN = frozenset(get_args(Role))
RULES_MOST = 100
DEFAULT_ISSUER = "default"
"""The issuer that the server's settings describe."""

Text = Annotated[str, Bounds(min_length=1, max_length=256)]
Texts = Annotated[tuple[Text, ...], Bounds(max_length=100)]
SomeTexts = Annotated[tuple[Text, ...], Bounds(min_length=1, max_length=100)]


class RoleRule(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Allows each of its verbs on each of its kinds, for objects within its namespaces, names and labels."""

    verbs: SomeTexts
    """`get`, `list`, `watch`, `create`, `update`, `delete`, or `exec` and `logs` (instance), `plan`, `scale` and
    `rollout` (workload), `explain` (instance), `drain` and `load` (node), `simulate`, `metrics`, `debug` and `backup`
    (cluster), `test` (webhook, event-bus), `join` (node), `read-value` (secret); `*`: all but `read-value`."""
    kinds: SomeTexts
    """`workload`, `instance` …; `*`: all."""
    namespaces: SomeTexts = (ALL_NAMESPACES,)
    """`*`: all. Objects without a namespace, as nodes, are covered only by `*`."""
    names: SomeTexts = (ANY,)
    """Exact names, or beginnings as `shop-*`."""
    labels: dict[str, str] = {}
    """Only objects that have all these labels."""

    def __post_init__(self) -> None:
        for verb in self.verbs:
            if verb not in {ANY, *VERBS}:
                raise Misfit(f"there is no verb {verb[:40]!r}", "verbs", hint=did_you_mean(verb, VERBS))
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
        raise Misfit(str(error), at) from error


class RoleSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    rules: Annotated[tuple[RoleRule, ...], Bounds(min_length=1, max_length=RULES_MOST), needs("custom-roles")] = ()
    """Each rule allows verbs on kinds; requests that no rule allows are refused."""

    def __post_init__(self) -> None:
        if not self.rules:
            raise Misfit("a role has at least one rule", "rules")


class CustomRole(Object, frozen=True, tag="role"):
    """A set of rules with a name, which tokens and role bindings refer to."""

    kind: ClassVar[str] = "role"
    plural: ClassVar[str] = "roles"
    namespaced: ClassVar[bool] = False
    spec: RoleSpec
    status: Empty = field(default_factory=Empty)

    def __post_init__(self) -> None:
        if self.meta.name in BUILT_IN:
            raise ValueError(f"{self.meta.name} is a built-in role; choose another name")


class RoleBindingSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Grants a role to callers whose ID tokens come from an issuer and match."""

    role: Annotated[Text, needs("oidc")] = ""
    """`admin`, `operator`, `viewer`, or the name of a `kind: role`."""
    namespaces: SomeTexts = (ALL_NAMESPACES,)
    """The role holds there only; `*`: in the whole cluster."""
    issuer: Text = DEFAULT_ISSUER
    """The name of a `kind: issuer`; `default`: the one in the servers' settings."""
    users: Texts = ()
    """Exact user names, as the issuer's `username_claim` gives them."""
    groups: Texts = ()
    """Exact group names, as its `groups_claim` gives them."""
    claims: dict[str, Text] = {}
    """Claims that the token must have besides, with exactly these values."""

    def __post_init__(self) -> None:
        if not self.role or self.role in {"node", "join", "component", "custom"}:
            raise Misfit("a binding names a role for people: admin, operator, viewer or a `kind: role`", "role")
        if not (self.users or self.groups or self.claims):
            raise Misfit("a binding needs `users`, `groups` or `claims`: without them it would match every caller")
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
    """The `iss` claim of its tokens; `URL/.well-known/openid-configuration` describes it. `https`, or plain http on
    loopback."""
    audience: SomeTexts
    """The `aud` claim has one of these: the client id, or for workloads the audience they ask for."""
    subjects: Literal["people", "workloads"] = "people"
    """`workloads`: its tokens identify programs, which may be granted `read-value` on secrets."""
    username_claim: Text = "sub"
    """The claim that user names are taken from."""
    groups_claim: Text = "groups"
    """The claim that lists the groups of a user."""
    ca: Annotated[str, Bounds(max_length=65536)] = ""
    """Certificates to trust for its URL, as PEM text; empty: those of the server's machine."""

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
        raise Misfit(f"{url[:80]!r} is no issuer URL", "url", hint="https://HOST/PATH")
    if parts.scheme == "http" and not loopback:
        raise Misfit("an issuer is reached by https; plain http is for loopback alone", "url")


class IdentityKeySpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    public: dict[str, str] = {}
    """The public key as a JWK."""
    sealed: Annotated[str, needs("workload-identity")] = ""
    """The private key (PEM), sealed with the servers' key for secrets."""
    made_at: float = 0.0


class IdentityKey(Object, frozen=True, tag="identity-key"):
    """A key that signs workload identities; the newest is used, older ones are published until their tokens end."""

    kind: ClassVar[str] = "identity-key"
    plural: ClassVar[str] = "identity-keys"
    namespaced: ClassVar[bool] = False
    spec: IdentityKeySpec
    status: Empty = field(default_factory=Empty)


class Issuer(Object, frozen=True, tag="issuer"):
    """An issuer of ID tokens that this cluster trusts."""

    kind: ClassVar[str] = "issuer"
    plural: ClassVar[str] = "issuers"
    namespaced: ClassVar[bool] = False
    spec: IssuerSpec
    status: Empty = field(default_factory=Empty)
