"""Route: sends requests from outside of the cluster, by host and path or by port, to services."""

import re
from typing import Annotated, ClassVar, Literal

from msgspec import Meta as Bounds
from msgspec import Struct, field

from mandor.lib.backtracking import check_cheap
from mandor.lib.quantity import Seconds, Size
from mandor.model.features import needs
from mandor.model.meta import InvalidField, Object, check_name
from mandor.model.task import PortNumber

HOST = re.compile(r"(?:\*\.)?[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?(?:\.[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?)*")
HOST_MOST = 253
"""Characters of a host name."""
TARGETS_MOST = 16
"""Services of one route."""
HEADERS_MOST = 16
"""Header conditions of one route."""
METHODS_MOST = 16
REDIRECT_CODES = frozenset({301, 302, 303, 307, 308})
CHALLENGES_MOST = 16
"""ACME challenges of one route."""
_PATH = re.compile(r"/[A-Za-z0-9/._~!$&'()*+,;=:@%-]{0,1023}")
_HEADER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_HEADER_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,254}[\x21-\x7e])?")
_METHOD = re.compile(r"[A-Z][A-Z-]{0,19}")

TLS_AUTO, TLS_OFF = "auto", "off"
TLS_CERTIFICATE, TLS_KEY = "tls.crt", "tls.key"
"""Keys of the secret with a certificate."""
PathMatch = Literal["prefix", "exact", "regex"]
Text = Annotated[str, Bounds(max_length=1024)]


