"""Rules of each security level in one table, used by admission, the agent and the documentation."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from mandor.model.level import Level

LEVELS: tuple[Level, ...] = ("restricted", "baseline", "privileged")
"""Levels from strictest to least strict: each allows everything that the levels before it allow."""

BY_NAME = frozenset({"process"})
"""Engines that run tasks directly on the node: `restricted` and `baseline` allow them only if the namespace lists them
in `engines`.
"""

LOW_PORTS = 1024
"""Host ports below this number are reserved for the system."""

CONTROL_PLANE_TAINTS = frozenset(
    {"control-plane", "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"}
)

DEFAULT_CAPABILITIES = frozenset(
    {
        *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE"),
        *("SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"),
    }
)
"""Capabilities that container engines grant by default, as in Kubernetes' `baseline`."""

SAFE_SYSCTLS = frozenset(
    {
        *("kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"),
        *("net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports"),
        *("net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl"),
        *("net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"),
    }
)
"""Kernel parameters that affect one container only, as in Kubernetes' `baseline`."""


@dataclass(frozen=True, slots=True)
class LevelRules:
    """Rules of one level, for topics without a list in the namespace."""

    root: bool
    """Whether a task may run as user 0 of its container."""
    host_paths: bool
    """Whether volumes of type `host` are allowed without `host_paths`."""
    low_ports: bool
    """Whether host ports below 1024 are allowed."""
    control_plane: bool
    """Whether tasks may tolerate control plane taints."""
    capabilities: frozenset[str] | None
    """Capabilities that `cap_add` may list; None for all."""
    privileged: bool
    """Whether `security.privileged` is allowed."""
    by_name: frozenset[str]
    """Engines that are allowed only if the namespace lists them in `engines`."""


RULES: Mapping[Level, LevelRules] = {
    "restricted": LevelRules(
        root=False,
        host_paths=False,
        low_ports=False,
        control_plane=False,
        capabilities=frozenset({"NET_BIND_SERVICE"}),
        privileged=False,
        by_name=BY_NAME,
    ),
    "baseline": LevelRules(
        root=True,
        host_paths=False,
        low_ports=True,
        control_plane=True,
        capabilities=DEFAULT_CAPABILITIES,
        privileged=False,
        by_name=BY_NAME,
    ),
    "privileged": LevelRules(
        root=True,
        host_paths=True,
        low_ports=True,
        control_plane=True,
        capabilities=None,
        privileged=True,
        by_name=frozenset(),
    ),
}

_COMMON: Mapping[str, Level] = {"log_size": "restricted", "log_files": "restricted"}
_CONTAINER: Mapping[str, Level] = {
    **_COMMON,
    "pull": "restricted",
    "init": "restricted",
    "privileged": "privileged",
    "read_only": "restricted",
    "cap_add": "restricted",
    "cap_drop": "restricted",
    "network": "restricted",
    "hostname": "restricted",
    "shm_size": "restricted",
    "runtime": "baseline",
    "extra_hosts": "restricted",
    "dns": "restricted",
    "dns_search": "restricted",
    "ulimits": "baseline",
    "sysctls": "restricted",
    "dns_options": "restricted",
    "domainname": "restricted",
    "devices": "privileged",
    "device_rules": "privileged",
    "groups": "baseline",
    "ipc": "restricted",
    "pid": "privileged",
    "uts": "privileged",
    "userns": "privileged",
    "cgroupns": "restricted",
    "cpuset": "baseline",
    "cpu_shares": "baseline",
    "security_opt": "restricted",
    "oom_score_adj": "restricted",
    "stdin": "restricted",
}
IMAGE_SERVER: tuple[str, ...] = ("server", "protocol", "server_certificate")
"""Options of the Incus engine that choose the image server. `registries` of the namespace decides about them if set,
otherwise the level.
"""
OPTIONS: Mapping[str, Mapping[str, Level]] = {
    "docker": _CONTAINER,
    "podman": _CONTAINER,
    "cri": {
        **_COMMON,
        "pull": "restricted",
        "privileged": "privileged",
        "read_only": "restricted",
        "cap_add": "restricted",
        "cap_drop": "restricted",
        "network": "privileged",
        "runtime": "baseline",
        "cgroup_parent": "privileged",
    },
    "incus": {
        **_COMMON,
        "type": "restricted",
        "profiles": "restricted",
        "config": "restricted",
        "devices": "privileged",
        "user_data": "restricted",
        **dict.fromkeys(IMAGE_SERVER, "baseline"),
        "pool": "baseline",
        "privileged": "privileged",
    },
    "process": {**_COMMON, "confine": "restricted"},
}
"""Strictest level that allows each option, by engine. `VALUES` may restrict the value further. Options missing from
this table, and all options of other engines, require the level `privileged`.
"""

