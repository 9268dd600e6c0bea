"""Converts Ingresses, with the annotations of ingress-nginx and cert-manager, into routes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mandor.importers.base import Options, check_isolation, filled, fitting_name
from mandor.importers.kubernetes.meta import ObjectMeta, read_meta
from mandor.importers.kubernetes.routes import RouteMaker, whole_path
from mandor.importers.kubernetes.shelf import place
from mandor.importers.part import Part
from mandor.lib.quantity import Seconds, Size
from mandor.model.route import TLS_AUTO, TLS_OFF

NGINX = "nginx.ingress.kubernetes.io/"
_ISSUERS = frozenset(
    {"cert-manager.io/cluster-issuer", "cert-manager.io/issuer", "certmanager.k8s.io/cluster-issuer"}
    | {"certmanager.k8s.io/issuer", "kubernetes.io/tls-acme"}
)
_GUARDS = frozenset(
    {"auth-type", "auth-secret", "auth-url", "auth-tls-secret", "whitelist-source-range", "allowlist-source-range"}
    | {"denylist-source-range", "satisfy", "auth-tls-verify-client"}
)
"""Annotations that keep clients away."""
_GUARDED = "routes do not check clients, so the application would be open to all"
_CLASSES = frozenset({"kubernetes.io/ingress.class", "ingressclass.kubernetes.io/is-default-class"})
_ALL_BELOW = re.compile(r"(?P<prefix>/[\w./-]*?)/?(?:\(/\|\$\)\(\.\*\)|/?\(\.\*\)|\(\.\*\))\$?")
"""A path with the rest of the path in its last group."""
_FULL_URL = re.compile(r"(?P<scheme>https?)://(?P<host>[^/:?#$]+)(?P<path>/[^?#$]*)?")
_UPSTREAMS = {"HTTP": "http", "GRPC": "h2", "AUTO_HTTP": "http"}
_TYPES = {"Prefix": "prefix", "Exact": "exact", "ImplementationSpecific": "prefix"}
Key = tuple[str, str, str, str]
"""Namespace, host, path and its match."""


@dataclass(slots=True)
class _Canary:
    part: Part
    meta: ObjectMeta
    annotations: "_Annotations"
    rules: list[tuple[Key, dict[str, Any]]]
    """Keys of routes, with the target that gets a share of their requests."""


@dataclass(slots=True)
class IngressReader:
    """Converts the Ingresses of all files; canaries change the routes of the Ingress that they accompany."""

    routes: RouteMaker
    options: Options
    found: dict[Key, dict[str, Any]] = field(default_factory=dict)
    canaries: list[_Canary] = field(default_factory=list)

    def read(self, part: Part) -> None:
        part.text("apiVersion"), part.text("kind")
        part.ignore("status")
        meta = read_meta(part, keeps=True)
        annotations = _Annotations(part, dict(meta.annotations), self.options)
        spec = part.part("spec")
        spec.drop("ingressClassName", "the gateways of the cluster serve all routes")
        secrets = _tls(spec)
        issued = annotations.issued()
        rules = annotations.rules()
        canary = annotations.flag("canary")
        shares: list[tuple[Key, dict[str, Any]]] = []
        for each in _rules(spec):
            target = _backend(self.routes, each.backend, meta, each.path_part)
            path = annotations.path(each.path, each.kind, each.path_part)
            key = place(meta.namespace), each.host, str(path["path"]), str(path.get("path_match", "prefix"))
            if target is None:
                continue
            if canary:
                shares.append((key, target))
                continue
            tls = _tls_of(each.host, secrets, spec, issued=issued)
            made = filled(host=each.host or None) | path | rules | filled(tls=tls)
            if tls == TLS_OFF:
                made.pop("https_redirect", None)
            if "redirect" not in made:
                made["to"] = [target]
            self.found[key] = self.routes.add(each.path_part, meta, made)
        if canary:
            self.canaries.append(_Canary(part, meta, annotations, shares))
        else:
            self._root(part, meta, annotations, secrets, spec, issued=issued)
            annotations.drop_rest()

    def _root(
        self,
        part: Part,
        meta: ObjectMeta,
        annotations: "_Annotations",
        secrets: dict[str, str],
        spec: Part,
        *,
        issued: bool,
    ) -> None:
        """Add the redirect of `/` that `app-root` asks for, for each host."""
        root = annotations.take("app-root")
        if root is None:
            return
        for host in dict.fromkeys(each.host for each in _rules(spec)):
            tls = _tls_of(host, secrets, spec, issued=issued)
            made = {"path": "/", "path_match": "exact", "redirect": {"path": root}} | filled(host=host or None, tls=tls)
            self.routes.add(part, meta, made)

    def finish(self) -> None:
        """Give canaries their share of the requests."""
        for canary in self.canaries:
            weight = canary.annotations.take("canary-weight")
            total = canary.annotations.take("canary-weight-total")
            header = canary.annotations.take("canary-by-header")
            value = canary.annotations.take("canary-by-header-value") or "always"
            if all(key not in self.found for key, _ in canary.rules):
                canary.part.drop_all("kind", "it is a canary, and no Ingress of these files has its host and path")
                continue
            for key, target in canary.rules:
                main = self.found.get(key)
                if main is None or "to" not in main:
                    canary.part.note(
                        "spec", "dropped", f"no other Ingress has the path {key[2]} of {key[1] or 'all hosts'}"
                    )
                    continue
                if header is not None:
                    copy = {name: each for name, each in main.items() if name not in {"kind", "name", "namespace"}}
                    self.routes.add(canary.part, canary.meta, copy | {"headers": {header: value}, "to": [dict(target)]})
                if weight is not None:
                    _share(canary, main, target, weight, total)
            canary.annotations.drop_rest()


def _share(canary: _Canary, main: dict[str, Any], target: dict[str, Any], weight: str, total: str | None) -> None:
    meta = canary.part.part("metadata")
    whole = total or "100"
    if not weight.isdecimal() or not whole.isdecimal() or not 0 <= int(weight) <= int(whole) <= 1000:
        raise meta.wrong("annotations", f"canary-weight is a number from 0 to {whole[:10]}")
    if int(weight) == 0:
        return
    kept = [{**each, "weight": int(whole) - int(weight)} for each in main["to"]]
    main["to"] = [each for each in kept if each["weight"]] + [{**target, "weight": int(weight)}]


@dataclass(frozen=True, slots=True)
class _Rule:
    host: str
    path: str
    kind: str
    backend: Part
    path_part: Part


def _rules(spec: Part) -> list[_Rule]:
    """Return the rules of an Ingress, the default backend as a rule for all hosts."""
    usual = [spec.part(key) for key in ("defaultBackend", "backend") if spec.peek(key)]
    found = [_Rule("", "/", "Prefix", each, each) for each in usual]
    for rule in spec.parts("rules"):
        host = (rule.text("host") or "").lower()
        for each in rule.part("http").parts("paths"):
            kind = each.text("pathType") or "ImplementationSpecific"
            if kind not in _TYPES:
                raise each.wrong("pathType", f"{kind[:40]!r} is none of {', '.join(_TYPES)}")
            found.append(_Rule(host, each.text("path") or "/", kind, each.part("backend"), each))
    return found


def _backend(routes: RouteMaker, backend: Part, meta: ObjectMeta, path: Part) -> dict[str, Any] | None:
    if "resource" in backend:
        backend.drop("resource", "a route leads to services only")
        return None
    if "serviceName" in backend:  # networking.k8s.io/v1beta1
        return routes.target(
            backend, meta, backend.text("serviceName") or "", backend.text("servicePort") or "", key="serviceName"
        )
    service = backend.part("service")
    port = service.part("port")
    number, name = port.text("number"), port.text("name")
    return routes.target(service, meta, service.text("name") or "", number or name or "")


def _tls(spec: Part) -> dict[str, str]:
    """Return the secret of each host, an empty name for a host whose secret is not named; `` stands for all hosts."""
    found: dict[str, str] = {}
    for each in spec.parts("tls"):
        secret = each.text("secretName") or ""
        for host in [host.lower() for host in each.texts("hosts")] or [""]:
            found[host] = secret
    return found


def _tls_of(host: str, secrets: dict[str, str], spec: Part, *, issued: bool) -> str:
    """Return `tls` of a route: `auto`, the name of a secret, or `off`."""
    wildcard = f"*.{host.partition('.')[2]}"
    named = next((secrets[each] for each in (host, wildcard, "") if each in secrets), None)
    if named is None:
        return TLS_OFF
    if host and (issued or not named):
        return TLS_AUTO
    return fitting_name(named, most=253) if named else TLS_OFF


@dataclass(slots=True)
class _Annotations:
    """The annotations of one Ingress; each is read, or reported."""

    part: Part
    values: dict[str, str]
    options: Options
    left: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.left = set(self.values)
        meta = self.part.part("metadata")
        meta.text_map("annotations")
        for key in sorted(self.left):
            if key.startswith(NGINX) and key.removeprefix(NGINX) in _GUARDS:
                check_isolation(
                    meta, "annotations", self.options, f"{key}: {_GUARDED}", "let the application check them"
                )

    def take(self, name: str, *, prefix: str = NGINX) -> str | None:
        """Return an annotation of ingress-nginx."""
        self.left.discard(prefix + name)
        return self.values.get(prefix + name)

    def flag(self, name: str) -> bool:
        return (self.take(name) or "").lower() == "true"

    def issued(self) -> bool:
        """Return whether the certificate is issued by ACME."""
        given = [key for key in _ISSUERS if self.values.get(key, "false").lower() != "false"]
        if given:
            self._guess(given[0], "certificates are issued by the ACME account of the cluster")
        self.left -= _ISSUERS
        return bool(given)

    def rules(self) -> dict[str, Any]:
        """Return the keys of the routes that annotations set."""
        found: dict[str, Any] = {}
        if (self.take("ssl-redirect") or "true").lower() == "false" and not self.flag("force-ssl-redirect"):
            found["https_redirect"] = False
        self.left.discard(f"{NGINX}force-ssl-redirect")
        size = self.take("proxy-body-size")
        if size is not None and size.strip("kKmMgG") != "0":
            found["body_limit"] = self._size(size)
        timeouts = filled(connect=self._seconds("proxy-connect-timeout"), response=self._seconds("proxy-read-timeout"))
        found |= filled(timeouts=timeouts, rate=self._rate(), redirect=self._redirect())
        protocol = (self.take("backend-protocol") or "HTTP").upper()
        if protocol not in _UPSTREAMS:
            self._drop("backend-protocol", f"instances are reached by HTTP without TLS, not by {protocol[:20]}")
        elif _UPSTREAMS[protocol] != "http":
            found["upstream"] = _UPSTREAMS[protocol]
        if (host := self.take("upstream-vhost")) is not None:
            found["rewrite"] = {"host": host.lower()}
        tries = self.take("proxy-next-upstream-tries")
        if tries is not None and tries.isdecimal() and 1 < int(tries) <= 11:
            found["retries"] = int(tries) - 1
        self.take("websocket-services")  # all routes pass WebSockets on
        return found

    def path(self, path: str, kind: str, part: Part) -> dict[str, Any]:
        """Return `path`, `path_match` and `rewrite` of a route."""
        target = self.take("rewrite-target")
        regex = self.flag("use-regex") or (target is not None and "$" in target) or (kind != "Exact" and "(" in path)
        if target is None:
            if regex and kind != "Exact":
                return {
                    "path": path.removesuffix("$") + ("" if path.endswith(("$", ".*", "(.*)")) else ".*"),
                    "path_match": "regex",
                }
            return {"path": path} | ({} if _TYPES[kind] == "prefix" else {"path_match": _TYPES[kind]})
        if "$" not in target:
            if kind == "Exact":
                return {"path": path, "path_match": "exact", "rewrite": {"path": target}}
            whole = {"path": path.removesuffix("$"), "path_match": "regex"} if regex else whole_path(path)
            return whole | {"rewrite": {"path": target}}
        below = _ALL_BELOW.fullmatch(path)
        replaced = re.fullmatch(r"(/[\w./-]*?)/?\$\d", target)
        if below is None or replaced is None:
            part.guess("path", f"rewrite-target {target[:60]} is not applied: write `rewrite` for its prefix")
            return {"path": path.removesuffix("$"), "path_match": "regex"}
        prefix, new = below["prefix"] or "/", replaced[1] or "/"
        return {"path": prefix} | ({"rewrite": {"path": new}} if new != prefix else {})

    def drop_rest(self) -> None:
        """Report the annotations without a counterpart."""
        for key in sorted(self.left):
            why = "the gateways of the cluster serve all routes" if key in _CLASSES else "it has no counterpart"
            self.part.part("metadata").note("annotations", "dropped", f"{key[:80]}: {why}")

    def _size(self, text: str) -> str | None:
        number, unit = text.strip()[:-1], text.strip()[-1:].lower()
        if not unit.isalpha():
            number, unit = text.strip(), ""
        if not number.isdecimal() or unit not in {"", "k", "m", "g"}:
            raise self.part.part("metadata").wrong("annotations", f"proxy-body-size {text[:20]!r} is not a size")
        return str(Size(int(number) * 1024 ** " kmg".index(unit or " ")))

    def _seconds(self, name: str) -> str | None:
        text = self.take(name)
        if text is None:
            return None
        number = text.removesuffix("s")
        if not number.isdecimal() or not 1 <= int(number) <= 86_400:
            raise self.part.part("metadata").wrong("annotations", f"{name} {text[:20]!r} is not a number of seconds")
        return str(Seconds(int(number)))

    def _rate(self) -> dict[str, Any] | None:
        for name, per in (("limit-rps", "1s"), ("limit-rpm", "1m")):
            text = self.take(name)
            if text is not None and text.isdecimal() and int(text) > 0:
                self._guess(name, "each gateway counts on its own, without a burst")
                return {"requests": int(text), "per": per}
        return None

    def _redirect(self) -> dict[str, Any] | None:
        for name, code in (("permanent-redirect", 301), ("temporal-redirect", 302)):
            target = self.take(name)
            if target is None:
                continue
            given = self.take(f"{name}-code")
            found = _FULL_URL.fullmatch(target)
            if found is None:
                self._drop(name, f"{target[:60]!r} is not a plain URL")
                continue
            return {
                "code": int(given) if given and given.isdecimal() else code,
                "scheme": found["scheme"],
                "host": found["host"].lower(),
            } | filled(path=found["path"])
        return None

    def _guess(self, name: str, text: str) -> None:
        key = name if "/" in name else NGINX + name
        self.part.part("metadata").guess("annotations", f"{key}: {text}")

    def _drop(self, name: str, text: str) -> None:
        self.part.part("metadata").note("annotations", "dropped", f"{NGINX}{name}: {text}")


def read_ingresses(parts: Sequence[Part], routes: RouteMaker, options: Options) -> None:
    """Convert all Ingresses."""
    reader = IngressReader(routes, options)
    for each in parts:
        reader.read(each)
    reader.finish()
