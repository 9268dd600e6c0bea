"""Namespaces that a container of the docker and podman drivers shares with its node, as options of those engines."""

from typing import Any

from mandor.importers.base import filled
from mandor.importers.nomad.blocks import blocks
from mandor.importers.part import Part

_SPACES = {
    "ipc_mode": ("ipc", ("host", "private", "shareable", "none")),
    "pid_mode": ("pid", ("host",)),
    "uts_mode": ("uts", ("host",)),
    "userns_mode": ("userns", ("host",)),
    "cgroupns": ("cgroupns", ("host", "private")),
}
SHARING = {option: key for key, (option, _) in _SPACES.items()} | {
    "devices": "devices",
    "groups": "group_add",
    "cpuset": "cpuset_cpus",
    "dns_options": "dns_options",
    "security_opt": "security_opt",
    "oom_score_adj": "oom_score_adj",
    "stdin": "interactive",
}
"""Nomad's key by Mandor's option."""


def sharing(part: Part) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, (option, known) in _SPACES.items():
        value = part.text(key)
        if value in known:
            found[option] = value
        elif value:
            part.drop(key, "tasks share a network, and nothing else")
    terminal = part.flag("tty")
    if terminal:
        part.guess("tty", "standard input stays open without a terminal; `mandor exec -it` opens one")
    if (cores := part.text("cpuset_cpus")) is not None:
        part.guess("cpuset_cpus", "the scheduler does not track the cores of `cpuset`")
    return found | filled(
        devices=_devices(part),
        groups=part.texts("group_add"),
        cpuset=cores,
        dns_options=part.texts("dns_options"),
        security_opt=part.texts("security_opt"),
        oom_score_adj=part.whole("oom_score_adj"),
        stdin=part.flag("interactive") or terminal or None,
    )


def _devices(part: Part) -> list[str]:
    """Return devices: blocks or mappings for Docker, texts for Podman."""
    given = part.peek("devices")
    if isinstance(given, list) and given and not any(isinstance(each, dict) for each in given):
        return part.texts("devices")
    return [_device(each) for each in blocks(part, "devices")]


def _device(part: Part) -> str:
    source = part.text("host_path")
    if not source or not source.startswith("/"):
        raise part.wrong("host_path", "a device has a `host_path`")
    words = (source, part.text("container_path"), part.text("cgroup_permissions"))
    return ":".join(word for word in words if word)
