"""Objects that other objects refer to: ConfigMaps, Secrets, claims."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mandor.importers.part import Part
from mandor.model.manifest import DEFAULT_NAMESPACE

Named = tuple[str, str]
"""(namespace, name)"""


def maps_in(source: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the mappings in the list under a key without accounting for them; empty if it is not such a list."""
    found = source.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def containers_of(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*maps_in(spec, "initContainers"), *maps_in(spec, "containers")]


def mounts_of(spec: Mapping[str, Any]) -> list[Any]:
    """Return the names of the volumes that containers of a pod mount, once per mount."""
    return [mount.get("name") for each in containers_of(spec) for mount in maps_in(each, "volumeMounts")]


@dataclass(frozen=True, slots=True)
class Owner:
    """The owner of a pod, as far as its containers can refer to it."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    account: str = "default"
    containers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Containers as written, by name."""
    host_network: bool = False
    """The pod uses the network of its node."""


def place(namespace: str) -> str:
    """Return namespace and name; objects without a namespace are in `default`."""
    return namespace or DEFAULT_NAMESPACE


@dataclass(slots=True)
class ReferencedObjects:
    configs: dict[Named, dict[str, str]] = field(default_factory=dict)
    """Texts of ConfigMaps."""
    secrets: dict[Named, frozenset[str]] = field(default_factory=dict)
    """Keys of Secrets, without their values."""
    claims: dict[Named, Part] = field(default_factory=dict)
    used: set[tuple[str, str, str]] = field(default_factory=set)
    """Kind, namespace and name of referenced objects."""

    def config(self, namespace: str, name: str) -> dict[str, str] | None:
        found = self.configs.get((place(namespace), name))
        if found is not None:
            self.used.add(("ConfigMap", place(namespace), name))
        return found

    def claim(self, namespace: str, name: str) -> Part | None:
        found = self.claims.get((place(namespace), name))
        if found is not None:
            self.used.add(("PersistentVolumeClaim", place(namespace), name))
        return found

    def secret(self, namespace: str, name: str) -> frozenset[str] | None:
        """Return the keys of a Secret."""
        return self.secrets.get((place(namespace), name))


def config_texts(part: Part) -> dict[str, str]:
    """Return the texts of `data` and `binaryData`; binary values are left out."""
    part.ignore("immutable")  # its texts are copied into the tasks
    return part.text_map("data") | decoded(part, "binaryData")


def secret_texts(part: Part) -> dict[str, str]:
    """Return the texts of `data` and `stringData`; `stringData` overrides."""
    return decoded(part, "data") | part.text_map("stringData")


def decoded(part: Part, key: str) -> dict[str, str]:
    """Return the base64-decoded texts; values that are not text are reported by name only."""
    found = {}
    for name, encoded in part.text_map(key).items():
        try:
            found[name] = base64.b64decode("".join(encoded.split()), validate=True).decode("utf-8")
        except (binascii.Error, ValueError):
            part.guess(key, f"{name} is no text in base64, and is left out")
    return found
