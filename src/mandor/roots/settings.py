"""Settings of the programs: a file, then the environment, then flags; unknown keys are errors."""

import re
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from mandor.errors import Invalid
from mandor.lib.egress import EVERYWHERE, Egress
from mandor.lib.loopback import is_loopback
from mandor.lib.owned_file import read_owned
from mandor.lib.quantity import Seconds, SecondsOrNever, Size
from mandor.lib.words import did_you_mean
from mandor.model.codec import from_plain
from mandor.model.meta import check_name
from mandor.model.node import USUAL_PORTS, PortRange
from mandor.model.role import check_issuer_url

S = TypeVar("S", bound="Settings")

ROLES = ("api", "scheduler", "controllers", "tasks")


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    data: str = ".mandor"
    """The directory for everything this program keeps."""
    log_style: Literal["console", "json"] = "console"
    """`console` for people, `json` for machines."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level of records that are logged."""
    otlp_traces: str = ""
    """`http://HOST:4318`: the OTLP receiver that spans of this program's own work are sent to; empty: what
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT says, and without them none are recorded."""
    trace_share: str = ""
    """`10%`: so many of the traces that begin here are recorded; empty: what OTEL_TRACES_SAMPLER says, or all."""

    @property
    def trace_fraction(self) -> float | None:
        """None: it is not said."""
        if not self.trace_share:
            return None
        try:
            found = float(self.trace_share.strip().removesuffix("%")) / 100
        except ValueError:
            found = -1.0
        if not (self.trace_share.strip().endswith("%") and 0 <= found <= 1):
            raise Invalid(f"trace_share {self.trace_share[:20]!r} is no percentage", hint="0%…100%, as 2.5%")
        return found

    @property
    def directory(self) -> Path:
        return Path(self.data).absolute()


class ServerSettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    listen: str = "127.0.0.1:8080"
    """`HOST:PORT` of the API; any address other than loopback uses TLS."""
    address: str = ""
    """The URL under which agents reach this very server; empty: made from `listen`."""
    store: str = ""
    """`sqlite:PATH`, `etcd://HOST:PORT,HOST:PORT/PREFIX`, `etcds://…`, `memory:`; empty: SQLite in `data`."""
    store_ca: str = ""
    """File (PEM) with the certificates to trust for `etcds://` stores."""
    store_cert: str = ""
    """File (PEM) with the client certificate for the store."""
    store_key: str = ""
    """File (PEM) with the key of `store_cert`."""
    store_user: str = ""
    """User name at the store."""
    store_password_file: str = ""
    """File with the password of `store_user`."""
    accept_older_store: bool = False
    """Start on a store that holds less than this server saw in it before, and go on from there."""
    tls: bool = False
    """TLS with a certificate of the cluster's authority on loopback, too; elsewhere it is always so."""
    tls_name: tuple[str, ...] = ()
    """Further host names under which clients reach this server, for its certificate."""
    tls_cert: str = ""
    """A certificate (PEM) from elsewhere for this server; empty: the cluster's authority issues it."""
    tls_key: str = ""
    """File (PEM) with the key of `tls_cert`."""
    ca_cert: str = ""
    """The certificate (PEM) of an authority of yours, which issues instead of the cluster's own; the same for all
    servers."""
    ca_key: str = ""
    """File (PEM) with the key of `ca_cert`."""
    certificate_life: Seconds = Seconds(24 * 3600)
    """How long the certificate of a node is good; its agent renews it after two thirds of that."""
    roles: tuple[str, ...] = ROLES
    """What this server does: api, scheduler, controllers, tasks."""
    suspect_after: Seconds = Seconds(20)
    """Silence of a node after which nothing new is placed there."""
    lost_after: Seconds = Seconds(60)
    """Silence of a node after which its instances are Lost and replaced, unless their workload says otherwise."""
    mass_share: str = "50%"
    """More than this share of a pool silent at once is a broken network rather: its nodes are given up one by one."""
    lease: Seconds = Seconds(10)
    """How long the leading server may be silent before another takes over."""
    secrets_key: str = ""
    """The file with the key that seals secrets in the store, the same for all servers of a cluster; empty: it is
    `secrets.key` in `data`, made at the first start. Without it nobody reads them any more, whatever backups exist."""
    audit_keep: Seconds = Seconds(90 * 86_400)
    """How long audit records are kept."""
    audit_most: Size = Size(128 << 20)
    """How many bytes of audit records are kept: the oldest go first, and a record says so."""
    audit_files: str = ""
    """The folder below which log sinks with `audit: true` may write files on this server; empty: nowhere."""
    secrets_key_command: str = ""
    """A program whose output is the key, instead of a file: `vault-client read mandor/key`. It is run once at start,
    without a shell, for 30 s at most."""
    image_most: Size = Size(32 << 30)
    """How large an image may be that `mandor image load` sends through this server to a node."""
    requests_each: int = 5_000
    """So many requests of one identity are taken a second; what is sent at once is shared fairly besides."""
    streams_most: int = 20_000
    """So many watches, logs and other answers that go on are open at once."""
    streams_each: int = 2_000
    """Of one identity."""
    connections_most: int = 50_000
    """At most so many connections are open at once, and never more than this process may have files open. Half of them
    are reserved for callers that have shown a valid token, and for the addresses that these come from."""
    connections_each: int = 500
    """At most so many connections from one address (of IPv6: from one /64 network) that have shown no valid token; a
    new one closes the oldest. Eight times as many from an address that has shown one. Raise it when all callers come
    through one proxy."""
    head_timeout: Seconds = Seconds(10)
    """A request whose headers are not complete after so long is answered with 408, and a TLS handshake is ended."""
    body_timeout: Seconds = Seconds(60)
    """A request whose body is not complete after so long is answered with 408."""
    idle_timeout: Seconds = Seconds(30)
    """A connection without a request for so long is closed; agents send a heartbeat every ten seconds."""
    credential_age: SecondsOrNever = SecondsOrNever(30 * 86_400)
    """At this age at the latest an agent renews its node's credential by itself; `never`: only when it is told to, or
    before it ends."""
    pools: tuple[str, ...] = ()
    """The pools whose nodes this server's scheduler places work on; empty: all. No pool belongs to two schedulers."""
    restore_after: SecondsOrNever = SecondsOrNever(60)
    """A `should` rule that was given up can be kept for so long: then its instance moves; `never`: none does."""
    prometheus: tuple[str, ...] = ()
    """The Prometheus servers that counts may follow, as `http://HOST:9090`: the first is asked where a manifest names
    none, and no other is asked; empty: none is."""
    egress_allow: tuple[str, ...] = (EVERYWHERE,)
    """Which hosts are called for what objects of the API say (webhooks, event buses, machines on demand): `*` (all but
    loopback and link-local addresses), `HOST`, `HOST:PORT`, `*.DOMAIN`, `10.0.0.0/8`, `unix:/PATH`; no others are."""
    secret_files: str = ""
    """The folder with the files that objects of the API may name, by name: `file:NAME`; empty: they may name none."""
    machine_servers: tuple[str, ...] = ()
    """The URLs under which machines that a pool orders reach the API; empty: this server's address."""
    machine_ca: str = ""
    """A file with the certificates that such machines trust, for https; empty: their own."""
    scheduler_config: str = ""
    """A file with scheduler profiles, in the shape of KubeSchedulerConfiguration; followed while the server runs."""
    plugin_hang: Seconds = Seconds(30)
    """A plugin that is stuck for so long, where it cannot be broken off, costs the server a restart without it."""
    record: str = ""
    """A file that what happens in the cluster is recorded in, for `mandor simulate --replay`; empty: none."""
    record_most: Size = Size(64 << 20)
    """How large the recording may get: two parts, the older as FILE.1, which is dropped first."""
    backup_dir: str = ""
    """A folder that this server saves the whole cluster in, by itself, as `mandor backup` does; empty: it does not."""
    backup_every: Seconds = Seconds(6 * 3600)
    """Time between two backups."""
    backup_keep: int = 28
    """So many of the newest are kept there."""
    plugins: str = ""
    """A folder of scheduler plugins, `.py` files; followed, too. What stands there runs inside the server."""

    identity_issuer: str = ""
    """The URL that consumers of workload identities know this cluster by (`iss`): one for all servers, where
    `/.well-known/openid-configuration` is reached; empty: this server's address."""
    oidc_issuer: str = ""
    """The URL of the OpenID provider that people log in with (`mandor login`); empty: there is none."""
    oidc_client_id: str = ""
    """The client id of Mandor there, a public client; ID tokens must be for it."""
    oidc_username_claim: str = "sub"
    """The claim of ID tokens that is the user's name; role bindings name users by it."""
    oidc_groups_claim: str = "groups"
    """The claim that lists the user's groups; role bindings name groups by it."""
    oidc_ca: str = ""
    """A file with the certificates to trust for the provider; empty: those of this machine."""
    oidc_scopes: tuple[str, ...] = ("openid", "profile", "email", "offline_access")
    """What `mandor login` asks for; `offline_access` gets the refresh token with which logins are renewed."""

    inventory: str = ""
    """Where machines for virtual machines are listed: the URL of a node API, or a file; empty: the cluster's own
    nodes."""
    inventory_every: Seconds = Seconds(30)
    """How often it is asked."""
    pipelines: str = ""
    """A file that says, for each cluster, which pipeline makes spare machines for it; empty: there are none."""
    task_queue: str = ""
    """Through what tasks reach those who work on them: `amqp://USER:PASSWORD@HOST/VHOST` or `amqps://…` for RabbitMQ,
    with the extra `mandor[rabbitmq]`; empty: within the process that leads."""
    task_attempts: int = 4
    """So often a machine is looked for, for a virtual machine, before its task has failed."""
    task_pause: Seconds = Seconds(1)
    """How long it waits before the second time; the pauses double, and are spread."""

    def __post_init__(self) -> None:
        split_address(self.listen)
        _check_outward(self)
        if bool(self.oidc_issuer) != bool(self.oidc_client_id):
            raise ValueError("`oidc_issuer` and `oidc_client_id` are given together")
        if self.oidc_issuer:
            check_issuer_url(self.oidc_issuer)
        if self.secrets_key and self.secrets_key_command:
            raise ValueError("give `secrets_key` or `secrets_key_command`, not both")
        if self.task_queue and not self.task_queue.startswith(("amqp://", "amqps://")):
            raise ValueError("`task_queue` is an address as amqp://USER:PASSWORD@HOST/VHOST")
        if self.inventory_every < 1:
            raise ValueError("`inventory_every` is at least 1s")
        if not 1 <= self.task_attempts <= 100:
            raise ValueError(f"task_attempts is {self.task_attempts}; it is 1..100")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("`tls_cert` and `tls_key` come together")
        if bool(self.ca_cert) != bool(self.ca_key):
            raise ValueError("`ca_cert` and `ca_key` come together")
        if self.certificate_life < 10:
            raise ValueError("`certificate_life` is at least 10s")
        if self.lost_after < self.suspect_after:
            raise ValueError(f"lost_after {self.lost_after} is shorter than suspect_after {self.suspect_after}")
        percent = self.mass_share.removesuffix("%")
        if percent == self.mass_share or not percent.isdecimal() or not 1 <= int(percent) <= 100:
            raise ValueError(f"mass_share {self.mass_share[:20]!r} is no percentage: 1%…100%")
        if self.backup_every < 60:
            raise ValueError("`backup_every` is at least 1m")
        if not 1 <= self.backup_keep <= 10_000:
            raise ValueError(f"backup_keep is {self.backup_keep}; it is 1..10000")
        for name in ("requests_each", "streams_most", "streams_each", "connections_most", "connections_each"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` is at least 1")
        for name in ("head_timeout", "body_timeout", "idle_timeout"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` is at least 1s")
        if self.plugin_hang < 1:
            raise ValueError("`plugin_hang` is at least 1s")
        if self.credential_age < 3600:
            raise ValueError("`credential_age` is at least 1h")
        if self.lease < 1:
            raise ValueError("`lease` is at least 1s")
        for role in self.roles:
            if role not in ROLES:
                raise ValueError(f"there is no role {role!r}; {did_you_mean(role, ROLES)}")
        for pool in self.pools:
            check_name(pool, "pool")
        for url in self.prometheus:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"`prometheus` holds addresses as http://HOST:9090, not {url[:60]!r}")
        if not self.roles:
            raise ValueError("`roles` names at least one of api, scheduler, controllers, tasks")

    @property
    def secure(self) -> bool:
        """Whether this server talks TLS."""
        return bool(self.tls_cert) or self.tls or not is_loopback(split_address(self.listen)[0])

    @property
    def secrets_key_file(self) -> Path:
        return Path(self.secrets_key) if self.secrets_key else self.directory / "secrets.key"

    @property
    def marker_file(self) -> Path:
        """Where the store's cluster, epoch and highest revision are remembered."""
        return self.directory / "cluster.marker"

    @property
    def durable(self) -> bool:
        """Return whether the store survives its server."""
        return not self.store_url.startswith("memory:")

    @property
    def mass_fraction(self) -> float:
        return int(self.mass_share.removesuffix("%")) / 100

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:{self.directory / 'state.db'}"


class AgentRootSettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    server: tuple[str, ...] = ("http://127.0.0.1:8080",)
    """The API servers' URLs; the agent moves on to the next when one does not answer."""
    server_ca: str = ""
    """File (PEM) with the certificates to trust for the servers; empty: the authority named by the join token."""
    name: str = ""
    """The node's name; empty: the host's name."""
    join_token: str = ""
    """Join token of the cluster, needed at the first start."""
    join_token_file: str = ""
    """File with the join token."""
    engine: tuple[str, ...] = ()
    """The engines to offer; empty: every one that is found but `process`, which runs tasks on the node itself and is
    offered only by name; `all`: every one that is found, `process` too."""
    engine_option: tuple[str, ...] = ()
    """`docker.socket=/run/docker.sock`, `incus.url=https://…`: how an engine is reached, where it is not found."""
    label: tuple[str, ...] = ()
    """`key=value`, given to the node when it first joins."""
    pool: str = ""
    """The node's pool when it first joins; empty: the join token's, or `default`."""
    address: str = ""
    """The address others reach this machine at; empty: found by itself."""
    capacity: tuple[str, ...] = ()
    """`cpu=2`, `memory=4Gi`, `disk=10Gi`: the node is that part of its machine; empty: all of it."""
    device: tuple[str, ...] = ()
    """`gpu=4` or `nvidia/gpu=4`: devices of this machine that tasks may ask for."""
    allow_host_path: tuple[str, ...] = ()
    """Folders of this machine that tasks may mount, with all below them; empty: none."""
    egress_allow: tuple[str, ...] = (EVERYWHERE,)
    """Which hosts are called for what objects of the API say (log sinks): `*` (all but loopback and
    link-local addresses), `HOST`, `HOST:PORT`, `*.DOMAIN`, `10.0.0.0/8`, `unix:/PATH`; nothing else is called."""
    secret_files: str = ""
    """The folder with the files that objects of the API may name, by name: `file:NAME`; empty: they may name none."""
    names: bool = True
    """Instances find others of their namespace by name (hosts files, MANDOR_ADDR_…); without it, less is watched."""
    port_range: str = str(USUAL_PORTS)
    """`FIRST-LAST`: the node's ports from which one is chosen for a task that asks for any."""
    pressure: tuple[str, ...] = ()
    """`memory=6%:3%:60s`: with less than 6 % left the node is under pressure, and ends instances after a minute; with
    less than 3 %, at once. Also of `disk` and `inodes`; `memory=off` looks away."""
    heartbeat: Seconds = Seconds(10)
    """Time between heartbeats."""
    metrics: str = ""
    """`HOST:PORT` where Prometheus reads what the agent counts and its instances use, for everybody who gets there;
    empty: nowhere."""
    otlp: str = ""
    """`http://HOST:4318`: the OTLP receiver that tasks are told of (OTEL_EXPORTER_OTLP_ENDPOINT), with who they are;
    `${MANDOR_NODE_ADDRESS}` in it is filled in. Empty: they are told nothing."""

    def __post_init__(self) -> None:
        PortRange.parse(self.port_range)
        _check_outward(self)
        if self.otlp and not self.otlp.startswith(("http://", "https://")):
            raise ValueError(f"otlp is {self.otlp!r}; it is an address as http://HOST:4318")


