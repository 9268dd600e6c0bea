"""Logins for registries, read from pull secrets and from the files that `docker login` and `podman login` write."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

HUB = "https://index.docker.io/v1/"
HUB_HOST = "docker.io"


def default_files(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Return the files where docker and podman look for logins, the most specific first."""
    home = Path(environ.get("HOME") or "/root")
    found = [Path(environ["REGISTRY_AUTH_FILE"])] if environ.get("REGISTRY_AUTH_FILE") else []
    if environ.get("XDG_RUNTIME_DIR"):
        found.append(Path(environ["XDG_RUNTIME_DIR"]) / "containers" / "auth.json")
    found.append(Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json")
    return found


DOCKER_CONFIG_KEYS = (".dockerconfigjson", "dockerconfigjson", "config.json")


def given_login(registry: str, text: str) -> dict[str, str]:
    """Return the login for this registry from a pull secret, in Docker's format; empty: the secret has none.

    A pull secret has `username`, `password` and `registry` (absent: Docker Hub), or a whole Docker configuration.
    """
    try:
        values = msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        return {}
    for key in DOCKER_CONFIG_KEYS:
        if key in values:
            entries = _auths(values[key].encode())
            entry = entries.get(registry) or (entries.get(HUB) if registry == HUB_HOST else None)
            return (_login(entry, registry) if isinstance(entry, dict) else None) or {}
    host = values.get("registry", HUB_HOST).removeprefix("https://").removeprefix("http://").partition("/")[0]
    host = HUB_HOST if host in {"index.docker.io", "registry-1.docker.io"} else host
    if host != registry or not values.get("username"):
        return {}
    return {"username": values["username"], "password": values.get("password", ""), "serveraddress": registry}


def login_for(registry: str, files: Sequence[Path], given: str = "") -> dict[str, str]:
    """Return the login in Docker's format, from the pull secret first; empty: there is none."""
    if given and (found := given_login(registry, given)):
        return found
    for path in files:
        entry = _entries(path).get(registry) or (_entries(path).get(HUB) if registry == HUB_HOST else None)
        login = _login(entry, registry) if isinstance(entry, dict) else None
        if login:
            return login
    return {}


def header_for(registry: str, files: Sequence[Path], given: str = "") -> dict[str, str]:
    """Return the header with the login for a pull over Docker's API."""
    login = login_for(registry, files, given)
    return {"X-Registry-Auth": base64.urlsafe_b64encode(msgspec.json.encode(login)).decode()} if login else {}


def _entries(path: Path) -> dict[str, Any]:
    try:
        return _auths(path.read_bytes())
    except OSError:
        return {}


def _auths(data: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return {}
    entries = found.get("auths") if isinstance(found, dict) else None
    return entries if isinstance(entries, dict) else {}


def _login(entry: dict[str, Any], registry: str) -> dict[str, str] | None:
    if entry.get("identitytoken"):
        return {"identitytoken": str(entry["identitytoken"]), "serveraddress": registry}
    if entry.get("username") and not entry.get("auth"):
        return {
            "username": str(entry["username"]),
            "password": str(entry.get("password", "")),
            "serveraddress": registry,
        }
    try:
        name, colon, password = base64.b64decode(str(entry.get("auth") or "")).decode().partition(":")
    except ValueError:
        return None
    if not colon:
        return None
    return {"username": name, "password": password, "serveraddress": registry}
