"""What a task may say under `options.docker` and `options.podman`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from mandor.engines.containers.images import Pull
from mandor.lib.quantity import Size

DEVICE = r"^/[^:]+(:/[^:]+)?(:[rwm]{1,3})?$"


class Ulimit(Struct, frozen=True, forbid_unknown_fields=True):
    """How much of something of the kernel a process may have; -1: no limit."""

    soft: Annotated[int, Meta(ge=-1)]
    hard: Annotated[int, Meta(ge=-1)]


class ContainerOptions(Struct, frozen=True, forbid_unknown_fields=True):
    pull: Pull = "missing"
    """When the image is fetched: at every start, when it is not there, never."""
    log_size: Size = Size(10 * 1024 * 1024)
    """How large a log file grows before the next one begins."""
    log_files: Annotated[int, Meta(ge=1, le=100)] = 3
    """How many are kept."""
    init: bool = False
    """A small first process that passes signals on and takes care of orphans."""
    privileged: bool = False
    """All of the node's devices and powers."""
    read_only: bool = False
    """Nothing can be written but to mounts."""
    cap_add: tuple[str, ...] = ()
    """Powers of root it gets beyond the usual ones."""
    cap_drop: tuple[str, ...] = ()
    """Powers of root it does not get; `ALL` for none."""
    network: str | None = None
    """A network of the engine, `host` or `none`; absent: the engine's own bridge."""
    hostname: str | None = None
    """Absent: the instance's name."""
    shm_size: Size | None = None
    """How large /dev/shm is."""
    runtime: str | None = None
    """Another runtime that the engine knows, such as `runsc` or `kata`."""
    extra_hosts: tuple[str, ...] = ()
    """`NAME:ADDRESS`, put into its hosts file."""
    dns: tuple[str, ...] = ()
    """Addresses of name servers; absent: the engine's."""
    dns_search: tuple[str, ...] = ()
    """Domains that are tried behind a bare name."""
    ulimits: dict[str, Ulimit] = {}
    """By their names: `{nofile: {soft: 65536, hard: 65536}}`; absent: the engine's."""
    sysctls: dict[str, str] = {}
    """Settings of the kernel that a container has for itself: `{net.core.somaxconn: "1024"}`."""
    dns_options: tuple[str, ...] = ()
    """Options of the resolver, such as `ndots:2`."""
    domainname: str | None = None
    """What follows the host's name."""
    devices: tuple[Annotated[str, Meta(pattern=DEVICE)], ...] = ()
    """Devices of the node: `/dev/ttyUSB0`, or `SOURCE:PATH[:rwm]`."""
    device_rules: tuple[str, ...] = ()
    """Kinds of devices that it may use, as the kernel writes them: `c 13:* rmw`."""
    groups: tuple[str, ...] = ()
    """Further groups of its user, by name or number."""
    ipc: Literal["host", "private", "shareable", "none"] | None = None
    """`host`: shared memory is the node's; absent: as the engine has it."""
    pid: Literal["host"] | None = None
    """`host`: it sees all processes of the node."""
    uts: Literal["host"] | None = None
    """`host`: its name is the node's."""
    userns: str | None = None
    """`host`: its users are the node's, where the engine maps them otherwise."""
    cgroupns: Literal["host", "private"] | None = None
    """Whether it sees all control groups of the node."""
    cpuset: Annotated[str, Meta(pattern=r"^[0-9,-]+$")] | None = None
    """The only cores it may use: `0-3,8`. The scheduler does not count them."""
    cpu_shares: Annotated[int, Meta(ge=2, le=262_144)] | None = None
    """How much of the processor it gets beside others, when there is not enough for all; the usual is 1024."""
    security_opt: tuple[str, ...] = ()
    """Profiles other than the engine's own: `seccomp=unconfined`, `apparmor=NAME`."""
    oom_score_adj: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    """The higher, the sooner the kernel ends it when memory runs out."""
    stdin: bool = False
    """Its input stays open, so that a shell does not end at once."""
