"""Converts the Gateway API: HTTPRoutes, GRPCRoutes and TCPRoutes, with the listeners of their Gateways, into routes."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mandor.importers.base import filled, fitting_name
from mandor.importers.compose.amounts import seconds_of
from mandor.importers.kubernetes.meta import ObjectMeta, drop_labels, read_meta
from mandor.importers.kubernetes.routes import RouteMaker, whole_path
from mandor.importers.kubernetes.shelf import place
from mandor.importers.part import Part
from mandor.lib.quantity import Seconds
from mandor.model.route import TLS_AUTO, TLS_OFF

ROUTE_KINDS = ("HTTPRoute", "GRPCRoute", "TCPRoute")
_ISSUERS = ("cert-manager.io/cluster-issuer", "cert-manager.io/issuer")
_PORTS = {"HTTP": 80, "HTTPS": 443}
_NO_HEADERS = "a route does not change headers"


@dataclass(frozen=True, slots=True)
class _Listener:
    name: str
    port: int
    protocol: str
    host: str
    secret: str
    """Secret with its certificate; `auto`: ACME issues it."""


@dataclass(slots=True)
class GatewayReader:
    """Converts the Gateways and routes of all files."""

    routes: RouteMaker
    listeners: dict[tuple[str, str], list[_Listener]] = field(default_factory=dict)

    def read_gateway(self, part: Part) -> None:
        part.text("apiVersion"), part.text("kind")
        part.ignore("status")
        meta = read_meta(part, keeps=True)
        issued = any(key in meta.annotations for key in _ISSUERS)
        metadata = part.part("metadata")
        for key in meta.annotations:
            if key in _ISSUERS:
                metadata.guess("annotations", f"{key}: certificates are issued by the ACME account of the cluster")
            else:
                metadata.note("annotations", "dropped", f"{key[:80]}: it has no counterpart")
        drop_labels(part)
        spec = part.part("spec")
        spec.drop("gatewayClassName", "the gateways of the cluster serve all routes")
        for key in ("addresses", "infrastructure", "backendTLS", "allowedListeners"):
            spec.drop(key, "gateways are not configured by files")
        found = [_listener(each, issued=issued) for each in spec.parts("listeners")]
        self.listeners[place(meta.namespace), meta.name] = found

    def read_route(self, part: Part, kind: str) -> None:
        part.text("apiVersion"), part.text("kind")
        part.ignore("status")
        meta = read_meta(part)
        drop_labels(part)
        spec = part.part("spec")
        listeners = list(self._parents(spec, meta))
        if kind == "TCPRoute":
            self._tcp(part, spec, meta, listeners)
            return
        hosts = [host.lower() for host in spec.texts("hostnames")]
        hosts = hosts or list(dict.fromkeys(each.host for each in listeners)) or [""]
        for rule in spec.parts("rules"):
            self._rule(rule, meta, hosts, listeners, kind)

    def _parents(self, spec: Part, meta: ObjectMeta) -> Iterator[_Listener]:
        """Return the listeners of the route's Gateways."""
        for each in spec.parts("parentRefs"):
            name, section, port = each.text("name") or "", each.text("sectionName"), each.whole("port")
            for key in ("group", "kind"):
                each.ignore(key)
            found = self.listeners.get((place(each.text("namespace") or meta.namespace), name))
            if found is None:
                each.guess(
                    "name", f"the Gateway {name[:60]} is not in these files: HTTPS is off", "write `tls` for HTTPS"
                )
            for listener in found or ():
                if section in {None, listener.name} and port in {None, listener.port}:
                    yield listener

    # HTTP and gRPC.

    def _rule(self, rule: Part, meta: ObjectMeta, hosts: list[str], listeners: Sequence[_Listener], kind: str) -> None:
        rule.ignore("name")
        for key in ("sessionPersistence", "retry"):
            rule.drop(key, "write `affinity` of the service, or `retries` of the route")
        limits = rule.part("timeouts")
        response = _duration(limits, "backendRequest") or _duration(limits, "request")
        usual = filled(timeouts=filled(response=response), upstream="h2" if kind == "GRPCRoute" else None)
        targets = _targets(self.routes, rule, meta)
        matches = rule.parts("matches")
        found = [_grpc_match(each) if kind == "GRPCRoute" else _match(each) for each in matches] if matches else [{}]
        for match in found:
            if match is None:
                continue
            action = _action(rule, match, targets)
            if action is None:
                rule.note("backendRefs", "dropped", "the rule has no service and no redirect")
                continue
            for host in hosts:
                self.routes.add(rule, meta, filled(host=host or None) | match | usual | action | _tls(host, listeners))

    def _tcp(self, part: Part, spec: Part, meta: ObjectMeta, listeners: Sequence[_Listener]) -> None:
        ports = [each.port for each in listeners if each.protocol == "TCP"]
        if not ports:
            part.drop_all("kind", "no Gateway of these files has a listener for TCP with its name")
            return
        for rule in spec.parts("rules"):
            rule.ignore("name")
            if targets := _targets(self.routes, rule, meta):
                for port in ports:
                    self.routes.add(rule, meta, {"protocol": "tcp", "port": port, "to": targets})