UNCHECKED = frozenset({"fake"})
"""Engines that start nothing, so that all their options are harmless."""

ValueCheck = Callable[[Any, Level], bool]

_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
"""Pattern of a network name; excludes `container:…`, `ns:…` and `pod:…`, which join other namespaces."""


def _capabilities(value: Any, level: Level) -> bool:
    allowed = RULES[level].capabilities
    names = value if isinstance(value, list | tuple) else [value]
    return allowed is None or all(str(each).upper().removeprefix("CAP_") in allowed for each in names)


def _network(value: Any, level: Level) -> bool:
    if value in ("none", "bridge"):
        return True
    return level == "baseline" and value != "host" and _NETWORK.fullmatch(str(value)) is not None


def _sysctls(value: Any, level: Level) -> bool:
    return isinstance(value, Mapping) and all(name in SAFE_SYSCTLS for name in value)


def _not_host(value: Any, level: Level) -> bool:
    return bool(value != "host")


def _security_opt(value: Any, level: Level) -> bool:
    harmless = {"no-new-privileges", "no-new-privileges:true", "no-new-privileges=true"}
    return isinstance(value, list | tuple) and all(each in harmless for each in value)


def _at_least_zero(value: Any, level: Level) -> bool:
    return isinstance(value, int) and value >= 0


def _default_profile(value: Any, level: Level) -> bool:
    return isinstance(value, list | tuple) and all(each == "default" for each in value)


def _incus_config(value: Any, level: Level) -> bool:
    """Allow keys passed to the guest; at `baseline` also resource limits, but no kernel limits."""
    if not isinstance(value, Mapping):
        return False
    guest = ("cloud-init.", "user.", "environment.")
    limits = ("limits.cpu", "limits.memory", "limits.processes", "limits.disk.priority")
    return all(str(key).startswith(guest) or (level == "baseline" and str(key).startswith(limits)) for key in value)


_CONTAINER_VALUES: Mapping[str, ValueCheck] = {
    "cap_add": _capabilities,
    "network": _network,
    "sysctls": _sysctls,
    "ipc": _not_host,
    "cgroupns": _not_host,
    "security_opt": _security_opt,
    "oom_score_adj": _at_least_zero,
}
VALUES: Mapping[str, Mapping[str, ValueCheck]] = {
    "docker": _CONTAINER_VALUES,
    "podman": _CONTAINER_VALUES,
    "cri": {"cap_add": _capabilities},
    "incus": {"profiles": _default_profile, "config": _incus_config},
}
"""Options of which only some values are allowed below `privileged`."""


def option_allowed(level: Level, engine: str, option: str, value: Any) -> bool:
    """Return whether a level allows an engine's option with this value. A value that turns an option off is always
    allowed.
    """
    if level == "privileged" or engine in UNCHECKED or value in (None, False, "", (), [], {}):
        return True
    strictest = OPTIONS.get(engine, {}).get(option, "privileged")
    if LEVELS.index(strictest) > LEVELS.index(level):
        return False
    check = VALUES.get(engine, {}).get(option)
    return check is None or check(value, level)
