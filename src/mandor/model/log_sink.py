"""Log sinks: who gets what instances and agents write, and how that goes on one node."""

from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.lib.quantity import Seconds, Size
from mandor.model.features import needs
from mandor.model.meta import Misfit, Object, check_labels, check_name
from mandor.model.receiver import EVERYTHING, HERE, PATTERNS_MOST, URL_MOST, Patterns, check_ca, check_secret
from mandor.model.receiver import FILE as SECRET_FILE
from mandor.model.secret import secret_of

Source = Literal["instances", "agent"]
MIB = 1 << 20
BUFFER_LEAST, BUFFER_MOST = MIB, 64 << 30
FILE, SYSLOG_UNIX = "file", "syslog+unix"
LOCAL = frozenset({FILE, SYSLOG_UNIX})
PORTS = {"syslog+udp": 514, "syslog+tcp": 601, "fluent": 24224}
WEB = frozenset({"loki+http", "loki+https", "otlp+http", "otlp+https"})
FORMS = (
    "file:///PATH, syslog+udp://HOST:514, syslog+tcp://HOST:601, syslog+unix:///dev/log, fluent://HOST:24224, "
    "loki+https://HOST:3100 or otlp+https://HOST:4318"
)


class LogSinkSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Where lines go, which, and how many."""

    url: Annotated[str, Bounds(max_length=URL_MOST)]
    """`file:///PATH` on the node, `syslog+udp://`, `syslog+tcp://HOST:PORT`, `syslog+unix:///dev/log`,
    `fluent://HOST:24224`, `loki+https://HOST:3100`, `otlp+https://HOST:4318`; plain http only to the node itself."""
    sources: tuple[Source, ...] = ("instances", "agent")
    """What instances print, and what agents say about their own work."""
    audit: Annotated[bool, needs("audit-chain")] = False
    """The server that leads sends audit records, too; a `file:` is one of the server, below its `audit_files`."""
    namespaces: Patterns = EVERYTHING
    """Of instances: those of these namespaces, with `*` and `?`."""
    workloads: Patterns = EVERYTHING
    """Of instances: those of workloads with such names."""
    workload_labels: dict[str, str] = {}
    """Of instances: those of workloads that have all these labels."""
    rate: Annotated[int, Bounds(ge=1, le=1_000_000)] = 1000
    """So many lines a second of one instance are taken, twice as many at once; more are left out, and counted."""
    buffer: Size = Size(64 * MIB)
    """So much is kept on the disk of each node while the receiver does not take it; then the oldest is dropped."""
    batch: Annotated[int, Bounds(ge=1, le=10_000)] = 500
    """So many lines are sent together at most."""
    timeout: Seconds = Seconds(10)
    """How long the receiver may take to answer."""
    user: str = ""
    """For Loki and OTLP: whom the receiver knows us as, with `password`."""
    password: str | None = None
    """`NAME` or `NAME/KEY` of a secret, or `file:NAME` in the folder that the agent's setting `secret_files` names. A
    secret named here is given to every node."""
    token: str | None = None
    """For Loki and OTLP, instead of a user: sent as `Authorization: Bearer`; named as a password is."""
    secret_namespace: str = "default"  # noqa: S105 - where it lives, not what it is
    """Where the secrets live."""
    tenant: Annotated[str, Bounds(max_length=256)] = ""
    """For Loki: sent as `X-Scope-OrgID`."""
    ca: str = ""
    """A file in the agent's folder `secret_files` with certificates to trust; absent: those of the machine."""
    rotate: Size = Size(64 * MIB)
    """Of a file: so large it gets, then it is `PATH.1` and another one begins."""
    keep: Annotated[int, Bounds(ge=0, le=100)] = 5
    """Of a file: so many older ones stay."""
    active: bool = True
    """False: nothing is read and nothing sent; what was kept stays."""

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0]

    @property
    def secrets(self) -> list[str]:
        """Those that its receiver knows us by, without files."""
        given = [each for each in (self.password, self.token) if each is not None]
        return [secret_of(each) for each in given if not each.startswith(SECRET_FILE)] if self.active else []

    def wants(self, namespace: str, workload: str, labels: dict[str, str]) -> bool:
        """Whether it gets what such an instance prints."""
        return (
            self.active
            and "instances" in self.sources
            and any(fnmatchcase(namespace, each) for each in self.namespaces)
            and any(fnmatchcase(workload, each) for each in self.workloads)
            and self.workload_labels.items() <= labels.items()
        )

    def __post_init__(self) -> None:
        self._check_url()
        if not (self.sources or self.audit) or len(set(self.sources)) != len(self.sources):
            raise Misfit("each source once, and at least one", "sources", hint="instances, agent; or `audit: true`")
        for patterns, path in ((self.namespaces, "namespaces"), (self.workloads, "workloads")):
            if not 1 <= len(patterns) <= PATTERNS_MOST:
                raise Misfit(f"{len(patterns)} patterns; 1 to {PATTERNS_MOST} are allowed", path)
        check_labels(self.workload_labels)
        if not BUFFER_LEAST <= self.buffer <= BUFFER_MOST:
            raise Misfit(f"{self.buffer} is no buffer", "buffer", hint="1Mi to 64Gi")
        if not 64 * 1024 <= self.rotate <= BUFFER_MOST:
            raise Misfit(f"{self.rotate} is no size of a file", "rotate", hint="64Ki to 64Gi")
        if not 0.1 <= self.timeout <= 120:
            raise Misfit(f"{self.timeout} is no time for an answer", "timeout", hint="100ms to 2m")
        check_ca(self.ca)
        self._check_identity()

    def _check_url(self) -> None:
        try:
            split = urlsplit(self.url)
            host = split.hostname
            split.port  # noqa: B018 - it raises for what is no port
        except ValueError as error:
            raise Misfit(f"{self.url[:100]!r} is no address: {error}", "url", hint=FORMS) from None
        if split.scheme not in LOCAL | PORTS.keys() | WEB:
            raise Misfit(f"{self.url[:100]!r} is no address of a log sink", "url", hint=FORMS)
        if split.scheme in LOCAL:
            if host or not split.path.startswith("/") or ".." in split.path.split("/") or split.path.endswith("/"):
                raise Misfit(f"{self.url[:100]!r} names no path of the node", "url", hint=f"{split.scheme}:///PATH")
            return
        if not host or split.username is not None or split.query or split.fragment:
            raise Misfit(f"{self.url[:100]!r} is no host with a port", "url", hint=FORMS)
        if split.scheme in PORTS and split.path.strip("/"):
            raise Misfit("such an address has no path", "url", hint=FORMS)
        if split.scheme.endswith("+http") and host not in HERE:
            raise Misfit("logs go over https, except to the node itself", "url", hint=f"{split.scheme}s://…")

    def _check_identity(self) -> None:
        given = [self.user, self.password, self.token]
        if any(given) and self.scheme not in WEB:
            raise Misfit("only Loki and OTLP are told who sends", "user" if self.user else "password")
        if bool(self.user) != (self.password is not None):
            raise Misfit("a user has a password, and the other way round", "user")
        if self.token is not None and self.user:
            raise Misfit("a token, or a user with a password", "token")
        if self.tenant and not self.scheme.startswith("loki"):
            raise Misfit("only Loki has tenants", "tenant")
        for value, path in ((self.password, "password"), (self.token, "token")):
            if value is not None:
                check_secret(value, path)
        check_name(self.secret_namespace, "namespace")


class SinkHealth(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """How one sink does on one node, as the node's agent says: at once when it turns, and about once a minute."""

    state: Literal["Serving", "Failing"]
    since: float = 0.0
    message: str = ""
    """What is wrong just now."""
    shipped: int = 0
    """Lines that the receiver has taken since the agent began."""
    dropped: int = 0
    """Lines that it will never get: over the rate, over the buffer, or refused."""
    waiting: int = 0
    """Lines in the buffer."""


class LogSinkStatus(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    audits: Annotated[int, needs("audit-chain")] = 0
    """How many records of the audit chain it got, counted from the first one ever."""


class LogSink(Object, frozen=True, tag="log-sink"):
    """Of the whole cluster, and an admin's: every node sends to the address it names."""

    kind: ClassVar[str] = "log-sink"
    plural: ClassVar[str] = "log-sinks"
    namespaced: ClassVar[bool] = False
    spec: LogSinkSpec
    status: LogSinkStatus = field(default_factory=LogSinkStatus)
