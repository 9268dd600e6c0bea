"""Namespaces that a pod shares with its node, and its DNS settings: options of Docker and Podman, not of CRI."""

from collections.abc import Mapping
from typing import Any

from mandor.importers.base import filled
from mandor.importers.kubernetes.words import ENGINES
from mandor.importers.part import Part

DOCKERS = ("docker", "podman")
_NARROWED = "only docker and podman can do this"
_PROFILES = {"seccompProfile": "seccomp=unconfined", "appArmorProfile": "apparmor=unconfined"}


def pod_sharing(spec: Part, security: Part) -> dict[str, Any]:
    config = spec.part("dnsConfig")
    extra = [
        f"{name}:{each.text('ip') or ''}" for each in spec.parts("hostAliases") for name in each.texts("hostnames")
    ]
    found = filled(
        extra_hosts=extra,
        dns=config.texts("nameservers"),
        dns_search=config.texts("searches"),
        dns_options=[_resolver(each) for each in config.parts("options")],
        hostname=spec.text("hostname"),
        pid="host" if spec.flag("hostPID") else None,
        ipc="host" if spec.flag("hostIPC") else None,
        groups=security.texts("supplementalGroups"),
        sysctls={each.text("name") or "": each.text("value") or "" for each in security.parts("sysctls")},
        security_opt=_unconfined(security),
    )
    for part, keys in ((spec, ("hostAliases", "dnsConfig", "hostname", "hostPID", "hostIPC")),
                       (security, ("supplementalGroups", "sysctls"))):  # fmt: skip
        for key in keys:
            if part.peek(key):
                part.guess(key, _NARROWED)
    return found


def container_sharing(container: Part) -> dict[str, Any]:
    terminal, stays = container.flag("tty"), container.flag("stdin")
    if terminal:
        container.guess("tty", "standard input stays open without a terminal; `mandor exec -it` opens one")
    if stays:
        container.guess("stdin", _NARROWED)
    return filled(stdin=terminal or stays or None, security_opt=_unconfined(container.part("securityContext")))


def with_sharing(options: dict[str, Any], more: dict[str, Any]) -> dict[str, dict[str, Any]] | None:
    """Return the options by engine."""
    if more:
        return dict.fromkeys(DOCKERS, options | more)
    return dict.fromkeys(ENGINES, options) if options else None


def engines_of(tasks: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the engines that support all options of the tasks."""
    narrow = any(each.get("options") and ENGINES[-1] not in each["options"] for each in tasks.values())
    return DOCKERS if narrow else ENGINES


def _resolver(option: Part) -> str:
    value = option.text("value")
    return f"{option.text('name') or ''}:{value}" if value else option.text("name") or ""


def _unconfined(security: Part) -> list[str]:
    found = []
    for key, option in _PROFILES.items():
        profile: Any = security.peek(key)
        if isinstance(profile, Mapping) and profile.get("type") == "Unconfined":
            security.guess(key, _NARROWED)
            found.append(option)
    return found
