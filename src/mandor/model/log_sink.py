"""LogSink: destinations for the logs of instances and agents, and their health on each node."""

from fnmatch import fnmatchcase
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.lib.quantity import Seconds, Size
from mandor.model.features import needs
from mandor.model.meta import InvalidField, Object, check_labels, check_name
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
    """Destination of log lines, their selection and their rate."""

    url: Annotated[str, Bounds(max_length=URL_MOST)]
    """URL of the destination: `file:///PATH` on the node, `syslog+udp://HOST:PORT`, `syslog+tcp://HOST:PORT`,
    `syslog+unix:///dev/log`, `fluent://HOST:24224`, `loki+https://HOST:3100` or `otlp+https://HOST:4318`.
    Unencrypted HTTP is allowed only to the node itself.
    """
    sources: tuple[Source, ...] = ("instances", "agent")
    """Logs to send: `instances` for the output of instances, `agent` for the agents' own logs. Defaults to both."""
    audit: Annotated[bool, needs("audit-chain")] = False
    """Whether the leading server also sends audit records. A `file:` URL then refers to a file of the server, below its
    setting `audit_files`.
    """
    namespaces: Patterns = EVERYTHING
    """Namespaces whose instances are included, with `*` and `?` as wildcards. Defaults to all."""
    workloads: Patterns = EVERYTHING
    """Workloads whose instances are included, with `*` and `?` as wildcards. Defaults to all."""
    workload_labels: dict[str, str] = {}
    """Labels that the workloads of included instances must all have."""
    rate: Annotated[int, Bounds(ge=1, le=1_000_000)] = 1000
    """Maximum number of lines per second from one instance, with bursts of twice as many. Lines above it are dropped
    and counted. Defaults to 1000.
    """
    buffer: Size = Size(64 * MIB)
    """Disk space on each node for lines that the destination has not accepted yet, 1Mi to 64Gi; the oldest lines are
    dropped first. Defaults to 64Mi.
    """
    batch: Annotated[int, Bounds(ge=1, le=10_000)] = 500
    """Maximum number of lines per request. Defaults to 500."""
    timeout: Seconds = Seconds(10)
    """Time to wait for a response, 100ms to 2m. Defaults to 10s."""
    user: str = ""
    """User name for Loki and OTLP; requires `password`."""
    password: str | None = None
    """Password for Loki and OTLP: `NAME` or `NAME/KEY` of a secret, or `file:NAME` in the agent's `secret_files`
    directory. A secret named here is sent to every node.
    """
    token: str | None = None
    """Bearer token for Loki and OTLP, instead of `user` and `password`; written in the same form as `password`."""
    secret_namespace: str = "default"  # noqa: S105 - the namespace, not a secret
    """Namespace of the secrets. Defaults to `default`."""
    tenant: Annotated[str, Bounds(max_length=256)] = ""
    """Tenant for Loki, sent as `X-Scope-OrgID`."""
    ca: str = ""
    """File with CA certificates in the agent's `secret_files` directory. Defaults to the system's CA certificates."""
    rotate: Size = Size(64 * MIB)
    """For `file:` destinations: size at which the file is renamed to `PATH.1` and a new one is started, 64Ki to 64Gi.
    Defaults to 64Mi.
    """
    keep: Annotated[int, Bounds(ge=0, le=100)] = 5
    """For `file:` destinations: number of rotated files to keep. Defaults to 5."""
    active: bool = True
    """Whether lines are read and sent. If false, lines in the buffer stay there. Defaults to true."""

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0]

    @property
    def secrets(self) -> list[str]:
        """Names of the secrets used for authentication, without files; empty while the sink is inactive."""
        given = [each for each in (self.password, self.token) if each is not None]
        return [secret_of(each) for each in given if not each.startswith(SECRET_FILE)] if self.active else []

    def wants(self, namespace: str, workload: str, labels: dict[str, str]) -> bool:
        """Return whether the sink includes the output of such an instance."""
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
            raise InvalidField(
                "`sources` must list at least one source, each once",
                "sources",
                hint="instances, agent; or `audit: true`",
            )
        for patterns, path in ((self.namespaces, "namespaces"), (self.workloads, "workloads")):
            if not 1 <= len(patterns) <= PATTERNS_MOST:
                raise InvalidField(f"{len(patterns)} patterns; 1 to {PATTERNS_MOST} are allowed", path)
        check_labels(self.workload_labels)
        if not BUFFER_LEAST <= self.buffer <= BUFFER_MOST:
            raise InvalidField(f"the buffer size {self.buffer} is out of range", "buffer", hint="1Mi to 64Gi")
        if not 64 * 1024 <= self.rotate <= BUFFER_MOST:
            raise InvalidField(f"the file size {self.rotate} is out of range", "rotate", hint="64Ki to 64Gi")
        if not 0.1 <= self.timeout <= 120:
            raise InvalidField(f"the timeout {self.timeout} is out of range", "timeout", hint="100ms to 2m")
        check_ca(self.ca)
        self._check_identity()

    def _check_url(self) -> None:
        try:
            split = urlsplit(self.url)
            host = split.hostname
            split.port  # noqa: B018 - raises ValueError for an invalid port
        except ValueError as error:
            raise InvalidField(f"{self.url[:100]!r} is not a valid URL: {error}", "url", hint=FORMS) from None
        if split.scheme not in LOCAL | PORTS.keys() | WEB:
            raise InvalidField(f"{self.url[:100]!r} is not the URL of a log sink", "url", hint=FORMS)
        if split.scheme in LOCAL:
            if host or not split.path.startswith("/") or ".." in split.path.split("/") or split.path.endswith("/"):
                raise InvalidField(f"{self.url[:100]!r} is not an absolute path", "url", hint=f"{split.scheme}:///PATH")
            return
        if not host or split.username is not None or split.query or split.fragment:
            raise InvalidField(f"{self.url[:100]!r} must be a host with an optional port", "url", hint=FORMS)
        if split.scheme in PORTS and split.path.strip("/"):
            raise InvalidField(f"a {split.scheme} URL must not have a path", "url", hint=FORMS)
        if split.scheme.endswith("+http") and host not in HERE:
            raise InvalidField(
                "logs must be sent over https, except to the node itself", "url", hint=f"{split.scheme}s://…"
            )

    def _check_identity(self) -> None:
        given = [self.user, self.password, self.token]
        if any(given) and self.scheme not in WEB:
            raise InvalidField("only Loki and OTLP support authentication", "user" if self.user else "password")
        if bool(self.user) != (self.password is not None):
            raise InvalidField("`user` and `password` must be set together", "user")
        if self.token is not None and self.user:
            raise InvalidField("`token` and `user` exclude each other", "token")
        if self.tenant and not self.scheme.startswith("loki"):
            raise InvalidField("only Loki supports `tenant`", "tenant")
        for value, path in ((self.password, "password"), (self.token, "token")):
            if value is not None:
                check_secret(value, path)
        check_name(self.secret_namespace, "namespace")


class SinkHealth(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Health of one sink on one node, reported by the agent at once on a change and otherwise about once a minute."""

    state: Literal["Serving", "Failing"]
    since: float = 0.0
    message: str = ""
    """The current problem."""
    shipped: int = 0
    """Lines that the destination accepted since the agent started."""
    dropped: int = 0
    """Lines lost because of the rate limit, a full buffer or a rejection."""
    waiting: int = 0
    """Lines in the buffer."""


class LogSinkStatus(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    audits: Annotated[int, needs("audit-chain")] = 0
    """Number of audit records sent, counted from the first record of the chain."""


class LogSink(Object, frozen=True, tag="log-sink"):
    """A cluster-wide log destination; every node sends logs to it. Managed by admins."""

    kind: ClassVar[str] = "log-sink"
    plural: ClassVar[str] = "log-sinks"
    namespaced: ClassVar[bool] = False
    spec: LogSinkSpec
    status: LogSinkStatus = field(default_factory=LogSinkStatus)
