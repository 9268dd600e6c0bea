"""Converts a launch to the body of a request that creates an Incus instance: pure."""

from __future__ import annotations

from typing import Any

from mandor.engines.base import Launch, Mount
from mandor.engines.containers.launches import check_mount, image_of
from mandor.engines.incus.marks import PULLED
from mandor.engines.incus.options import IncusOptions, source_of
from mandor.engines.incus.runner import IO
from mandor.errors import Invalid

PERIOD_MILLISECONDS = 100


def make_body(
    name: str, launch: Launch, options: IncusOptions, marks: dict[str, str], io: str | None
) -> dict[str, Any]:
    """Return the body. `io`: the folder of the node for the output of the command; None: there is no command."""
    source = source_of(image_of(launch), options)
    pulled = {PULLED: "1"} if "server" in source else {}
    return {
        "name": name,
        "type": options.type,
        "source": source,
        "profiles": list(options.profiles),
        "config": _config(launch, options) | marks | pulled,
        "devices": _devices(launch, options, io),
    }


def _config(launch: Launch, options: IncusOptions) -> dict[str, str]:
    config = {name: _text(value) for name, value in options.config.items()}
    config |= {f"environment.{name}": value for name, value in launch.env.items()}
    config["boot.autostart"] = "false"  # The agent starts instances, and counts.
    if launch.cpu_milli is not None:
        if options.type == "virtual-machine":
            config["limits.cpu"] = str(max(1, -(-launch.cpu_milli // 1000)))
        else:
            quota = max(1, launch.cpu_milli * PERIOD_MILLISECONDS // 1000)
            config["limits.cpu.allowance"] = f"{quota}ms/{PERIOD_MILLISECONDS}ms"
    if launch.memory_bytes is not None:
        config["limits.memory"] = f"{launch.memory_bytes}B"
        if options.type == "container":
            config["limits.memory.swap"] = "false"
    if launch.processes is not None and options.type == "container":
        config["limits.processes"] = str(launch.processes)
    if options.privileged:
        config["security.privileged"] = "true"
    elif options.type == "container" and launch.level != "privileged":
        # These override profiles. Other values need an entry in the namespace.
        walls = {"security.privileged": "false", "security.nesting": "false"}
        walls |= {"security.idmap.isolated": "true"} if launch.level == "restricted" else {}
        config |= {key: value for key, value in walls.items() if key not in options.config}
    if options.user_data is not None:
        config["cloud-init.user-data"] = options.user_data
    return config


def _devices(launch: Launch, options: IncusOptions, io: str | None) -> dict[str, dict[str, str]]:
    devices = {name: {key: _text(value) for key, value in each.items()} for name, each in options.devices.items()}
    if options.pool is not None:
        devices["root"] = {"type": "disk", "path": "/", "pool": options.pool}
    if io is not None:
        devices["mandor-io"] = {"type": "disk", "source": io, "path": IO}
    for number, mount in enumerate(launch.mounts):
        devices[f"mandor-mount-{number}"] = _mount(mount, options)
    for port, host in launch.host_ports.items():
        protocol = launch.protocols.get(port, "tcp")
        devices[f"mandor-port-{port}"] = {
            "type": "proxy",
            "listen": f"{protocol}:0.0.0.0:{host}",
            "connect": f"{protocol}:127.0.0.1:{launch.ports.get(port, host)}",
        }
    return devices


def _mount(mount: Mount, options: IncusOptions) -> dict[str, str]:
    if mount.source is None:
        raise Invalid(f"the mount {mount.path}: the engine incus has no tmpfs", hint="mount a volume instead")
    check_mount(mount)
    device = {"type": "disk", "source": mount.source, "path": mount.path}
    if mount.read_only:
        device["readonly"] = "true"
    if options.type == "container" and not options.privileged:
        device["shift"] = "true"  # User ids are the same as on the node.
    return device


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
