"""Converts the three probes of a container."""

from collections.abc import Callable
from typing import Any

from mandor.importers.base import filled
from mandor.importers.kubernetes.amounts import duration
from mandor.importers.part import Part

FindPort = Callable[[str], int | str]
"""Returns a port by number or name, as the group names it."""
_COUNT_MOST = 1000


def probe(part: Part, port: FindPort) -> dict[str, Any] | None:
    """Return the probe; None: it has no counterpart."""
    asked = _asked(part, port)
    timing = filled(
        interval=duration(part, "periodSeconds"),
        timeout=duration(part, "timeoutSeconds") or "1s",
        failures=_count(part, "failureThreshold"),
        successes=_count(part, "successThreshold"),
        start_period=duration(part, "initialDelaySeconds"),
    )
    part.drop("terminationGracePeriodSeconds", "an unhealthy task is stopped with its usual grace period")
    return asked | timing if asked else None


def _asked(part: Part, port: FindPort) -> dict[str, Any]:
    if "exec" in part:
        return {"command": part.part("exec").texts("command")}
    if "tcpSocket" in part:
        socket = part.part("tcpSocket")
        socket.drop("host", "a probe connects to the task itself")
        return {"tcp": port(socket.text("port") or "")}
    if "grpc" in part:
        grpc = part.part("grpc")
        part.guess("grpc", "becomes a TCP probe")
        grpc.drop("service", "gRPC's health service is not called")
        return {"tcp": port(grpc.text("port") or "")}
    if "httpGet" in part:
        return _http(part.part("httpGet"), port)
    return {}


def _http(http: Part, port: FindPort) -> dict[str, Any]:
    http.drop("host", "a probe connects to the task itself")
    http.drop("httpHeaders", "a probe sends no additional headers")
    path, asked = http.text("path") or "/", port(http.text("port") or "")
    if (http.text("scheme") or "HTTP").upper() == "HTTPS":
        http.guess("scheme", "a probe speaks no TLS: becomes a TCP probe")
        http.drop("path", "a probe speaks no TLS")
        return {"tcp": asked}
    return {"http": path if path.startswith("/") else f"/{path}", "port": asked}


def _count(part: Part, key: str) -> int | None:
    found = part.whole(key)
    if found is not None and found > _COUNT_MOST:
        part.guess(key, f"at most {_COUNT_MOST}")
    return min(found, _COUNT_MOST) if found and found > 0 else None
