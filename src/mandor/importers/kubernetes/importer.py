"""Reads Kubernetes files and converts their objects."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mandor.errors import Invalid, TooLarge
from mandor.importers.base import Imported, Importer, Made, Options, Source
from mandor.importers.kubernetes.api import known_api, meant
from mandor.importers.kubernetes.endpoints import ServiceEndpoints
from mandor.importers.kubernetes.gateway_api import ROUTE_KINDS, read_gateway_api
from mandor.importers.kubernetes.ingress import read_ingresses
from mandor.importers.kubernetes.isolation import ISOLATION, check_policy
from mandor.importers.kubernetes.joined import JOINED_KINDS, join
from mandor.importers.kubernetes.meta import drop_labels, read_meta
from mandor.importers.kubernetes.placement import PlacementReader
from mandor.importers.kubernetes.pod import NO_IDENTITY, PodReader
from mandor.importers.kubernetes.policy import POLICY_KINDS, read_policy
from mandor.importers.kubernetes.routes import RouteMaker
from mandor.importers.kubernetes.secret import read_secret
from mandor.importers.kubernetes.service import ServiceReader
from mandor.importers.kubernetes.shelf import ReferencedObjects, config_texts, place
from mandor.importers.kubernetes.work import WORK_KINDS, Work, read_work
from mandor.importers.kustomize import Kustomizer, is_kustomization
from mandor.importers.part import Ledger, Part
from mandor.lib.yaml12 import Malformed, Parsed, load_all
from mandor.model.manifest import OBJECTS_MOST

_KEYS = re.compile(r"^(\"?apiVersion\"?|\"?kind\"?)\s*:", re.MULTILINE)
_JSON_KEYS = ('"apiVersion"', '"kind"')

BYTES_MOST = 16 << 20
"""Bytes of one file: rendered charts are large."""
NODES_MOST = 1_000_000
"""Values of one file."""
WITHOUT = {
    "IngressClass": "the gateways of the cluster serve all routes",
    "GatewayClass": "the gateways of the cluster serve all routes",
    "TLSRoute": "a gateway ends TLS: it does not pass TLS through",
    "UDPRoute": "a gateway cannot route UDP; publish the port on the node",
    "ReferenceGrant": "a route leads to services of its own namespace",
    "BackendTLSPolicy": "instances are reached without TLS",
    "ServiceAccount": NO_IDENTITY,
    "KubeSchedulerConfiguration": "it is a setting of the server",
}
"""Kinds without a counterpart, and the reason."""


@dataclass(slots=True)
class _Pile:
    """The objects of all files, grouped by how they are converted."""

    works: list[tuple[Part, str]] = field(default_factory=list)
    joined: list[tuple[Part, str]] = field(default_factory=list)
    services: list[Part] = field(default_factory=list)
    endpoints: ServiceEndpoints = field(default_factory=ServiceEndpoints)
    ingresses: list[Part] = field(default_factory=list)
    gateways: list[Part] = field(default_factory=list)
    routes: list[tuple[Part, str]] = field(default_factory=list)
    policies: list[tuple[Part, str]] = field(default_factory=list)
    configs: list[tuple[Part, str, str]] = field(default_factory=list)
    """ConfigMaps with namespace and name."""
    secrets: list[Made] = field(default_factory=list)


class KubernetesImporter(Importer):
    name: ClassVar[str] = "kubernetes"
    title: ClassVar[str] = "Kubernetes"

    def detect(self, text: str, name: str) -> bool:
        if is_kustomization(name, text):
            return True
        if text.lstrip()[:1] == "{":
            return all(key in text for key in _JSON_KEYS)
        return len({match[1].strip('"') for match in _KEYS.finditer(text)}) == 2

    def read(self, files: Sequence[Source], options: Options) -> Imported:
        ledger = Ledger()
        documents: list[tuple[str, Sequence[Parsed]]] = []
        for file in files:
            if is_kustomization(file.name, file.text):
                documents += Kustomizer(ledger, options).render(file.name, file.text)
            else:
                documents.append((file.name, _documents(file)))
        return self.read_documents(documents, options, ledger)

    def read_documents(
        self, files: Sequence[tuple[str, Sequence[Parsed]]], options: Options, ledger: Ledger | None = None
    ) -> Imported:
        """Convert the documents of some files, given by file name."""
        shelf, pile = ReferencedObjects(), _Pile()
        ledger = ledger or Ledger()
        for name, documents in files:
            for part in _objects(ledger, name, documents):
                if part.peek("kind") in ISOLATION:
                    check_policy(part, options)
                else:
                    _sort(part, pile, shelf)
        pods = PodReader(shelf, PlacementReader())
        works = _named_apart([read_work(part, kind, pods) for part, kind in pile.works])
        services = ServiceReader(works, pile.endpoints)
        for part in pile.services:
            services.read(part)
        pile.endpoints.drop_rest()
        routes = RouteMaker(services.found)
        read_ingresses(pile.ingresses, routes, options)
        read_gateway_api(pile.gateways, pile.routes, routes)
        for part, kind in pile.joined:
            join(part, kind, works)
        made = [_made(part, manifest) for part, kind in pile.policies if (manifest := read_policy(part, kind))]
        made += pile.secrets
        made += [_made(each.part, each.manifest) for each in works]
        made += services.made
        made += routes.made
        for part, namespace, name in pile.configs:
            if ("ConfigMap", namespace, name) not in shelf.used:
                part.drop_all("kind", "no object of these files uses it")
        return Imported(tuple(made), ledger.report())


def _made(part: Part, manifest: dict[str, Any]) -> Made:
    return Made(manifest, part.file, part.line)


def _objects(ledger: Ledger, file: str, documents: Sequence[Parsed]) -> Iterator[Part]:
    """Return each object of a file; a `List` counts as its items."""
    count = 0
    for document in documents:
        part = ledger.open(document.value, file, "", document.line)
        for each in _items(part):
            count += 1
            if count > OBJECTS_MOST:
                raise TooLarge(f"at most {OBJECTS_MOST} objects are allowed", file=file, line=each.line)
            yield each


def _documents(file: Source) -> list[Parsed]:
    try:
        return load_all(file.text, bytes_most=BYTES_MOST, nodes_most=NODES_MOST)
    except Malformed as error:
        templates = "render the templates first: `helm template`" if "{{" in file.text else None
        kind = TooLarge if error.over else Invalid
        raise kind(error.message, hint=templates or error.hint, file=file.name, line=error.line) from None


def _items(part: Part) -> Iterator[Part]:
    kind = part.peek("kind")
    if not isinstance(kind, str):
        raise part.wrong("kind", "an object needs a kind: `kind: Deployment`")
    if not kind.endswith("List") or "items" not in part:
        yield part
        return
    part.text("apiVersion"), part.text("kind")
    part.ignore("metadata")
    for each in part.parts("items"):
        if "kind" not in each:
            each.source.set("kind", kind.removesuffix("List"), each.line)
        yield from _items(each)


def _sort(part: Part, pile: _Pile, shelf: ReferencedObjects) -> None:
    kind = part.peek("kind")
    if not known_api(part, kind):
        part.drop_all("kind", f"there is no {kind} of {str(part.peek('apiVersion'))[:60]} here")
        return
    meta = part.peek("metadata")
    given = meta if isinstance(meta, dict) else {}
    namespace, name = place(str(given.get("namespace") or "")), str(given.get("name") or "")
    if kind in WORK_KINDS:
        pile.works.append((part, kind))
    elif kind == "Service":
        pile.services.append(part)
    elif kind in {"Endpoints", "EndpointSlice"}:
        pile.endpoints.read(part, kind)
    elif kind == "Ingress":
        pile.ingresses.append(part)
    elif kind == "Gateway":
        pile.gateways.append(part)
    elif kind in ROUTE_KINDS:
        pile.routes.append((part, kind))
    elif kind in JOINED_KINDS:
        pile.joined.append((part, kind))
    elif kind in POLICY_KINDS:
        pile.policies.append((part, kind))
        if kind == "PersistentVolumeClaim":
            shelf.claims[namespace, name] = part
    elif kind == "ConfigMap":
        part.text("apiVersion"), part.text("kind")
        read_meta(part)
        drop_labels(part)
        shelf.configs[namespace, name] = config_texts(part)
        pile.configs.append((part, namespace, name))
    elif kind == "Secret":
        manifest = read_secret(part)
        shelf.secrets[namespace, name] = frozenset(manifest["data"] if manifest else ())
        if manifest is not None:
            pile.secrets.append(_made(part, manifest))
    else:
        told_why = WITHOUT.get(kind)
        part.drop_all("kind", told_why or f"there is no {kind} here", "" if told_why else meant(part, kind))


def _named_apart(works: list[Work]) -> list[Work]:
    """Rename objects of different kinds with the same name: workloads share one namespace of names."""
    taken: dict[tuple[str, str], Work] = {}
    for each in works:
        name, suffix = each.manifest["name"], f"-{each.kind.lower()}"
        other = taken.get((place(each.namespace), name))
        if other is not None:
            if other.kind == each.kind:
                raise each.part.wrong("metadata", f"{each.kind} {each.name} is defined twice")
            each.manifest["name"] = name = name[: 48 - len(suffix)] + suffix
            each.part.part("metadata").guess("name", f"it is called {name} here: there is a {other.kind} of its name")
        taken[place(each.namespace), name] = each
    return works
