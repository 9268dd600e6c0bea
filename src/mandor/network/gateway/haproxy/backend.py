"""Translates one route into a backend of HAProxy, without its servers. Pure."""

from mandor.model.route import RouteSpec
from mandor.network.gateway.base import GatewayRoute
from mandor.network.gateway.haproxy.word import constant, quoted
from mandor.network.gateway.routing import prefix_of

CLIENTS_MOST = "100k"
"""Clients that one rate limit, or one affinity, keeps track of; the oldest are forgotten beyond that."""
_BALANCE = {"round-robin": "roundrobin", "least": "leastconn", "hash": "source"}


def backend_lines(route: GatewayRoute, backend: str) -> list[str]:
    """Return the lines of an HTTP backend."""
    spec = route.spec
    lines, table = [], f"rate:{backend}"
    if spec.rate is not None:
        kind, size = ("ipv6", CLIENTS_MOST) if spec.rate.by == "client" else ("integer", "1")
        seconds = int(spec.rate.per)
        lines += [
            f"backend {table}",
            f"    stick-table type {kind} size {size} expire {2 * seconds}s store http_req_rate({seconds}s)",
        ]
    lines += [f"backend {backend}", *_balance(route), *_waits(spec)]
    if spec.rate is not None:
        key = "src" if spec.rate.by == "client" else "int(1)"
        lines += [
            f"    http-request track-sc0 {key} table {table}",
            f"    http-request deny deny_status 429 if {{ sc_http_req_rate(0,{table}) gt {spec.rate.requests} }}",
        ]
    if spec.body_limit is not None:
        lines += [
            '    http-request return status 411 content-type text/plain string "a body needs a length on this route"'
            " if { req.fhdr(transfer-encoding) -m found }",
            f"    http-request deny deny_status 413 if {{ req.body_size gt {int(spec.body_limit)} }}",
        ]
    if spec.redirect is not None:
        lines += _redirect(spec)
    if spec.rewrite is not None:
        lines += _rewrite(spec)
    return lines


def tcp_backend_lines(route: GatewayRoute, backend: str) -> list[str]:
    """Return the lines of a TCP backend."""
    spec = route.spec
    return [
        f"backend {backend}",
        "    mode tcp",
        *_balance(route),
        f"    timeout connect {_ms(float(spec.timeouts.connect))}",
        f"    timeout server {_ms(float(spec.timeouts.idle))}",
        *_retries(spec),
    ]


def _balance(route: GatewayRoute) -> list[str]:
    lines = [f"    balance {_BALANCE[route.balance]}"]
    if route.balance == "hash":
        lines.append("    hash-type consistent")
    if route.affinity_seconds:
        seconds = max(1, int(route.affinity_seconds))
        lines += [f"    stick-table type ipv6 size {CLIENTS_MOST} expire {seconds}s", "    stick on src"]
    return lines


def _waits(spec: RouteSpec) -> list[str]:
    return [
        f"    timeout connect {_ms(float(spec.timeouts.connect))}",
        f"    timeout server {_ms(float(spec.timeouts.response))}",
        f"    timeout tunnel {_ms(float(spec.timeouts.idle))}",
        *_retries(spec),
    ]


def _retries(spec: RouteSpec) -> list[str]:
    return [f"    retries {spec.retries}", "    option redispatch 1"] if spec.retries else []


def _ms(seconds: float) -> str:
    return f"{max(1, round(seconds * 1000))}ms"


def _rest(spec: RouteSpec) -> str:
    """Return the expression of what follows the matched prefix; empty if the whole path is replaced."""
    return f"path,bytes({len(prefix_of(spec.path).rstrip('/'))})" if spec.path_match == "prefix" else ""


def _redirect(spec: RouteSpec) -> list[str]:
    to = spec.redirect
    assert to is not None
    host = constant(to.host) or ("%[var(txn.host)]" if to.scheme else "%[req.fhdr(host)]")
    lines = []
    schemes = {to.scheme: ""} if to.scheme else {"https": " { ssl_fc }", "http": " !{ ssl_fc }"}
    path, rest = constant(to.path), _rest(spec) if to.path else ""
    if rest:
        lines.append(f"    http-request set-var(txn.rest) {rest}")
        base = path.rstrip("/")
        # The prefix alone is replaced by the whole new path.
        paths = {f"{base}%[var(txn.rest)]": " { var(txn.rest) -m len gt 0 }", path: " !{ var(txn.rest) -m len gt 0 }"}
    else:
        paths = {path or "%[path]": ""}
    for scheme, secure in schemes.items():
        for target, matched in paths.items():
            for query, given in (("?%[query]", " { query -m len gt 0 }"), ("", "")):
                conditions = f"{secure}{matched}{given}"
                location = quoted(f"{scheme}://{host}{target}{query}")
                rule = f"    http-request redirect code {to.code} location {location}"
                lines.append(f"{rule} if{conditions}" if conditions else rule)
    return lines


def _rewrite(spec: RouteSpec) -> list[str]:
    to = spec.rewrite
    assert to is not None
    lines = []
    if to.host:
        lines.append(f"    http-request set-header Host {quoted(constant(to.host))}")
    if to.path:
        rest, path = _rest(spec), constant(to.path)
        if not rest:
            return [*lines, f"    http-request set-path {quoted(path)}"]
        lines += [
            f"    http-request set-var(txn.rest) {rest}",
            f"    http-request set-path {quoted(path.rstrip('/') + '%[var(txn.rest)]')}"
            " if { var(txn.rest) -m len gt 0 }",
            f"    http-request set-path {quoted(path)} if !{{ var(txn.rest) -m len gt 0 }}",
        ]
    return lines
