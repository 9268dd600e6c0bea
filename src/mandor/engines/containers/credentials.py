"""Who may pull from a registry: read from the file that `docker login` and `podman login` write."""

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
    """Where the two look, the most particular first."""
    home = Path(environ.get("HOME") or "/root")
    found = [Path(environ["REGISTRY_AUTH_FILE"])] if environ.get("REGISTRY_AUTH_FILE") else []
    if environ.get("XDG_RUNTIME_DIR"):
        found.append(Path(environ["XDG_RUNTIME_DIR"]) / "containers" / "auth.json")
    found.append(Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json")
    return found


def login_for(registry: str, files: Sequence[Path]) -> dict[str, str]:
    """In Docker's words; empty where nobody has logged in."""
    for path in files:
        entry = _entries(path).get(registry) or (_entries(path).get(HUB) if registry == HUB_HOST else None)
        login = _login(entry, registry) if isinstance(entry, dict) else None
        if login:
            return login
    return {}


def header_for(registry: str, files: Sequence[Path]) -> dict[str, str]:
    """The header that goes with a pull over Docker's API."""
    login = login_for(registry, files)
    return {"X-Registry-Auth": base64.urlsafe_b64encode(msgspec.json.encode(login)).decode()} if login else {}


def _entries(path: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
        return {}
    entries = found.get("auths") if isinstance(found, dict) else None
    return entries if isinstance(entries, dict) else {}


def _login(entry: dict[str, Any], registry: str) -> dict[str, str] | None:
    if entry.get("identitytoken"):
        return {"identitytoken": str(entry["identitytoken"]), "serveraddress": registry}
    try:
        name, colon, password = base64.b64decode(str(entry.get("auth") or "")).decode().partition(":")
    except ValueError:
        return None
    if not colon:
        return None
    return {"username": name, "password": password, "serveraddress": registry}
