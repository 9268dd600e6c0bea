"""Container settings of Compose, as options of the engines that support them, and as `security`."""

import re

from mandor.importers.base import filled
from mandor.importers.compose.amounts import take_size
from mandor.importers.compose.draft import Draft
from mandor.importers.compose.merging import hosts_of
from mandor.importers.compose.storage import pairs_of
from mandor.importers.part import Part

_DEVICE = re.compile(r"/[^:]+(:/[^:]+)?(:[rwm]{1,3})?")
_SPACES = {
    "ipc": ("ipc", ("host", "private", "shareable", "none")),
    "pid": ("pid", ("host",)),
    "uts": ("uts", ("host",)),
    "userns_mode": ("userns", ("host",)),
    "cgroup": ("cgroupns", ("host", "private")),
}
"""Option and allowed values by Compose key."""


def read_container(draft: Draft, service: Part) -> None:
    if service.flag("init"):
        draft.options["init"] = True
    _walls(draft, service)
    _spaces(draft, service)
    _input(draft, service)
    draft.options |= filled(
        ulimits=_ulimits(service),
        sysctls=pairs_of(service, "sysctls"),
        dns=service.texts("dns"),
        dns_search=service.texts("dns_search"),
        dns_options=service.texts("dns_opt"),
        domainname=service.text("domainname"),
        shm_size=take_size(service, "shm_size"),
        runtime=service.text("runtime"),
        extra_hosts=_hosts(service),
        devices=_devices(service),
        device_rules=service.texts("device_cgroup_rules"),
        groups=service.texts("group_add"),
        cpuset=service.text("cpuset"),
        cpu_shares=service.whole("cpu_shares") or None,
        oom_score_adj=service.whole("oom_score_adj"),
    )
    if draft.options.get("cpuset"):
        service.guess("cpuset", "the scheduler does not track the cores of `cpuset`")


def _walls(draft: Draft, service: Part) -> None:
    if service.flag("read_only"):
        draft.security["read_only_root"] = True
    added, dropped = _powers(service, "cap_add"), _powers(service, "cap_drop")
    if service.flag("privileged"):
        draft.security["privileged"] = True
        if added or dropped:
            service.guess("cap_add" if added else "cap_drop", "`privileged` has all powers")
    else:
        draft.security |= filled(cap_add=added, cap_drop=dropped)
    profiles = []
    for text in service.texts("security_opt"):
        name, _, value = text.replace("=", ":").partition(":")
        if name == "no-new-privileges":
            draft.security |= filled(no_new_privileges=value != "false" or None)
        else:
            profiles.append(f"{name}={value}")
    draft.options |= filled(security_opt=profiles)


def _powers(service: Part, key: str) -> list[str]:
    return [text.upper().removeprefix("CAP_") for text in service.texts(key)]


def _spaces(draft: Draft, service: Part) -> None:
    """Map `ipc`, `pid` and `uts`: shared with the node, or private."""
    for key, (option, known) in _SPACES.items():
        value = service.text(key)
        if value in known:
            draft.options[option] = value
        elif value:
            service.drop(key, "two workloads share nothing but volumes", "make them tasks of one group")


def _input(draft: Draft, service: Part) -> None:
    terminal, stays = service.flag("tty"), service.flag("stdin_open")
    if terminal:
        service.guess("tty", "standard input stays open without a terminal; `mandor exec -it` opens one")
    if terminal or stays:
        draft.options["stdin"] = True


def _devices(service: Part) -> list[str]:
    found = []
    for index, each in enumerate(service.mixed("devices")):
        if isinstance(each, Part):
            words = (each.text("source"), each.text("target"), each.text("permissions"))
            text = ":".join(word for word in words if word)
        else:
            text = each
        if _DEVICE.fullmatch(text):
            found.append(text)
        else:
            service.drop_item("devices", index, f"{text[:60]} is no path of a device", "see `resources.devices`")
    return found


def _ulimits(service: Part) -> dict[str, dict[str, int]]:
    under, found = service.part("ulimits"), {}
    for name in under:
        if isinstance(under.peek(name), dict):
            each = under.part(name)
            soft, hard = each.whole("soft", -1), each.whole("hard", -1)
        else:
            soft = hard = under.whole(name, -1)
        found[name] = {"soft": max(-1, -1 if soft is None else soft), "hard": max(-1, -1 if hard is None else hard)}
    return found


def _hosts(service: Part) -> list[str]:
    found = []
    for text in hosts_of(service.take("extra_hosts")):
        name, address = re.split("[=:]", text, maxsplit=1) if re.search("[=:]", text) else (text, "")
        if not address:
            raise service.wrong("extra_hosts", f"{text[:40]!r} is not NAME:ADDRESS")
        found.append(f"{name}:{address.removeprefix('[').removesuffix(']')}")
    return found