def load(
    cls: type[S],
    section: str,
    *,
    file: str | None = None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
) -> S:
    """Put the settings together; an `Invalid` says which source is wrong and how."""
    known = {field.name: field for field in msgspec.structs.fields(cls)}
    found: dict[str, Any] = {}
    if file is not None:
        found |= _from_file(file, section, known)
    for name, field in known.items():
        text = environ.get(f"MANDOR_{name.upper()}")
        if text is not None:
            found[name] = _from_text(name, text, field.type)
    found |= {name: value for name, value in flags.items() if value not in (None, (), [])}
    try:
        return from_plain(found, cls)
    except msgspec.ValidationError as error:
        raise Invalid(f"settings of the {section}: {error}", hint="`--help` explains each setting") from error


def _from_text(name: str, text: str, wanted: Any) -> Any:
    """What a variable of the environment says, which knows only text."""
    if str(wanted).startswith("tuple"):
        return [word.strip() for word in text.split(",") if word.strip()]
    if wanted not in (int, bool):
        return text
    try:
        return msgspec.convert(text.strip(), wanted, strict=False)
    except msgspec.ValidationError as error:
        what = "a whole number" if wanted is int else "true or false"
        raise Invalid(f"MANDOR_{name.upper()} is {text[:40]!r}", hint=f"it is {what}") from error


def _from_file(file: str, section: str, known: Mapping[str, Any]) -> dict[str, Any]:
    try:
        content = tomllib.loads(read_owned(Path(file)).decode())
    except OSError as error:
        raise Invalid(f"cannot read the settings file {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Invalid(f"{file} is not TOML: {error}") from error
    for name in content:
        if name not in {"server", "agent"}:
            raise Invalid(f"{file}: unknown section [{name}]", hint=did_you_mean(name, {"server", "agent"}))
    part = content.get(section, {})
    for name in part:
        if name not in known:
            raise Invalid(f"{file}: unknown setting {name!r} in [{section}]", hint=did_you_mean(name, known))
    return dict(part)


def _check_outward(settings: "ServerSettings | AgentRootSettings") -> None:
    Egress(settings.egress_allow)
    if settings.secret_files and not settings.secret_files.startswith("/"):
        raise ValueError(f"secret_files is {settings.secret_files[:80]!r}; it is the path of a folder, from the root")


def split_address(text: str) -> tuple[str, int]:
    """`127.0.0.1:8080` or `[::1]:8080` as host and port."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address; write HOST:PORT")
    return host.strip("[]"), int(port)


def default_name() -> str:
    """The host's name as a node name."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-") or "node"
