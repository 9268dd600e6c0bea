"""Internal objects of the cluster: identity, leases, servers, namespaces, tokens, sessions and events."""

import math
from typing import Annotated, ClassVar, Literal

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.model.features import needs
from mandor.model.image import ImageFile
from mandor.model.level import Level
from mandor.model.meta import Object

Role = Literal["admin", "operator", "viewer", "node", "join", "component", "custom"]
ALL_NAMESPACES = "*"
USERS_PER_NAMESPACE = 10_000
FIRST_NAMESPACE_USER = 1_900_000_000
"""First user id assigned to namespaces; they end below 2**31, above the ranges of systemd, login.defs and /etc/subuid.
"""


class Empty(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    pass


class ClusterSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    id: str
    epoch: int = 1
    """Increased by every restore. Instances started under an older epoch are kept running and reported, not killed."""


class SealingKey(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A data key that encrypts secrets; it is encrypted itself with a master key of the servers."""

    id: str
    sealed: str = ""
    created_at: float = 0.0


class ClusterStatus(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    next_user: Annotated[int, needs("namespace-levels")] = 0
    """User id from which the range of the next namespace is searched; 0 if none was assigned yet."""
    keys: Annotated[tuple[SealingKey, ...], needs("sealing-keys")] = ()
    """Data keys of secrets; the last one is the newest and encrypts."""


class Cluster(Object, frozen=True, tag="cluster"):
    """Identity of the cluster that the store belongs to; a single object named `cluster`."""

    kind: ClassVar[str] = "cluster"
    plural: ClassVar[str] = "clusters"
    namespaced: ClassVar[bool] = False
    spec: ClusterSpec
    status: ClusterStatus = field(default_factory=ClusterStatus)


class LeaseSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    holder: str
    seconds: float
    """Validity of the lease: it is free if it has not changed for this time on the observer's clock."""
    renewals: int = 0
    address: str = ""


class Lease(Object, frozen=True, tag="lease"):
    """Shows which servers are alive (`server-<id>`) and which one leads (`leader-<role>`)."""

    kind: ClassVar[str] = "lease"
    plural: ClassVar[str] = "leases"
    namespaced: ClassVar[bool] = False
    spec: LeaseSpec
    status: Empty = field(default_factory=Empty)


class HeartbeatSummarySpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    nodes: tuple[str, ...] = ()
    """Sorted node names; written when they change, at most once a second."""
    applied: Annotated[dict[str, int], needs("services")] = {}
    """Lowest revision of services that the data paths of these nodes have applied, by namespace."""


class HeartbeatSummary(Object, frozen=True, tag="hearing"):
    """Nodes whose heartbeats one server receives. Its name is the server's id; the server's lease shows whether the
    server is alive.
    """

    kind: ClassVar[str] = "hearing"
    plural: ClassVar[str] = "hearings"
    namespaced: ClassVar[bool] = False
    spec: HeartbeatSummarySpec
    status: Empty = field(default_factory=Empty)


class ServerSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    version: str
    features: tuple[str, ...] = ()
    """Supported features. A new stored field is written only once every live server supports its feature."""
    roles: tuple[str, ...] = ()
    keys: Annotated[tuple[str, ...], needs("sealing-keys")] = ()
    """Ids of the server's master keys."""
    address: str = ""
    seconds: float = 10.0
    """Validity of the record: the server is dead if it has not changed for this time on the observer's clock."""
    renewals: int = 0


class Server(Object, frozen=True, tag="server"):
    """A live control plane process, written by itself; its name is its id."""

    kind: ClassVar[str] = "server"
    plural: ClassVar[str] = "servers"
    namespaced: ClassVar[bool] = False
    spec: ServerSpec
    status: Empty = field(default_factory=Empty)


class NamespaceSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    level: Annotated[Level, needs("namespace-levels")] = "restricted"
    """Security level of the namespace's tasks: `restricted`, `baseline` or `privileged`. It applies to every topic
    whose list below is absent. Defaults to `restricted`.
    """
    engines: tuple[str, ...] | None = None
    """Engines that workloads may use. Defaults to all; `process` only at the level `privileged`."""
    pools: Annotated[tuple[str, ...] | None, needs("namespace-levels")] = None
    """Node pools that workloads may use. Defaults to all."""
    registries: Annotated[tuple[str, ...] | None, needs("namespace-levels")] = None
    """Registries, paths or repositories that images may come from, such as `ghcr.io/acme`. Defaults to all."""
    users: tuple[str, ...] | None = None
    """Users that tasks may run as. Defaults to what the level allows."""
    host_paths: tuple[str, ...] | None = None
    """Host paths that workloads may mount, including everything below. Defaults to none; at the level `privileged` to
    what the node's agent allows.
    """
    options: tuple[str, ...] | None = None
    """Engine options that tasks may use: `docker.shm_size`, or `incus.*` for all options of an engine; also
    `security.privileged` and `security.cap_add`. Defaults to what the level allows.
    """
    pull_secret: Annotated[str, needs("pull-secrets")] = ""
    """Secret with the registry credentials for tasks that set none. Defaults to the nodes' own credentials."""
    priority_most: int | None = None
    """Highest priority that workloads may have. Defaults to no limit."""


class NamespaceStatus(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    first_user: Annotated[int, needs("namespace-levels")] = 0
    """First of the `USERS_PER_NAMESPACE` user ids assigned to this namespace; 0 if none were assigned yet."""


class Namespace(Object, frozen=True, tag="namespace"):
    """A tenant: its objects are separate from those of other namespaces, within the level and limits that it sets."""

    kind: ClassVar[str] = "namespace"
    plural: ClassVar[str] = "namespaces"
    namespaced: ClassVar[bool] = False
    spec: NamespaceSpec = field(default_factory=NamespaceSpec)
    status: NamespaceStatus = field(default_factory=NamespaceStatus)


class PreviousSecret(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The previous secret of a token, which stays valid for a while."""

    hash: str
    until: float
    key: Annotated[str, needs("certificates")] = ""
    """Id of the node's previous key."""


class JoinTerms(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a join token: the number, pool, labels and name of the nodes that it admits."""

    uses: int | None = None
    """Number of nodes that can still join with the token; absent: unlimited until it expires."""
    pool: str = ""
    """Pool of every node that joins with the token; empty: chosen by the agent."""
    labels: dict[str, str] = {}
    """Labels of every node that joins with the token; empty: chosen by the agent."""
    node: str = ""
    """The only node name that the token admits; empty: any."""


class TokenSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    role: Role
    """Role of the bearer; `custom` refers to the field `custom`."""
    custom: Annotated[str, needs("custom-roles")] = ""
    """Name of the `kind: role` whose rules apply to the bearer."""
    identity: str
    """Identity of the bearer: `user:ani`, `node:n1`, `component:scheduler`."""
    hash: str
    """SHA-256 of the secret. The secret itself is shown once and not stored."""
    namespaces: tuple[str, ...] = (ALL_NAMESPACES,)
    expires_at: float = 0.0
    """Unix time at which the token expires; 0 if it does not."""
    former: Annotated[PreviousSecret | None, needs("credential-renewal")] = None
    """Previous secret of a node's token after the credential was renewed."""
    join: Annotated[JoinTerms | None, needs("join-terms")] = None
    """Limits of a join token; absent if only its expiry limits it."""
    key: Annotated[str, needs("certificates")] = ""
    """SHA-256 of the public key in the node's certificates; empty if the node authenticates with its secret only."""


class Token(Object, frozen=True, tag="token"):
    """A credential for the API; its name is the public part."""

    kind: ClassVar[str] = "token"
    plural: ClassVar[str] = "tokens"
    namespaced: ClassVar[bool] = False
    spec: TokenSpec
    status: Empty = field(default_factory=Empty)

    @property
    def ends_at(self) -> float:
        return self.spec.expires_at or math.inf

    @property
    def lasts_seconds(self) -> float:
        """Seconds between creation and expiry."""
        return self.ends_at - self.meta.created_at

    def followed(self, now: float, overlap_seconds: float) -> PreviousSecret:
        """Return the record of this token's secret that stays valid beside its successor, at most until the token
        expires.
        """
        return PreviousSecret(self.spec.hash, min(now + overlap_seconds, self.ends_at), self.spec.key)


RENEWAL_SHARE = 2 / 3
"""Share of its lifetime after which an agent renews a credential that expires."""
SOON_SECONDS = 14 * 86_400.0


def ends_soon(role: str, left_seconds: float, lasts_seconds: float) -> bool:
    """Return whether the token should be reported as expiring soon. Nodes renew theirs earlier, so a late one indicates
    a problem.
    """
    return left_seconds < soon_seconds(role, lasts_seconds)


def soon_seconds(role: str, lasts_seconds: float) -> float:
    """Seconds before its expiry from which on a token is reported; join tokens are short-lived and never reported."""
    if role == "join":
        return -math.inf
    late = (1 - RENEWAL_SHARE) / 2 * lasts_seconds if role == "node" else SOON_SECONDS
    return min(SOON_SECONDS, late)


class SessionSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """A caller waits at `server`; the node's agent connects to that server, which joins the two connections."""

    verb: Literal["logs", "exec", "load", "forward", "traffic"]
    instance: str = ""
    """Name of the instance; empty if the session is about the node itself."""
    uid: str = ""
    task: str = ""
    node: str
    server: str
    """URL of the API server that holds the caller's connection."""
    secret: str
    command: tuple[str, ...] = ()
    terminal: bool = False
    rows: int = 24
    columns: int = 80
    follow: bool = False
    tail: int | None = None
    since: float | None = None
    stdin: bool = False
    image: ImageFile | None = None
    """Header of the image to load; its bytes are sent as standard input."""
    engine: str = ""
    """The only engine to load the image into; empty for every engine that accepts it."""
    port: str = ""
    """Name or number of the port of the instance to which the session is forwarded."""
    service: str = ""
    """Service that a report is about, as `NAMESPACE/NAME`."""


class Session(Object, frozen=True, tag="session"):
    """A request for logs, exec, a forwarded connection, a report or an image load, which the agent of the node
    answers by connecting to the server.
    """

    kind: ClassVar[str] = "session"
    plural: ClassVar[str] = "sessions"
    spec: SessionSpec
    status: Empty = field(default_factory=Empty)

    @property
    def node(self) -> str:
        return self.spec.node


class EventSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    about: str
    """The object, for example `instance default/web-0`."""
    type: Literal["normal", "warning"] = "normal"
    reason: str
    message: Annotated[str, Bounds(max_length=2048)]
    source: str
    node: str = ""
    count: int = 1
    first_at: float = 0.0
    last_at: float = 0.0


class Event(Object, frozen=True, tag="event"):
    """A message about an object; repetitions increase its count."""

    kind: ClassVar[str] = "event"
    plural: ClassVar[str] = "events"
    spec: EventSpec
    status: Empty = field(default_factory=Empty)

    @property
    def node(self) -> str:
        return self.spec.node
