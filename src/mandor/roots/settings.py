"""Settings of the programs: file, then environment, then flags; unknown keys are errors."""

import re
import socket
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.errors import Invalid
from mandor.lib.egress import EVERYWHERE, Egress, host_of
from mandor.lib.loopback import is_loopback
from mandor.lib.owned_file import read_owned
from mandor.lib.quantity import Seconds, SecondsOrNever, Size
from mandor.lib.words import did_you_mean
from mandor.model.claim import Dedication
from mandor.model.codec import from_plain
from mandor.model.meta import check_name
from mandor.model.node import USUAL_PORTS, PortRange
from mandor.model.role import check_issuer_url

S = TypeVar("S", bound="Settings")

_EMAIL = re.compile(r"[!-?A-~]+@[A-Za-z0-9.-]+")
ROLES = ("api", "scheduler", "controllers", "tasks")


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    data: str = ".mandor"
    """Data directory of this program."""
    log_style: Literal["console", "json"] = "console"
    """Format of log records: `console` or `json`."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level of records that are logged."""
    otlp_traces: str = ""
    """OTLP receiver of traces, `http://HOST:4318`; empty: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or
    OTEL_EXPORTER_OTLP_ENDPOINT, and without them tracing is off."""
    trace_share: str = ""
    """Share of the traces that start here which are recorded, for example `10%`; empty: OTEL_TRACES_SAMPLER, or all."""

    @property
    def trace_fraction(self) -> float | None:
        """Return the share as a number; None: not set."""
        if not self.trace_share:
            return None
        try:
            found = float(self.trace_share.strip().removesuffix("%")) / 100
        except ValueError:
            found = -1.0
        if not (self.trace_share.strip().endswith("%") and 0 <= found <= 1):
            raise Invalid(
                f"trace_share {self.trace_share[:20]!r} is not a percentage", hint="write 0%…100%, for example 2.5%"
            )
        return found

    @property
    def directory(self) -> Path:
        return Path(self.data).absolute()


class ServerSettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    listen: str = "127.0.0.1:8080"
    """`HOST:PORT` of the API; any address other than loopback uses TLS."""
    address: str = ""
    """URL under which agents reach this server; empty: derived from `listen`."""
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
    """Start on a store with an older state than this server has seen, and continue from there."""
    tls: bool = False
    """Use TLS with a certificate of the cluster's authority on loopback, too; other addresses always use TLS."""
    tls_name: tuple[str, ...] = ()
    """Further host names of this server, for its certificate."""
    tls_cert: str = ""
    """File (PEM) with a certificate for this server; empty: the cluster's authority issues it."""
    tls_key: str = ""
    """File (PEM) with the key of `tls_cert`."""
    ca_cert: str = ""
    """File (PEM) with the certificate of your own authority, which replaces the cluster's; the same on all servers."""
    ca_key: str = ""
    """File (PEM) with the key of `ca_cert`."""
    certificate_life: Seconds = Seconds(24 * 3600)
    """Life of a node's certificate; agents renew it after two thirds of it."""
    roles: tuple[str, ...] = ROLES
    """Roles of this server: api, scheduler, controllers, tasks."""
    suspect_after: Seconds = Seconds(20)
    """Time without heartbeats after which a node gets no new instances."""
    lost_after: Seconds = Seconds(60)
    """Time without heartbeats after which the instances of a node are Lost and replaced, unless their workload sets
    another time."""
    mass_share: str = "50%"
    """If more than this share of a pool stops sending heartbeats at once, its nodes are declared lost one at a time."""
    lease: Seconds = Seconds(10)
    """Time without a renewal after which another server takes over leadership."""
    secrets_key: str = ""
    """File with the key that seals secrets, the same on all servers of a cluster; empty: `secrets.key` in `data`,
    created at the first start. Without the key, secrets cannot be read, not even from backups."""
    audit_keep: Seconds = Seconds(90 * 86_400)
    """Time for which audit records are kept."""
    audit_most: Size = Size(128 << 20)
    """Maximum size of the audit log: the oldest records are deleted first, and a record notes the deletion."""
    audit_files: str = ""
    """Folder below which log sinks with `audit: true` may write files on this server; empty: none."""
    secrets_key_command: str = ""
    """Program that prints the key, instead of a file: `vault-client read mandor/key`. It is run once at start, without
    a shell, for at most 30 s."""
    image_most: Size = Size(32 << 30)
    """Maximum size of an image that `mandor image load` sends through this server to a node."""
    requests_each: int = 5_000
    """Maximum number of requests of one identity per second."""
    streams_most: int = 20_000
    """Maximum number of open watches, log streams and other streams."""
    streams_each: int = 2_000
    """Maximum number of open streams of one identity."""
    connections_most: int = 50_000
    """Maximum number of open connections, also limited by the open files of the process. Half of them are reserved for
    callers with a valid token and for their addresses."""
    connections_each: int = 500
    """Maximum number of connections from one address (IPv6: from one /64 network) without a valid token; a further one
    closes the oldest. Addresses that have shown a valid token may open eight times as many. Raise it if all callers use
    one proxy."""
    head_timeout: Seconds = Seconds(10)
    """Time limit for the headers of a request (then 408) and for a TLS handshake."""
    body_timeout: Seconds = Seconds(60)
    """Time limit for the body of a request (then 408)."""
    idle_timeout: Seconds = Seconds(30)
    """Time after which a connection without a request is closed; agents send a heartbeat every ten seconds."""
    credential_age: SecondsOrNever = SecondsOrNever(30 * 86_400)
    """Age at which an agent renews its node's credential; `never`: only on request, or before it expires."""
    pools: tuple[str, ...] = ()
    """Pools whose nodes this server's scheduler uses; empty: all. A pool belongs to one scheduler."""
    restore_after: SecondsOrNever = SecondsOrNever(60)
    """Time for which a relaxed `should` rule must be satisfiable before its instance is moved; `never`: no moves."""
    prometheus: tuple[str, ...] = ()
    """Prometheus servers for autoscaling, `http://HOST:9090`: the first is the default, and no other server is queried;
    empty: none."""
    egress_allow: tuple[str, ...] = (EVERYWHERE,)
    """Hosts that may be called for objects of the API (webhooks, event buses, machines on demand): `*` (all but
    loopback and link-local addresses), `HOST`, `HOST:PORT`, `*.DOMAIN`, `10.0.0.0/8`, `unix:/PATH`."""
    secret_files: str = ""
    """Folder with the files that objects of the API may name (`file:NAME`); empty: none."""
    acme_directory: str = ""
    """URL of the ACME directory of the certificate authority for routes with `tls: auto`, such as
    https://acme-v02.api.letsencrypt.org/directory, the same for all servers; empty: no certificates by ACME."""
    acme_email: str = ""
    """Email address for the account at the certificate authority; empty: none."""
    acme_agree: bool = False
    """Agreement to the terms of service of the certificate authority, which most authorities require."""
    acme_ca: str = ""
    """File (PEM) with the certificates to trust for the directory; empty: those of the machine."""
    acme_eab_id: str = ""
    """Id of the external account that the certificate authority gave you; empty: none."""
    acme_eab_key_file: str = ""
    """File with the HMAC key of `acme_eab_id` in base64url."""
    machine_servers: tuple[str, ...] = ()
    """API URLs for machines that a pool orders; empty: this server's address."""
    machine_ca: str = ""
    """File (PEM) with the certificates that such machines trust; empty: their own."""
    scheduler_config: str = ""
    """File with scheduler profiles, in the format of KubeSchedulerConfiguration; reloaded when it changes."""
    plugin_hang: Seconds = Seconds(30)
    """Time after which a plugin that cannot be interrupted is disabled by a restart of the server."""
    record: str = ""
    """File for the recording of the cluster, for `mandor simulate --replay`; empty: none."""
    record_most: Size = Size(64 << 20)
    """Maximum size of the recording: two files, the older one as FILE.1, which is deleted first."""
    backup_dir: str = ""
    """Folder for automatic backups, as `mandor backup` makes them; empty: none."""
    backup_every: Seconds = Seconds(6 * 3600)
    """Time between two backups."""
    backup_keep: int = 28
    """Number of backups that are kept."""
    plugins: str = ""
    """Folder of scheduler plugins (`.py` files), reloaded when it changes. Plugins run inside the server."""

    identity_issuer: str = ""
    """URL of this cluster for consumers of workload identities (`iss`), the same for all servers, where `/.well-
    known/openid-configuration` is served; empty: this server's address."""
    oidc_issuer: str = ""
    """URL of the OpenID provider for `mandor login`; empty: none."""
    oidc_client_id: str = ""
    """Client id of Mandor at the provider (a public client); ID tokens must be issued for it."""
    oidc_username_claim: str = "sub"
    """Claim of ID tokens with the user's name, by which role bindings name users."""
    oidc_groups_claim: str = "groups"
    """Claim of ID tokens with the user's groups, by which role bindings name groups."""
    oidc_ca: str = ""
    """File (PEM) with the certificates to trust for the provider; empty: those of the machine."""
    oidc_scopes: tuple[str, ...] = ("openid", "profile", "email", "offline_access")
    """Scopes that `mandor login` requests; `offline_access` allows the renewal of logins."""

    inventory: str = ""
    """Inventory of machines for virtual machines: the URL of a node API, or a file; empty: the cluster's own nodes."""
    inventory_every: Seconds = Seconds(30)
    """Time between two reads of the inventory."""
    vm_dedicated: Dedication = "host"
    """Meaning of `dedicated` in requests for virtual machines: `host`, a machine of its own; `class`, a machine that
    the inventory marks as dedicated, which other dedicated virtual machines may share."""
    pipelines: str = ""
    """File with the pipeline of each cluster that makes spare machines; empty: none."""
    task_queue: str = ""
    """Queue for VM requests: `amqp://USER:PASSWORD@HOST/VHOST` or `amqps://…` for RabbitMQ, with the extra
    `mandor[rabbitmq]`; empty: inside the leading server."""
    task_attempts: int = 4
    """Number of attempts to find a machine for a virtual machine."""
    task_pause: Seconds = Seconds(1)
    """Pause before the second attempt; later pauses double, with jitter."""

    def __post_init__(self) -> None:
        split_address(self.listen)
        _check_outward(self)
        if bool(self.oidc_issuer) != bool(self.oidc_client_id):
            raise ValueError("`oidc_issuer` and `oidc_client_id` must be set together")
        if self.oidc_issuer:
            check_issuer_url(self.oidc_issuer)
        _check_acme(self)
        if self.secrets_key and self.secrets_key_command:
            raise ValueError("set `secrets_key` or `secrets_key_command`, not both")
        if self.task_queue and not self.task_queue.startswith(("amqp://", "amqps://")):
            raise ValueError("`task_queue` must be a URL such as amqp://USER:PASSWORD@HOST/VHOST")
        if self.inventory_every < 1:
            raise ValueError("`inventory_every` must be at least 1s")
        if not 1 <= self.task_attempts <= 100:
            raise ValueError(f"task_attempts is {self.task_attempts}; it must be 1..100")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("`tls_cert` and `tls_key` must be set together")
        if bool(self.ca_cert) != bool(self.ca_key):
            raise ValueError("`ca_cert` and `ca_key` must be set together")
        if self.certificate_life < 10:
            raise ValueError("`certificate_life` must be at least 10s")
        if self.lost_after < self.suspect_after:
            raise ValueError(f"lost_after {self.lost_after} is shorter than suspect_after {self.suspect_after}")
        percent = self.mass_share.removesuffix("%")
        if percent == self.mass_share or not percent.isdecimal() or not 1 <= int(percent) <= 100:
            raise ValueError(f"mass_share {self.mass_share[:20]!r} is not a percentage of 1%…100%")
        if self.backup_every < 60:
            raise ValueError("`backup_every` must be at least 1m")
        if not 1 <= self.backup_keep <= 10_000:
            raise ValueError(f"backup_keep is {self.backup_keep}; it must be 1..10000")
        for name in ("requests_each", "streams_most", "streams_each", "connections_most", "connections_each"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1")
        for name in ("head_timeout", "body_timeout", "idle_timeout"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1s")
        if self.plugin_hang < 1:
            raise ValueError("`plugin_hang` must be at least 1s")
        if self.credential_age < 3600:
            raise ValueError("`credential_age` must be at least 1h")
        if self.lease < 1:
            raise ValueError("`lease` must be at least 1s")
        for role in self.roles:
            if role not in ROLES:
                raise ValueError(f"there is no role {role!r}; {did_you_mean(role, ROLES)}")
        for pool in self.pools:
            check_name(pool, "pool")
        for url in self.prometheus:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"`prometheus` must be a URL such as http://HOST:9090, not {url[:60]!r}")
        if not self.roles:
            raise ValueError("`roles` must contain at least one of api, scheduler, controllers, tasks")

    @property
    def secure(self) -> bool:
        """Return whether this server uses TLS."""
        return bool(self.tls_cert) or self.tls or not is_loopback(split_address(self.listen)[0])

    @property
    def secrets_key_file(self) -> Path:
        return Path(self.secrets_key) if self.secrets_key else self.directory / "secrets.key"

    @property
    def marker_file(self) -> Path:
        """Return the file with the store's cluster, epoch and highest revision."""
        return self.directory / "cluster.marker"

    @property
    def durable(self) -> bool:
        """Whether the store survives its server."""
        return not self.store_url.startswith("memory:")

    @property
    def mass_fraction(self) -> float:
        return int(self.mass_share.removesuffix("%")) / 100

    @property
    def store_url(self) -> str:
        return self.store or f"sqlite:{self.directory / 'state.db'}"


class AgentRootSettings(Settings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    server: tuple[str, ...] = ("http://127.0.0.1:8080",)
    """URLs of the API servers; the agent uses the next one when one does not answer."""
    server_ca: str = ""
    """File (PEM) with the certificates to trust for the servers; empty: the authority named by the join token."""
    name: str = ""
    """Name of the node; empty: the host name."""
    join_token: str = ""
    """Join token of the cluster, needed at the first start."""
    join_token_file: str = ""
    """File with the join token."""
    engine: tuple[str, ...] = ()
    """Engines to offer; empty: all installed engines except `process`, which runs tasks directly on the node; `all`:
    all installed engines, including `process`."""
    engine_option: tuple[str, ...] = ()
    """Options of engines: `docker.socket=/run/docker.sock`, `incus.url=https://…`."""
    label: tuple[str, ...] = ()
    """Labels `key=value` that the node gets when it joins."""
    pool: str = ""
    """Pool of the node when it joins; empty: the join token's pool, or `default`."""
    address: str = ""
    """Address of this machine for others; empty: detected."""
    capacity: tuple[str, ...] = ()
    """Part of the machine that the node uses: `cpu=2`, `memory=4Gi`, `disk=10Gi`; empty: all of it."""
    device: tuple[str, ...] = ()
    """Devices of this machine for tasks: `gpu=4` or `nvidia/gpu=4`."""
    max_instances: Annotated[int, Bounds(ge=1, le=1_000_000)] | None = None
    """Largest number of instances on this node; absent: no limit. The node's label `instances.max` overrides it."""
    allow_host_path: tuple[str, ...] = ()
    """Folders of this machine that tasks may mount, including their subfolders; empty: none."""
    egress_allow: tuple[str, ...] = (EVERYWHERE,)
    """Hosts that may be called for objects of the API (log sinks, external addresses of services): `*` (all but
    loopback and link-local addresses), `HOST`, `HOST:PORT`, `*.DOMAIN`, `10.0.0.0/8`, `unix:/PATH`."""
    secret_files: str = ""
    """Folder with the files that objects of the API may name (`file:NAME`); empty: none."""
    names: bool = True
    """Lets instances find others of their namespace by name (hosts files, MANDOR_ADDR_…)."""
    balancer: Literal["auto", "off", "nftables", "relay"] = "auto"
    """Data path for the virtual addresses of services: `nftables` (needs root), `relay` (a process on loopback
    addresses), `auto` (nftables if it works, otherwise the relay), or `off`: names of services lead to instances."""
    dns: str = "off"
    """Address of this node's name server: an IPv4 address that containers reach, `auto` (the first free one from
    169.254.53.53 on, on the loopback interface; needs root), or `off`: instances find names in hosts files only."""
    dns_upstream: tuple[str, ...] = ()
    """Name servers for names outside of the cluster, `ADDRESS` or `ADDRESS:PORT`; empty: those of this machine."""
    overlay: Literal["off", "kernel"] = "off"
    """Data path for networks that span nodes: `kernel` (bridges, VXLAN and routes; needs root), or `off`: the node is
    part of no network."""
    port_range: str = str(USUAL_PORTS)
    """Range `FIRST-LAST` of host ports for tasks with `host: auto`."""
    pressure: tuple[str, ...] = ()
    """Pressure thresholds: `memory=6%:3%:60s` reports pressure below 6 % free and evicts after 60 s, below 3 % at once.
    Also `disk` and `inodes`; `memory=off` disables the check."""
    heartbeat: Seconds = Seconds(10)
    """Time between heartbeats."""
    metrics: str = ""
    """`HOST:PORT` at which the agent serves metrics for Prometheus, without authentication; empty: off."""
    otlp: str = ""
    """OTLP receiver for tasks, `http://HOST:4318`, passed in OTEL_EXPORTER_OTLP_ENDPOINT; `${MANDOR_NODE_ADDRESS}` in
    it is filled in. Empty: not passed."""

    def __post_init__(self) -> None:
        PortRange.parse(self.port_range)
        _check_outward(self)
        if self.otlp and not self.otlp.startswith(("http://", "https://")):
            raise ValueError(f"otlp is {self.otlp!r}; it must be a URL such as http://HOST:4318")


def load(
    cls: type[S],
    section: str,
    *,
    file: str | None = None,
    environ: Mapping[str, str],
    flags: Mapping[str, Any],
) -> S:
    """Return the settings; raise `Invalid` with the source and the error."""
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
    """Convert the text of an environment variable."""
    if str(wanted).startswith("tuple"):
        return [word.strip() for word in text.split(",") if word.strip()]
    if wanted not in (int, bool):
        return text
    try:
        return msgspec.convert(text.strip(), wanted, strict=False)
    except msgspec.ValidationError as error:
        what = "a whole number" if wanted is int else "true or false"
        raise Invalid(f"MANDOR_{name.upper()} is {text[:40]!r}", hint=f"it must be {what}") from error


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


def _check_acme(settings: ServerSettings) -> None:
    if settings.acme_directory:
        if not settings.acme_directory.startswith("https://"):
            raise ValueError(f"`acme_directory` must be a URL with https, not {settings.acme_directory[:60]!r}")
        host_of(settings.acme_directory)
    elif settings.acme_email or settings.acme_agree or settings.acme_ca or settings.acme_eab_id:
        raise ValueError("`acme_directory` is missing: it names the certificate authority")
    if settings.acme_email and not _EMAIL.fullmatch(settings.acme_email):
        raise ValueError(f"`acme_email` is {settings.acme_email[:60]!r}, not an email address")
    if bool(settings.acme_eab_id) != bool(settings.acme_eab_key_file):
        raise ValueError("`acme_eab_id` and `acme_eab_key_file` must be set together")


def _check_outward(settings: "ServerSettings | AgentRootSettings") -> None:
    Egress(settings.egress_allow)
    if settings.secret_files and not settings.secret_files.startswith("/"):
        raise ValueError(f"secret_files is {settings.secret_files[:80]!r}; it is the path of a folder, from the root")


def split_address(text: str) -> tuple[str, int]:
    """Return host and port of `127.0.0.1:8080` or `[::1]:8080`."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not an address; write HOST:PORT")
    return host.strip("[]"), int(port)


def default_name() -> str:
    """Return the host name as a node name."""
    return re.sub(r"[^a-z0-9-]+", "-", socket.gethostname().split(".")[0].lower()).strip("-") or "node"