def _listener(part: Part, *, issued: bool) -> _Listener:
    tls = part.part("tls")
    mode = tls.text("mode") or "Terminate"
    if mode != "Terminate":
        tls.drop("mode", "a gateway ends TLS: it does not pass it through")
    tls.drop("options", "TLS has no options")
    tls.drop("frontendValidation", "certificates of clients are not checked")
    secrets = []
    for each in tls.parts("certificateRefs"):
        for key in ("group", "kind"):
            each.ignore(key)
        each.drop("namespace", "the secret is in the namespace of the route")
        secrets.append(fitting_name(each.text("name") or "", most=253))
    part.drop("allowedRoutes", "routes of all namespaces are served")
    port = part.whole("port")
    if port is None or not 1 <= port <= 65535:
        raise part.wrong("port", "a listener has a port from 1 to 65535")
    protocol = (part.text("protocol") or "HTTP").upper()
    if protocol in _PORTS and port != _PORTS[protocol]:
        part.guess("port", f"the gateways of the cluster have one port for {protocol}")
    return _Listener(
        name=part.text("name") or "",
        port=port,
        protocol=protocol,
        host=(part.text("hostname") or "").lower(),
        secret=TLS_AUTO if issued else next(iter(secrets), ""),
    )


def _tls(host: str, listeners: Sequence[_Listener]) -> dict[str, Any]:
    """Return `tls` and `https_redirect` of a route that these listeners serve."""
    fitting = [each for each in listeners if not each.host or not host or _covers(each.host, host)]
    secure = [each for each in fitting if each.protocol == "HTTPS"]
    secret = next((each.secret for each in secure if each.secret), "")
    if not secret or (secret == TLS_AUTO and not host):
        return {"tls": TLS_OFF}
    plain = any(each.protocol == "HTTP" for each in fitting)
    return {"tls": secret} | ({"https_redirect": False} if plain else {})


def _covers(pattern: str, host: str) -> bool:
    return pattern == host or (pattern.startswith("*.") and host.endswith(pattern[1:]))


def _match(part: Part) -> dict[str, Any] | None:
    """Return the keys of a route for one match; None: it has a condition that a route does not have."""
    path = part.part("path")
    kind, value = path.text("type") or "PathPrefix", path.text("value") or "/"
    kinds = {"PathPrefix": "prefix", "Exact": "exact", "RegularExpression": "regex"}
    if kind not in kinds:
        raise path.wrong("type", f"{kind[:40]!r} is none of {', '.join(kinds)}")
    headers = _headers(part)
    if part.peek("queryParams"):
        part.drop("queryParams", "routes have no conditions on parameters, so this match is left out")
        return None
    if headers is None:
        return None
    method = part.text("method")
    if kind == "PathPrefix" and value != "/":
        value = value.rstrip("/")
    found: dict[str, Any] = {"path": value} | ({} if kind == "PathPrefix" else {"path_match": kinds[kind]})
    return found | filled(headers=headers, methods=[method] if method else None)