class RouteTarget(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """A service that receives requests of a route."""

    service: str
    """Service of the same namespace."""
    port: str | PortNumber | None = None
    """Port of the service, by name or number. Defaults to its only TCP port, or to the one named `http`."""
    weight: Annotated[int, Bounds(ge=0, le=1000)] = 100
    """Share of the requests relative to the other services of the route. Defaults to 100."""

    def __post_init__(self) -> None:
        check_name(self.service, "service name")


class RouteRedirect(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Answer with a redirect instead of sending the request to a service."""

    scheme: Literal["http", "https"] | None = None
    """Defaults to that of the request."""
    host: str = ""
    """Defaults to that of the request."""
    path: Text = ""
    """Replaces the matched prefix, or the whole path if the route matches it exactly or by a regular expression.
    Defaults to the path of the request.
    """
    code: int = 302
    """Status of the answer: 301, 302, 303, 307 or 308. Defaults to 302."""

    def __post_init__(self) -> None:
        if self.code not in REDIRECT_CODES:
            raise InvalidField(f"{self.code} is not the status of a redirect", "code", hint="301, 302, 303, 307 or 308")
        if not (self.scheme or self.host or self.path):
            raise ValueError("a redirect needs `scheme`, `host` or `path`")
        if self.host:
            check_host(self.host, wildcard=False)
        if self.path:
            _check_path(self.path)


class RouteRewrite(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Changes of the request before a service receives it."""

    path: Text = ""
    """Replaces the matched prefix, or the whole path if the route matches it exactly or by a regular expression."""
    host: str = ""
    """Value of the `Host` header."""

    def __post_init__(self) -> None:
        if self.host:
            check_host(self.host, wildcard=False)
        if self.path:
            _check_path(self.path)


class RouteTimeouts(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Longest waits of a route."""

    connect: Seconds = Seconds(5)
    """Time to connect to an instance. Defaults to 5s."""
    response: Seconds = Seconds(60)
    """Time in which an instance must send the next part of its answer. Defaults to 1m."""
    idle: Seconds = Seconds(3600)
    """Time without data after which a WebSocket or TCP connection is closed. Defaults to 1h."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if not 0.1 <= getattr(self, name) <= 86400:
                raise InvalidField(f"the time {getattr(self, name)} is out of range", name, hint="100ms to 24h")


class RateLimit(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Largest number of requests; further ones are answered with 429."""

    requests: Annotated[int, Bounds(ge=1, le=1_000_000)]
    """Number of requests within `per`, for each gateway."""
    per: Seconds = Seconds(1)
    """Length of the period. Defaults to 1s."""
    by: Literal["client", "route"] = "client"
    """`client`: each client address is counted on its own. `route`: all clients together. Defaults to `client`."""

    def __post_init__(self) -> None:
        if not 1 <= self.per <= 3600:
            raise InvalidField(f"the time {self.per} is out of range", "per", hint="1s to 1h")


class Expose(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Makes a service of a workload reachable from outside of the cluster, by a route of the same name."""

    host: str
    """Host name of the requests; `*.example.com` matches one label in place of the asterisk."""
    path: Text = "/"
    """Prefix of the path. Defaults to `/`."""
    port: str | PortNumber | None = None
    """Port of the service, by name or number. Defaults to its only TCP port, or to the one named `http`."""
    tls: str = TLS_AUTO
    """`auto`: a certificate by ACME, if the cluster has an ACME account. A name: the secret with `tls.crt` and
    `tls.key`. `off`: no HTTPS. Defaults to `auto`.
    """

    def __post_init__(self) -> None:
        check_host(self.host)
        _check_path(self.path)
        _check_tls(self.tls)


class RouteSpec(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """Conditions on requests, and the services that receive the requests which fulfil all of them."""

    protocol: Literal["http", "tcp", "udp"] = "http"
    """`http`: requests, WebSockets and gRPC. `tcp`: all connections to `port`. Defaults to `http`."""
    port: PortNumber | None = None
    """Port of the gateway, for `protocol: tcp` only."""
    host: str = ""
    """Host name of the requests; `*.example.com` matches one label in place of the asterisk. Defaults to all hosts that
    no other route names.
    """
    path: Text = "/"
    """Path of the requests. Defaults to `/`."""
    path_match: PathMatch = "prefix"
    """`prefix`: `/api` matches `/api` and `/api/x`, not `/apis`. `exact`: the whole path. `regex`: `path` is a regular
    expression for the whole path. Defaults to `prefix`.
    """
    headers: dict[str, str] = {}
    """Headers that a request must have, with their values, at most 16. An empty value stands for any value."""
    methods: tuple[str, ...] = ()
    """Methods of the requests, such as `GET`. Defaults to all."""
    to: tuple[RouteTarget, ...] = ()
    """Services that receive the requests, at most 16."""
    redirect: RouteRedirect | None = None
    """Redirect instead of `to`."""
    rewrite: RouteRewrite | None = None
    """Changes of the request before a service receives it."""
    upstream: Literal["http", "h2"] = "http"
    """Protocol of the instances: `http` (HTTP/1.1), or `h2` (HTTP/2 without TLS), which gRPC needs. Defaults to `http`.
    """
    timeouts: RouteTimeouts = RouteTimeouts()
    """Longest waits."""
    retries: Annotated[int, Bounds(ge=0, le=10)] = 0
    """Further attempts on another instance if a connection cannot be made. Defaults to 0."""
    rate: RateLimit | None = None
    """Limit of the number of requests. Defaults to none."""
    body_limit: Size | None = None
    """Largest body of a request; larger ones are answered with 413. Defaults to no limit."""
    tls: str = ""
    """`auto`: a certificate by ACME, if the cluster has an ACME account. A name: the secret with `tls.crt` and
    `tls.key`. `off`: no HTTPS. Defaults to `auto` for a route with a host, otherwise to `off`.
    """
    https_redirect: bool = True
    """Whether HTTP requests are redirected to HTTPS if the route has a certificate. Defaults to true."""

    def __post_init__(self) -> None:
        if self.protocol == "udp":
            raise InvalidField(
                "a gateway cannot route UDP",
                "protocol",
                hint="publish the port on the node instead: `ports: {NAME: {port: 53, protocol: udp, host: 53}}`",
            )
        if self.host:
            check_host(self.host)
        if self.tls:
            _check_tls(self.tls)
        if self.tls == TLS_AUTO and not self.host:
            raise InvalidField("`tls: auto` needs a `host`", "tls", hint="set `host`, or name a secret")
        if len(self.to) > TARGETS_MOST:
            raise InvalidField(f"{len(self.to)} services; at most {TARGETS_MOST} are allowed", "to")
        if self.to and not any(each.weight for each in self.to):
            raise InvalidField("all weights are 0", "to", hint="give one service a `weight` above 0")
        targets = [(each.service, each.port) for each in self.to]
        if len(set(targets)) < len(targets):
            raise InvalidField("two entries name the same service and port", "to")
        if self.protocol == "tcp":
            self._check_tcp()
        else:
            self._check_http()

    def _check_tcp(self) -> None:
        if self.port is None:
            raise InvalidField("a TCP route needs the port of the gateway", "port", hint="port: 5432")
        given = [name for name, default in _HTTP_ONLY.items() if (getattr(self, name) or default) != default]
        if given:
            raise InvalidField(f"`{given[0]}` cannot be used with `protocol: tcp`", given[0])
        if self.tls == TLS_AUTO:
            raise InvalidField("`tls: auto` cannot be used with `protocol: tcp`", "tls", hint="name a secret, or `off`")
        if not self.to:
            raise InvalidField("the route has no service", "to", hint="to: [{service: db}]")

    def _check_http(self) -> None:
        if self.port is not None:
            raise InvalidField("`port` needs `protocol: tcp`", "port", hint="the gateway has one port for HTTP")
        if bool(self.to) == (self.redirect is not None):
            raise InvalidField("set either `to` or `redirect`", "to", hint="to: [{service: shop}]")
        if self.path_match == "regex":
            _check_regex(self.path)
        else:
            _check_path(self.path)
        if len(self.headers) > HEADERS_MOST:
            raise InvalidField(f"{len(self.headers)} headers; at most {HEADERS_MOST} are allowed", "headers")
        for name, value in self.headers.items():
            if not _HEADER_NAME.fullmatch(name) or name.lower() == "host":
                hint = "use `host`" if name.lower() == "host" else None
                raise InvalidField(f"{name[:80]!r} is not the name of a header to match", "headers", hint=hint)
            if value and not _HEADER_VALUE.fullmatch(value):
                raise InvalidField("a header value has 1 to 256 printable ASCII characters", "headers", name)
        if len({name.lower() for name in self.headers}) < len(self.headers):
            raise InvalidField("two headers have the same name", "headers")
        if len(self.methods) > METHODS_MOST:
            raise InvalidField(f"{len(self.methods)} methods; at most {METHODS_MOST} are allowed", "methods")
        for method in self.methods:
            if not _METHOD.fullmatch(method):
                raise InvalidField(f"{method[:80]!r} is not a method", "methods", hint="GET, POST …")

    @property
    def certificate(self) -> str:
        """`auto`, `off`, or the name of the secret with the certificate."""
        return self.tls or (TLS_AUTO if self.host and self.protocol == "http" else TLS_OFF)


_HTTP_ONLY: dict[str, object] = {
    **{"host": "", "path": "/", "path_match": "prefix", "headers": {}, "methods": (), "redirect": None},
    **{"rewrite": None, "upstream": "http", "rate": None, "body_limit": None},
}
"""Fields without a meaning for TCP routes, with their defaults."""


class RouteCondition(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """One named fact about a route."""

    ok: bool
    reason: str
    """One word for programs: `Conflict`, `ServiceMissing` …"""
    message: str = ""
    """The fact in words, with the objects that it is about."""


class RouteCertificate(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """The certificate of a route with `tls: auto`, written by the certificate controller."""

    secret: str = ""
    """Secret of the same namespace with `tls.crt` and `tls.key`; empty: none has been issued yet."""
    not_after: float = 0.0
    """Unix time at which the certificate expires."""
    message: str = ""
    """Why there is no certificate, or no new one; empty: there is no problem."""
    failures: int = 0
    """Number of consecutive orders that failed."""
    retry_at: float = 0.0
    """Unix time before which no further order is made."""


class RouteStatus(Struct, frozen=True, gc=False, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """Written by the route controller; `challenges` and `certificate` by the certificate controller."""

    owner: str = ""
    """Workload whose `services` declare this route with `expose`; empty: a user wrote it."""
    conditions: Annotated[dict[str, RouteCondition], needs("routes")] = {}
    """`Accepted`: no older route has the same host, path and conditions. `Resolved`: all services and ports exist.
    `Certificate`: the certificate exists and fits the host.
    """
    challenges: Annotated[dict[str, str], Bounds(max_length=CHALLENGES_MOST)] = {}
    """Key authorizations by token, served at `/.well-known/acme-challenge/TOKEN`."""
    certificate: RouteCertificate | None = None
    secret_id: str = ""
    """Content id of the secret with a certificate that fits; gateways read the certificate again when it changes.
    Empty: there is none.
    """

    def __post_init__(self) -> None:
        for token, answer in self.challenges.items():
            if not _TOKEN.fullmatch(token) or not _ANSWER.fullmatch(answer):
                raise InvalidField("a token or key authorization has characters that ACME does not use", "challenges")


_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,128}")
_ANSWER = re.compile(r"[A-Za-z0-9_.-]{1,512}")


class Route(Object, frozen=True, tag="route"):
    """Sends requests from outside of the cluster, by host and path or by port, to services."""

    kind: ClassVar[str] = "route"
    plural: ClassVar[str] = "routes"

    spec: RouteSpec
    status: RouteStatus = field(default_factory=RouteStatus)

    @property
    def secret(self) -> str:
        """Name of the secret with the certificate of the route; empty: it has none."""
        name = self.spec.certificate
        if name == TLS_AUTO:
            return self.status.certificate.secret if self.status.certificate is not None else ""
        return "" if name == TLS_OFF else name


def check_host(host: str, *, wildcard: bool = True) -> None:
    """Raise `InvalidField` unless this is a host name in lower case, or one with `*.` in front."""
    if len(host) > HOST_MOST or not HOST.fullmatch(host) or (host.startswith("*") and not wildcard):
        hint = host.lower() if len(host) <= HOST_MOST and HOST.fullmatch(host.lower()) else "shop.example.com"
        raise InvalidField(f"{host[:80]!r} is not a host name", "host", hint=hint)


def _check_path(path: str) -> None:
    if not _PATH.fullmatch(path):
        raise InvalidField(
            f"{path[:80]!r} is not a path", "path", hint="a path starts with / and has characters of URLs only"
        )


def _check_regex(path: str) -> None:
    try:
        check_cheap(path)
    except ValueError as error:
        raise InvalidField(str(error), "path", hint="simplify it, or use several routes") from None


def _check_tls(name: str) -> None:
    try:
        check_name(name, "name of a secret")
    except ValueError as error:
        raise InvalidField(str(error), "tls", hint="auto, off, or the name of a secret") from None
