"""What a task may say under `options.docker` and `options.podman`."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from mandor.engines.containers.images import Pull
from mandor.lib.quantity import Size


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