def _grpc_match(part: Part) -> dict[str, Any] | None:
    method = part.part("method")
    service, name = method.text("service") or "", method.text("method") or ""
    headers = _headers(part)
    if (method.text("type") or "Exact") != "Exact" or (name and not service):
        method.drop("type", "a method is matched by its service and exact name, so this match is left out")
        return None
    if headers is None:
        return None
    path = {"path": f"/{service}/{name}", "path_match": "exact"} if name else {"path": f"/{service}"}
    return path | filled(headers=headers)


def _headers(part: Part) -> dict[str, str] | None:
    """Return the headers of a match; None: one cannot be kept, so the match must be left out."""
    found: dict[str, str] = {}
    for each in part.parts("headers"):
        name, value = each.text("name") or "", each.text("value") or ""
        if (each.text("type") or "Exact") != "Exact":
            each.drop("type", "a header is matched by its exact value, so this match is left out")
            return None
        found.setdefault(name, value)
    return found


def _targets(routes: RouteMaker, rule: Part, meta: ObjectMeta) -> list[dict[str, Any]]:
    found: dict[tuple[str, Any], dict[str, Any]] = {}
    for each in rule.parts("backendRefs"):
        other = each.text("namespace")
        each.ignore("group")
        if (each.text("kind") or "Service") != "Service" or (other and place(other) != place(meta.namespace)):
            each.drop_all("name", "a route leads to Services of its own namespace")
            continue
        each.drop("filters", _NO_HEADERS)
        target = routes.target(each, meta, each.text("name") or "", each.text("port") or "")
        weight = each.whole("weight")
        if weight is not None:
            if not 0 <= weight <= 1000:
                raise each.wrong("weight", "a weight is a number from 0 to 1000")
            target["weight"] = weight
        found.setdefault((target["service"], target.get("port")), target)
    return [each for each in found.values() if each.get("weight") != 0]


def _action(rule: Part, match: dict[str, Any], targets: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return `to`, `redirect` and `rewrite` of a rule, and a path that fits; None: it answers nothing."""
    found: dict[str, Any] = {}
    for each in rule.parts("filters"):
        kind = each.text("type") or ""
        if kind == "RequestRedirect":
            given = each.part("requestRedirect")
            given.drop("port", "a redirect leads to the usual port")
            path, kept = _new_path(given, match)
            code = given.whole("statusCode", 302)
            found |= kept
            found["redirect"] = filled(
                scheme=given.text("scheme"), host=(given.text("hostname") or "").lower() or None, path=path, code=code
            )
            found["redirect"] = {key: value for key, value in found["redirect"].items() if value != ""}
        elif kind == "URLRewrite":
            given = each.part("urlRewrite")
            path, kept = _new_path(given, match)
            found |= kept
            rewrite = {key: value for key, value in (("path", path), ("host", given.text("hostname"))) if value}
            found |= filled(rewrite=rewrite)
        else:
            each.drop_rest(_NO_HEADERS if "Header" in kind else f"{kind[:40]} is not supported")
    if "redirect" in found:
        found.pop("rewrite", None)
        return found
    return found | {"to": targets} if targets else None


def _new_path(part: Part, match: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Return the new path of a redirect or rewrite, and the keys of a route in which it replaces the right part."""
    path = part.part("path")
    kind, full, prefix = path.text("type"), path.text("replaceFullPath"), path.text("replacePrefixMatch")
    if kind == "ReplaceFullPath" and full is not None:
        return full, whole_path(match.get("path", "/")) if "path_match" not in match else {}
    if kind == "ReplacePrefixMatch" and prefix is not None:
        return prefix or "/", {}
    return None, {}


def _duration(part: Part, key: str) -> str | None:
    text = part.text(key)
    if text is None:
        return None
    if not re.fullmatch(r"(\d{1,5}(h|m|s|ms)){1,4}", text):
        raise part.wrong(key, f"{text[:40]!r} is not a time such as 10s")
    seconds = seconds_of(text)
    return str(Seconds(seconds)) if seconds else None


def read_gateway_api(gateways: Sequence[Part], routes: Sequence[tuple[Part, str]], maker: RouteMaker) -> None:
    """Convert all Gateways and their routes."""
    reader = GatewayReader(maker)
    for each in gateways:
        reader.read_gateway(each)
    for part, kind in routes:
        reader.read_route(part, kind)
