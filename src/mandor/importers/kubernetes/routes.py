"""Manifests of routes, from the rules of Ingresses and of the Gateway API."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mandor.errors import MandorError
from mandor.importers.base import Made, filled, fitting_name
from mandor.importers.kubernetes.meta import ObjectMeta
from mandor.importers.kubernetes.service import ConvertedService
from mandor.importers.kubernetes.shelf import place
from mandor.importers.part import Part
from mandor.lib.yaml12 import dump
from mandor.model.manifest import load_files

_NAME_MOST = 63


@dataclass(slots=True)
class RouteMaker:
    """Collects routes, each under a name of its own, and checks that a server accepts them."""

    services: Mapping[tuple[str, str], ConvertedService]
    made: list[Made] = field(default_factory=list)
    taken: set[tuple[str, str]] = field(default_factory=set)

    def add(self, part: Part, meta: ObjectMeta, spec: dict[str, Any]) -> dict[str, Any]:
        """Add a route named after its object; raise `Invalid` with the line of `part` for a spec that is not valid."""
        manifest = filled(kind="route", name=self._name(meta), namespace=meta.namespace or None) | spec
        try:
            load_files([(part.file, dump(manifest))])
        except MandorError as error:
            raise part.wrong(next(iter(part.keys()), "rules"), f"no route can be made of it: {error}") from None
        self.made.append(Made(manifest, part.file, part.line))
        return manifest

    def _name(self, meta: ObjectMeta) -> str:
        stem = fitting_name(meta.name, most=_NAME_MOST - 4)
        name, number = stem, 1
        while (place(meta.namespace), name) in self.taken:
            number += 1
            name = f"{stem}-{number}"
        self.taken.add((place(meta.namespace), name))
        return name

    def target(self, part: Part, meta: ObjectMeta, service: str, port: str, *, key: str = "name") -> dict[str, Any]:
        """Return the entry of `to` for a service and one of its ports, given by name or number."""
        known = self.services.get((place(meta.namespace), service))
        if known is None:
            part.guess(key, f"there must be a service {service[:60]}: it is not in these files")
        if not service:
            raise part.wrong(key, "a backend has the name of a Service")
        named: int | str | None = None
        if port.isdecimal():
            named = int(port)
        elif port:
            named = known.names.get(port, fitting_name(port)) if known is not None else fitting_name(port)
        return {"service": known.name if known is not None else fitting_name(service, most=63)} | filled(port=named)


def whole_path(prefix: str) -> dict[str, Any]:
    """Return the keys of a route that matches the same paths as a prefix, and replaces the whole path."""
    stem = prefix.rstrip("/")
    return {"path": f"{re.escape(stem)}(/.*)?" if stem else "/.*", "path_match": "regex"}
