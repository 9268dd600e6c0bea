"""Columns of routes in tables."""

from datetime import UTC, datetime
from typing import Any

Object = dict[str, Any]


def address(item: Object) -> str:
    """Return the URL of the route, or the port of a TCP route."""
    spec = item["spec"]
    if spec.get("protocol") == "tcp":
        return f"tcp:{spec['port']}"
    match = {"regex": "~", "exact": "="}.get(spec.get("path_match", ""), "")
    return f"{scheme(item)}://{spec.get('host') or '*'}{match}{spec.get('path', '/')}"


def scheme(item: Object) -> str:
    """Return `https` if the route has a certificate."""
    spec, certificate = item["spec"], item.get("status", {}).get("certificate") or {}
    tls = spec.get("tls") or ("auto" if spec.get("host") else "off")
    return "https" if tls not in {"auto", "off"} or (tls == "auto" and certificate.get("secret")) else "http"


def targets(item: Object) -> str:
    spec = item["spec"]
    several = len(spec.get("to", ())) > 1
    names = [
        each["service"]
        + (f":{each['port']}" if each.get("port") else "")
        + (f" ({each.get('weight', 100)})" if several else "")
        for each in spec.get("to", ())
    ]
    return ", ".join(names) or "redirect"


def state(item: Object) -> str:
    """Return `Ready`, or the reason of the first condition that does not hold."""
    conditions = item.get("status", {}).get("conditions", {})
    failed = [each["reason"] for each in conditions.values() if not each["ok"]]
    return failed[0] if failed else "Ready" if conditions else "-"


def message(item: Object) -> str:
    conditions = item.get("status", {}).get("conditions", {})
    return next((each.get("message", "") for each in conditions.values() if not each["ok"]), "") or "-"


def certificate(item: Object) -> str:
    """Return the secret with the certificate, or `ordered` while there is none yet."""
    spec, state = item["spec"], item.get("status", {}).get("certificate") or {}
    tls = spec.get("tls") or ("auto" if spec.get("host") else "off")
    if tls != "auto":
        return "-" if tls == "off" else f"secret {tls}"
    if not state.get("secret"):
        return "failed" if state.get("message") else "ordered"
    until = datetime.fromtimestamp(state["not_after"], UTC).strftime("%Y-%m-%d")
    return f"secret {state['secret']}, until {until}"


COLUMNS = (("URL", address), ("TO", targets), ("STATE", state), ("MESSAGE", message))
"""Titles and cells of a table of routes."""
WIDE = ("CERTIFICATE", certificate, True)
"""Title and cell of a column that is shown with `-o wide` only."""
