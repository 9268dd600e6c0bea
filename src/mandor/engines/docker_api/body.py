"""From a launch to what the engine is told to make."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mandor.engines.base import Launch, Mount
from mandor.engines.docker_api.options import ContainerOptions
from mandor.errors import Invalid

PERIOD_MICROSECONDS = 100_000
QUOTA_LEAST = 1000
"""The kernel gives no less than a hundredth of a processor."""
HOSTNAME_MOST = 63


def make_body(
    launch: Launch, options: ContainerOptions, labels: dict[str, str], *, network_of: str | None = None
) -> dict[str, Any]:
    """`network_of`: the container whose network it shares, which then has the name and the ports."""
    if not launch.image:
        raise Invalid("this engine runs images, and the task names none", hint="`image:` says which one")
    body: dict[str, Any] = {
        "Image": launch.image,
        "Env": [f"{name}={value}" for name, value in launch.env.items()],
        "Labels": labels,
        "StopSignal": launch.stop_signal,
        "HostConfig": _host(launch, options),
    }
    if launch.command:
        body["Entrypoint"] = list(launch.command)
    if launch.args or launch.command:
        body["Cmd"] = list(launch.args)
    if launch.working_dir:
        if not launch.working_dir.startswith("/"):
            raise Invalid(f"the working directory {launch.working_dir} is not absolute")
        body["WorkingDir"] = launch.working_dir
    if launch.user is not None:
        body["User"] = str(launch.user)
    if network_of is not None:
        body["HostConfig"]["NetworkMode"] = f"container:{network_of}"
    else:
        add_network(body, launch, options)
    return body


def add_network(body: dict[str, Any], launch: Launch, options: ContainerOptions) -> None:
    """Name, network and ports: of a container, or of the one whose network several share."""
    host = body["HostConfig"]
    if options.network is not None:
        host["NetworkMode"] = options.network
    if options.network != "host":
        body["Hostname"] = options.hostname or hostname(launch.name)
        if options.extra_hosts:
            host["ExtraHosts"] = list(options.extra_hosts)
        ports = {name: f"{port}/{launch.protocols.get(name, 'tcp')}" for name, port in launch.ports.items()}
        body["ExposedPorts"] = {port: {} for port in ports.values()}
        host["PortBindings"] = {
            ports[name]: [{"HostPort": str(number)}] for name, number in launch.host_ports.items() if name in ports
        }


def hostname(name: str) -> str:
    """`shop-web-0/app` is on the machine `shop-web-0`."""
    first = name.partition("/")[0].lower()
    return re.sub(r"[^a-z0-9-]", "-", first)[:HOSTNAME_MOST].strip("-") or "unit"


def _mounts(mounts: Sequence[Mount]) -> dict[str, Any]:
    """A source that is not there is refused: the engine must not make one."""
    found: dict[str, Any] = {"Mounts": [], "Tmpfs": {}}
    for mount in mounts:
        if not mount.path.startswith("/"):
            raise Invalid(f"the volume at {mount.path}: in a container a mount has an absolute path")
        if mount.source is None:
            size = "" if mount.size_bytes is None else f"size={mount.size_bytes}"
            found["Tmpfs"][mount.path] = ",".join(filter(None, ("ro" if mount.read_only else "rw", size)))
        elif not Path(mount.source).exists():
            raise Invalid(f"the volume at {mount.path}: there is no {mount.source} on this node")
        else:
            bind = {"Type": "bind", "Source": mount.source, "Target": mount.path, "ReadOnly": mount.read_only}
            found["Mounts"].append(bind)
    return found


def _host(launch: Launch, options: ContainerOptions) -> dict[str, Any]:
    host: dict[str, Any] = {
        "RestartPolicy": {"Name": "no"},  # Mandor restarts, and counts.
        "LogConfig": {
            "Type": "json-file",
            "Config": {"max-size": str(int(options.log_size)), "max-file": str(options.log_files)},
        },
    }
    if launch.cpu_milli is not None:
        quota = math.ceil(launch.cpu_milli * PERIOD_MICROSECONDS / 1000)
        host |= {"CpuPeriod": PERIOD_MICROSECONDS, "CpuQuota": max(QUOTA_LEAST, quota)}
    if launch.memory_bytes is not None:
        host |= {"Memory": launch.memory_bytes, "MemorySwap": launch.memory_bytes}
    if launch.processes is not None:
        host["PidsLimit"] = launch.processes
    host |= _mounts(launch.mounts)
    if options.init:
        host["Init"] = True
    if options.privileged:
        host["Privileged"] = True
    if options.read_only:
        host["ReadonlyRootfs"] = True
    if options.cap_add:
        host["CapAdd"] = list(options.cap_add)
    if options.cap_drop:
        host["CapDrop"] = list(options.cap_drop)
    if options.shm_size is not None:
        host["ShmSize"] = int(options.shm_size)
    if options.runtime is not None:
        host["Runtime"] = options.runtime
    return host
