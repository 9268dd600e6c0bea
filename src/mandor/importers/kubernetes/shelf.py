"""What a file tells about the objects that others refer to: ConfigMaps, Secrets, claims, namespaces."""

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
    """The mappings in the list under a key, only looked at; what is no such list has none."""
    found = source.get(key)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def containers_of(spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*maps_in(spec, "initContainers"), *maps_in(spec, "containers")]


def mounts_of(spec: Mapping[str, Any]) -> list[Any]:
    """The names of the volumes that containers of a pod mount, each as often as it is mounted."""
    return [mount.get("name") for each in containers_of(spec) for mount in maps_in(each, "volumeMounts")]


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose pod it is: what it can say about itself."""

    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    account: str = "default"
    containers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """As they are written, by name."""
    host_network: bool = False
    """Its address is its node's."""


def place(namespace: str) -> str:
    """Whoever names no namespace is where those are who say `default`."""
    return namespace or DEFAULT_NAMESPACE


@dataclass(slots=True)
class Shelf:
    configs: dict[Named, dict[str, str]] = field(default_factory=dict)
    """The texts of ConfigMaps."""
    secrets: dict[Named, frozenset[str]] = field(default_factory=dict)
    """The keys of Secrets; values stay where they are."""
    claims: dict[Named, Part] = field(default_factory=dict)
    namespaces: dict[str, dict[str, str]] = field(default_factory=dict)
    """Labels of namespaces."""
    used: set[tuple[str, str, str]] = field(default_factory=set)
    """(kind, namespace, name) of what somebody referred to."""

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
        """Its keys."""
        return self.secrets.get((place(namespace), name))

    def labelled(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(name for name, found in self.namespaces.items() if labels.items() <= found.items())


def config_texts(part: Part) -> dict[str, str]:
    """`data`, and of `binaryData` what is text."""
    part.ignore("immutable")  # its texts go along with their tasks
    return part.text_map("data") | decoded(part, "binaryData")


def secret_texts(part: Part) -> dict[str, str]:
    """Of `data` what is text, and `stringData`, which counts more."""
    return decoded(part, "data") | part.text_map("stringData")


def decoded(part: Part, key: str) -> dict[str, str]:
    """Texts that stand there in base64; what is none is told, by its name alone."""
    found = {}
    for name, encoded in part.text_map(key).items():
        try:
            found[name] = base64.b64decode("".join(encoded.split()), validate=True).decode("utf-8")
        except (binascii.Error, ValueError):
            part.guess(key, f"{name} is no text in base64, and is left out")
    return found
