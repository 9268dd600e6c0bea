"""Converts a launch to the CRI configurations of its sandbox and container: pure."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mandor.engines.base import Launch, Unit
from mandor.engines.containers.launches import PERIOD_MICROSECONDS, check_mount, cpu_quota, hostname, user_of
from mandor.engines.cri.options import CriOptions
from mandor.engines.cri.wire import OF_THE_CONTAINER, OF_THE_NODE, TCP, UDP, make
from mandor.errors import Invalid

MASKED_PATHS = (
    *("/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"),
    *("/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"),
)
READ_ONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")
"""Kernel files that a container can neither read nor change; the same as in Docker."""


def sandbox_config(
    uid: str, launch: Launch, options: CriOptions, labels: Mapping[str, str], logs: Path, attempt: int = 0
) -> Any:
    """Return the configuration of the sandbox of an instance: network, ports and host name of its tasks."""
    names = {"udp": UDP, "tcp": TCP}
    ports = [
        make(
            "PortMapping",
            protocol=names[launch.protocols.get(name, "tcp")],
            container_port=launch.ports.get(name, host),
            host_port=host,
        )
        for name, host in launch.host_ports.items()
    ]
    spaces = make("NamespaceOption", pid=OF_THE_CONTAINER, network=OF_THE_NODE if options.network == "host" else 0)
    privileged = launch.security.privileged or options.privileged
    walls = {} if privileged else {"seccomp": _runtime_default()}
    security = make("SandboxSecurity", namespace_options=spaces, privileged=privileged, **walls)
    linux: dict[str, Any] = {"security_context": security}
    if options.cgroup_parent:
        linux["cgroup_parent"] = options.cgroup_parent
    if launch.resolver is not None and options.network != "host":
        own = launch.resolver
        resolver = {"dns_config": make("DNSConfig", servers=own.servers, searches=own.search, options=own.options)}
    else:
        resolver = {}
    return make(
        "PodSandboxConfig",
        metadata=make("PodSandboxMetadata", name=f"mandor-{uid}", uid=uid, namespace=launch.namespace, attempt=attempt),
        hostname="" if options.network == "host" else hostname(launch.name),
        log_directory=str(logs),
        port_mappings=[] if options.network == "host" else ports,
        labels=dict(labels),
        linux=make("LinuxPodSandboxConfig", **linux),
        **resolver,
    )


def _runtime_default() -> Any:
    """Return the default seccomp profile of the runtime."""
    return make("SecurityProfile", profile_type=0)


def container_config(
    unit: Unit,
    launch: Launch,
    options: CriOptions,
    labels: Mapping[str, str],
    files: Mapping[str, str],
) -> Any:
    """Return the configuration of a container. `files`: paths on the node by paths in the container."""
    mounts = [make("Mount", container_path=path, host_path=source) for path, source in files.items()]
    for each in launch.mounts:
        check_mount(each)
        if each.source is None:
            continue  # The CRI has no tmpfs: see `amend`.
        mounts.append(make("Mount", container_path=each.path, host_path=each.source, readonly=each.read_only))
    return make(
        "ContainerConfig",
        metadata=make("ContainerMetadata", name=unit.task, attempt=unit.attempt),
        image=make("ImageSpec", image=launch.image),
        command=list(launch.command),
        args=list(launch.args),
        working_dir=launch.working_dir or "",
        envs=[make("KeyValue", key=name, value=value) for name, value in launch.env.items()],
        mounts=mounts,
        labels=dict(labels),
        log_path=log_name(unit),
        linux=make("LinuxContainerConfig", resources=_resources(launch), security_context=_security(launch, options)),
    )


def log_name(unit: Unit) -> str:
    return f"{unit.task}.{unit.attempt}.log"


def _resources(launch: Launch) -> Any:
    limits: dict[str, int] = {}
    if launch.cpu_milli is not None:
        limits |= {"cpu_period": PERIOD_MICROSECONDS, "cpu_quota": cpu_quota(launch.cpu_milli)}
    if launch.memory_bytes is not None:
        limits |= {"memory_limit_in_bytes": launch.memory_bytes, "memory_swap_limit_in_bytes": launch.memory_bytes}
    return make("LinuxContainerResources", **limits)


def _security(launch: Launch, options: CriOptions) -> Any:
    security = launch.security
    parts: dict[str, Any] = {
        "privileged": security.privileged or options.privileged,
        "readonly_rootfs": bool(security.read_only_root or options.read_only),
        "no_new_privs": security.no_new_privileges,
        "namespace_options": make(
            "NamespaceOption", pid=OF_THE_CONTAINER, network=OF_THE_NODE if options.network == "host" else 0
        ),
        "capabilities": make(
            "Capability",
            add_capabilities=[*security.cap_add, *options.cap_add],
            drop_capabilities=[*security.cap_drop, *options.cap_drop],
        ),
    }
    if not parts["privileged"]:
        # The runtime has no defaults for these; the kubelet sets them, too.
        parts |= {"seccomp": _runtime_default(), "masked_paths": MASKED_PATHS, "readonly_paths": READ_ONLY_PATHS}
    user, _, group = user_of(launch).partition(":")
    if user.isdecimal():
        parts["run_as_user"] = make("Int64Value", value=int(user))
    elif user:
        parts["run_as_username"] = user
    if group:
        if not group.isdecimal():
            raise Invalid(f"the group {group!r} of the user must be a number for the engine cri")
        parts["run_as_group"] = make("Int64Value", value=int(group))
    return make("ContainerSecurity", **parts)
