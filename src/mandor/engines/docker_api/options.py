"""Options of a task under `options.docker` and `options.podman`."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from mandor.engines.containers.images import Pull
from mandor.lib.quantity import Size

DEVICE = r"^/[^:]+(:/[^:]+)?(:[rwm]{1,3})?$"


class Ulimit(Struct, frozen=True, forbid_unknown_fields=True):
    """A resource limit of the kernel; -1: no limit."""

    soft: Annotated[int, Meta(ge=-1)]
    hard: Annotated[int, Meta(ge=-1)]


class ContainerOptions(Struct, frozen=True, forbid_unknown_fields=True):
    pull: Pull = "missing"
    """Pull policy of the image: at every start, if the node does not have it, or never."""
    log_size: Size = Size(10 * 1024 * 1024)
    """Size at which a log file is rotated."""
    log_files: Annotated[int, Meta(ge=1, le=100)] = 3
    """Number of rotated log files that are kept."""
    init: bool = False
    """Runs a small init process that forwards signals and reaps orphans."""
    privileged: bool = False
    """Gives it all devices and capabilities of the node."""
    read_only: bool = False
    """Makes its root file system read-only; mounts stay writable."""
    cap_add: tuple[str, ...] = ()
    """Capabilities in addition to the defaults of the engine."""
    cap_drop: tuple[str, ...] = ()
    """Capabilities that are removed; `ALL` removes all."""
    network: str | None = None
    """A network of the engine, `host` or `none`; absent: the engine's own bridge."""
    hostname: str | None = None
    """Host name; absent: the name of the instance."""
    shm_size: Size | None = None
    """Size of /dev/shm."""
    runtime: str | None = None
    """Name of a runtime of the engine, such as `runsc` or `kata`."""
    extra_hosts: tuple[str, ...] = ()
    """Entries `NAME:ADDRESS` for its hosts file."""
    dns: tuple[str, ...] = ()
    """Addresses of name servers; absent: the engine's."""
    dns_search: tuple[str, ...] = ()
    """Search domains for short host names."""
    ulimits: dict[str, Ulimit] = {}
    """Limits by name: `{nofile: {soft: 65536, hard: 65536}}`; absent: those of the engine."""
    sysctls: dict[str, str] = {}
    """Kernel settings of the container: `{net.core.somaxconn: "1024"}`."""
    dns_options: tuple[str, ...] = ()
    """Options of the resolver, such as `ndots:2`."""
    domainname: str | None = None
    """NIS domain name of the container."""
    devices: tuple[Annotated[str, Meta(pattern=DEVICE)], ...] = ()
    """Devices of the node: `/dev/ttyUSB0`, or `SOURCE:PATH[:rwm]`."""
    device_rules: tuple[str, ...] = ()
    """Device cgroup rules in the format of the kernel: `c 13:* rmw`."""
    groups: tuple[str, ...] = ()
    """Supplementary groups of its user, by name or number."""
    ipc: Literal["host", "private", "shareable", "none"] | None = None
    """`host`: shared memory of the node; absent: the default of the engine."""
    pid: Literal["host"] | None = None
    """`host`: process namespace of the node."""
    uts: Literal["host"] | None = None
    """`host`: host name of the node."""
    userns: str | None = None
    """`host`: users of the node, for engines that map users."""
    cgroupns: Literal["host", "private"] | None = None
    """`host`: cgroup namespace of the node; `private`: its own."""
    cpuset: Annotated[str, Meta(pattern=r"^[0-9,-]+$")] | None = None
    """CPU cores that it may use: `0-3,8`. The scheduler does not count them."""
    cpu_shares: Annotated[int, Meta(ge=2, le=262_144)] | None = None
    """Relative weight for CPU time under contention; the default is 1024."""
    security_opt: tuple[str, ...] = ()
    """Security profiles instead of the engine's: `seccomp=unconfined`, `apparmor=NAME`."""
    oom_score_adj: Annotated[int, Meta(ge=-1000, le=1000)] | None = None
    """OOM score adjustment: a higher value is killed earlier when memory runs out."""
    stdin: bool = False
    """Keeps standard input open, so that a shell does not end at once."""
