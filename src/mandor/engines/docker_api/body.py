"""Converts a launch to the body of a request that creates a container."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mandor.engines.base import Launch, Mount, Resolver
from mandor.engines.containers.launches import (
    PERIOD_MICROSECONDS,
    check_mount,
    check_working_dir,
    cpu_quota,
    hostname,
    image_of,
    user_of,
)
from mandor.engines.docker_api.networks import network_name
from mandor.engines.docker_api.options import ContainerOptions


def make_body(
    launch: Launch, options: ContainerOptions, labels: dict[str, str], *, network_of: str | None = None
) -> dict[str, Any]:
    """Return the body. `network_of`: the container whose network it shares; that one has the host name and the
    ports."""
    check_working_dir(launch)
    body: dict[str, Any] = {
        "Image": image_of(launch),
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
        body["WorkingDir"] = launch.working_dir
    if user := user_of(launch):
        body["User"] = user
    if options.stdin:
        body["OpenStdin"] = True
    if network_of is not None:
        body["HostConfig"]["NetworkMode"] = f"container:{network_of}"
    else:
        add_network(body, launch, options)
    return body


def add_network(body: dict[str, Any], launch: Launch, options: ContainerOptions) -> None:
    """Add host name, network and ports, for a container or for the sandbox of several."""
    host = body["HostConfig"]
    attachment = launch.attachment
    if attachment is not None:
        name = network_name(attachment)
        host["NetworkMode"] = name
        addresses = {"IPv4Address": attachment.address}
        if attachment.address6:
            addresses["IPv6Address"] = attachment.address6
        body["NetworkingConfig"] = {"EndpointsConfig": {name: {"IPAMConfig": addresses}}}
    elif options.network is not None:
        host["NetworkMode"] = options.network
    if options.network != "host" or attachment is not None:
        body["Hostname"] = options.hostname or hostname(launch.name)
        if options.extra_hosts:
            host["ExtraHosts"] = list(options.extra_hosts)
        host |= _resolver(launch, options)
        if options.domainname is not None:
            body["Domainname"] = options.domainname
        ports = {name: f"{port}/{launch.protocols.get(name, 'tcp')}" for name, port in launch.ports.items()}
        body["ExposedPorts"] = {port: {} for port in ports.values()}
        host["PortBindings"] = {
            ports[name]: [{"HostPort": str(number)}] for name, number in launch.host_ports.items() if name in ports
        }


def _resolver(launch: Launch, options: ContainerOptions) -> dict[str, Any]:
    """Return the settings of the resolver. The launch's search domains belong to its servers."""
    given = launch.resolver if launch.resolver is not None and not options.dns else Resolver((), (), ())
    found = {
        "Dns": list(options.dns or given.servers),
        "DnsSearch": list(options.dns_search or given.search),
        "DnsOptions": list(options.dns_options or given.options),
    }
    return {key: value for key, value in found.items() if value}


def _mounts(mounts: Sequence[Mount]) -> dict[str, Any]:
    found: dict[str, Any] = {"Mounts": [], "Tmpfs": {}}
    for mount in mounts:
        check_mount(mount)
        if mount.source is None:
            size = "" if mount.size_bytes is None else f"size={mount.size_bytes}"
            found["Tmpfs"][mount.path] = ",".join(filter(None, ("ro" if mount.read_only else "rw", size)))
        else:
            bind = {"Type": "bind", "Source": mount.source, "Target": mount.path, "ReadOnly": mount.read_only}
            found["Mounts"].append(bind)
    return found


def _host(launch: Launch, options: ContainerOptions) -> dict[str, Any]:
    host: dict[str, Any] = {
        "RestartPolicy": {"Name": "no"},  # The agent restarts tasks, and counts.
        "LogConfig": {
            "Type": "json-file",
            "Config": {"max-size": str(int(options.log_size)), "max-file": str(options.log_files)},
        },
    }
    if launch.cpu_milli is not None:
        host |= {"CpuPeriod": PERIOD_MICROSECONDS, "CpuQuota": cpu_quota(launch.cpu_milli)}
    if launch.memory_bytes is not None:
        host |= {"Memory": launch.memory_bytes, "MemorySwap": launch.memory_bytes}
    if launch.processes is not None:
        host["PidsLimit"] = launch.processes
    host |= _mounts(launch.mounts)
    if options.init:
        host["Init"] = True
    security = launch.security
    if security.privileged or options.privileged:
        host["Privileged"] = True
    if security.read_only_root or options.read_only:
        host["ReadonlyRootfs"] = True
    if added := [*security.cap_add, *options.cap_add]:
        host["CapAdd"] = added
    if dropped := [*security.cap_drop, *options.cap_drop]:
        host["CapDrop"] = dropped
    if profiles := [*options.security_opt, *(["no-new-privileges"] if security.no_new_privileges else [])]:
        host["SecurityOpt"] = profiles
    if options.shm_size is not None:
        host["ShmSize"] = int(options.shm_size)
    if options.ulimits:
        host["Ulimits"] = [
            {"Name": name, "Soft": each.soft, "Hard": each.hard} for name, each in options.ulimits.items()
        ]
    if options.sysctls:
        host["Sysctls"] = dict(options.sysctls)
    if options.runtime is not None:
        host["Runtime"] = options.runtime
    return host | _shared(options)


def _shared(options: ContainerOptions) -> dict[str, Any]:
    """Return the settings by which a container shares parts of its node."""
    given: dict[str, Any] = {
        "Devices": [_device(each) for each in options.devices],
        "DeviceCgroupRules": list(options.device_rules),
        "GroupAdd": list(options.groups),
        "IpcMode": options.ipc,
        "PidMode": options.pid,
        "UTSMode": options.uts,
        "UsernsMode": options.userns,
        "CgroupnsMode": options.cgroupns,
        "CpusetCpus": options.cpuset,
        "CpuShares": options.cpu_shares,
        "OomScoreAdj": options.oom_score_adj,
    }
    return {key: value for key, value in given.items() if value is not None and value != []}


def _device(text: str) -> dict[str, str]:
    """Parse a device: `SOURCE[:PATH][:rwm]`."""
    source, *rest = text.split(":")
    inside = rest[0] if rest and rest[0].startswith("/") else source
    powers = rest[-1] if rest and not rest[-1].startswith("/") else "rwm"
    return {"PathOnHost": source, "PathInContainer": inside, "CgroupPermissions": powers}
