"""ConfigMaps and Secrets that a Kustomization generates from files and literals, with a hash in their names."""

import base64
import hashlib
import json
from typing import Any

_LETTERS = str.maketrans("013ae", "ghkmt")
"""Kustomize replaces digits and letters of the hash, so that it spells no words."""


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def content_hash(kind: str, data: dict[str, Any], name: str) -> str:
    """Return the suffix that Kustomize gives to the name of a generated object."""
    content: dict[str, Any] = {"kind": kind, "name": name, "data": data.get("data") or ""}
    if kind == "Secret":
        content["type"] = data.get("type") or ""
    if data.get("binaryData"):
        content["binaryData"] = data["binaryData"]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for sign in "<>&":  # as Go writes JSON
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    text = text.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return hashlib.sha256(text.encode()).hexdigest()[:10].translate(_LETTERS)


def read_env(text: str) -> dict[str, str]:
    """Return the pairs of an env file; lines that start with `#` are comments."""
    found = {}
    for line in text.splitlines():
        bare = line.strip()
        if bare and not bare.startswith("#"):
            name, _, value = bare.partition("=")
            found[name.strip()] = value
    return found


def literal(text: str) -> tuple[str, str]:
    """Return name and value; one pair of quotes around the value is removed."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ValueError(f"{text[:40]!r} is not NAME=VALUE")
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1]
    return name, value
