"""The small objects the cluster keeps about itself: who it is, who leads, who may do what, what happened."""

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
"""User ids from here to 2**31 belong to namespaces: above what systemd, login.defs and /etc/subuid give out."""


class Empty(Struct, frozen=True, gc=False, forbid_unknown_fields=True):
    pass


class ClusterSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    id: str
    epoch: int = 1
    """Raised by every restore: work that an older epoch knew is held, not killed."""


class SealingKey(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A data key: secrets are sealed with it, and it is sealed itself under a master key of the servers."""

    id: str
    sealed: str = ""
    created_at: float = 0.0


class ClusterStatus(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    next_user: Annotated[int, needs("namespace-levels")] = 0
    """Where the search for user ids of the next namespace starts; 0: none was assigned yet."""
    keys: Annotated[tuple[SealingKey, ...], needs("sealing-keys")] = ()
    """Data keys of secrets; the newest, which seals, is last."""


class Cluster(Object, frozen=True, tag="cluster"):
    """The one object called `cluster`: who this store belongs to."""

    kind: ClassVar[str] = "cluster"
    plural: ClassVar[str] = "clusters"
    namespaced: ClassVar[bool] = False
    spec: ClusterSpec
    status: ClusterStatus = field(default_factory=ClusterStatus)


class LeaseSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    holder: str
    seconds: float
    """Unchanged for so long, on the observer's own clock: free to take."""
    renewals: int = 0
    address: str = ""


class Lease(Object, frozen=True, tag="lease"):
    """Who is alive (`server-<id>`), who leads (`leader-<role>`)."""

    kind: ClassVar[str] = "lease"
    plural: ClassVar[str] = "leases"
    namespaced: ClassVar[bool] = False
    spec: LeaseSpec
    status: Empty = field(default_factory=Empty)


class HearingSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    nodes: tuple[str, ...] = ()
    """Sorted; written when it changes, at most once a second."""


class Hearing(Object, frozen=True, tag="hearing"):
    """The nodes one server hears; its name is the server's id, its lease says whether that server lives."""

    kind: ClassVar[str] = "hearing"
    plural: ClassVar[str] = "hearings"
    namespaced: ClassVar[bool] = False
    spec: HearingSpec
    status: Empty = field(default_factory=Empty)


class ServerSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    version: str
    features: tuple[str, ...] = ()
    """What it can do, by name; a field that is new is written once every server that lives names its feature."""
    roles: tuple[str, ...] = ()
    keys: Annotated[tuple[str, ...], needs("sealing-keys")] = ()
    """Ids of its master keys."""
    address: str = ""
    seconds: float = 10.0
    """Unchanged for so long, on the observer's own clock: it lives no more."""
    renewals: int = 0


class Server(Object, frozen=True, tag="server"):
    """A process of the control plane, as it tells of itself while it lives; its name is its id."""

    kind: ClassVar[str] = "server"
    plural: ClassVar[str] = "servers"
    namespaced: ClassVar[bool] = False
    spec: ServerSpec
    status: Empty = field(default_factory=Empty)


class NamespaceSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    level: Annotated[Level, needs("namespace-levels")] = "restricted"
    """How far its tasks are confined, and what is allowed where the lists below are absent."""
    engines: tuple[str, ...] | None = None
    """The engines its workloads may use; absent: all, but `process` only at the level `privileged`."""
    pools: Annotated[tuple[str, ...] | None, needs("namespace-levels")] = None
    """The node pools its workloads may use; absent: all."""
    registries: Annotated[tuple[str, ...] | None, needs("namespace-levels")] = None
    """Where its images may come from: registries, paths or repositories, such as `ghcr.io/acme`; absent: anywhere."""
    users: tuple[str, ...] | None = None
    """The users its tasks may run as; absent: as the level allows."""
    host_paths: tuple[str, ...] | None = None
    """The host paths its workloads may mount, with all below; absent: none, and at the level `privileged` whatever a
    node's agent allows."""
    options: tuple[str, ...] | None = None
    """The engine options its tasks may use: `docker.shm_size`, or `incus.*` for all of an engine; `security.privileged`
    and `security.cap_add` are such, too; absent: as the level allows."""
    pull_secret: Annotated[str, needs("pull-secrets")] = ""
    """The secret with the login for images of tasks that name none; empty: the nodes' own logins."""
    priority_most: int | None = None
    """The highest priority its workloads may have; absent: any."""


class NamespaceStatus(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    first_user: Annotated[int, needs("namespace-levels")] = 0
    """First of the `USERS_PER_NAMESPACE` user ids that belong to this namespace alone; 0: none assigned yet."""


class Namespace(Object, frozen=True, tag="namespace"):
    """A tenant: its objects are separate from those of other namespaces, within the level and limits that it sets."""

    kind: ClassVar[str] = "namespace"
    plural: ClassVar[str] = "namespaces"
    namespaced: ClassVar[bool] = False
    spec: NamespaceSpec = field(default_factory=NamespaceSpec)
    status: NamespaceStatus = field(default_factory=NamespaceStatus)


class Former(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """The secret that a token had before, which is good for a while yet."""

    hash: str
    until: float
    key: Annotated[str, needs("certificates")] = ""
    """The id of the node's key before."""


class JoinTerms(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Limits of a join token: how many nodes it admits, and what those nodes are."""

    uses: int | None = None
    """Nodes that can still join with the token; absent: any number until the token ends."""
    pool: str = ""
    """The pool of every node that joins with the token; empty: the agent chooses."""
    labels: dict[str, str] = {}
    """The labels of every node that joins with the token; empty: the agent chooses."""
    node: str = ""
    """The only node name that the token admits; empty: any."""


class TokenSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    role: Role
    """`custom`: see `custom`."""
    custom: Annotated[str, needs("custom-roles")] = ""
    """The name of the `kind: role` whose rules its bearer has."""
    identity: str
    """`user:ani`, `node:n1`, `component:scheduler`: who its bearer is."""
    hash: str
    """SHA-256 of the secret; the secret itself is shown once and kept nowhere."""
    namespaces: tuple[str, ...] = (ALL_NAMESPACES,)
    expires_at: float = 0.0
    """0: never."""
    former: Annotated[Former | None, needs("credential-renewal")] = None
    """Of a node that has renewed its credential."""
    join: Annotated[JoinTerms | None, needs("join-terms")] = None
    """Limits of a join token; absent: none besides its end."""
    key: Annotated[str, needs("certificates")] = ""
    """SHA-256 of the public key that a node's certificates are for; empty: the node shows its secret only."""


class Token(Object, frozen=True, tag="token"):
    """A key to the API; its name is the public half."""

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
        """For how long it was made."""
        return self.ends_at - self.meta.created_at

    def followed(self, now: float, overlap_seconds: float) -> Former:
        """What stays of it beside its successor, for a while and not longer than it would have been good."""
        return Former(self.spec.hash, min(now + overlap_seconds, self.ends_at), self.spec.key)


RENEWAL_SHARE = 2 / 3
"""At this share of its life an agent renews a credential that has an end."""
SOON_SECONDS = 14 * 86_400.0


def ends_soon(role: str, left_seconds: float, lasts_seconds: float) -> bool:
    """Somebody should see to it: a node's own is renewed in time, unless something is wrong."""
    return left_seconds < soon_seconds(role, lasts_seconds)


def soon_seconds(role: str, lasts_seconds: float) -> float:
    """Seconds before its end from which on a token is reported; a join token is short-lived and never reported."""
    if role == "join":
        return -math.inf
    late = (1 - RENEWAL_SHARE) / 2 * lasts_seconds if role == "node" else SOON_SECONDS
    return min(SOON_SECONDS, late)


class SessionSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """A caller waits at `server`; the node's agent dials back and the two are joined."""

    verb: Literal["logs", "exec", "load"]
    instance: str = ""
    """Empty: it is about the node itself."""
    uid: str = ""
    task: str = ""
    node: str
    server: str
    """The URL of the API server that holds the caller."""
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
    """What is loaded; it comes as standard input."""
    engine: str = ""
    """Only into this one; empty: into every one that takes it."""


class Session(Object, frozen=True, tag="session"):
    """A request for logs, exec or an image load, which the agent of the node answers by connecting to the server."""

    kind: ClassVar[str] = "session"
    plural: ClassVar[str] = "sessions"
    spec: SessionSpec
    status: Empty = field(default_factory=Empty)

    @property
    def node(self) -> str:
        return self.spec.node


class EventSpec(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    about: str
    """`instance default/web-0`"""
    type: Literal["normal", "warning"] = "normal"
    reason: str
    message: Annotated[str, Bounds(max_length=2048)]
    source: str
    node: str = ""
    count: int = 1
    first_at: float = 0.0
    last_at: float = 0.0


class Event(Object, frozen=True, tag="event"):
    """A sentence for people about an object; the same sentence again raises its count."""

    kind: ClassVar[str] = "event"
    plural: ClassVar[str] = "events"
    spec: EventSpec
    status: Empty = field(default_factory=Empty)

    @property
    def node(self) -> str:
        return self.spec.node
