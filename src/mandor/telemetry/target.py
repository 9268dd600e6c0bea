"""Target of the exporter, from Mandor's settings or from OpenTelemetry's environment variables."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from mandor.errors import Invalid

PATH = "/v1/traces"
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Target:
    url: str
    """URL with path."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca: str = ""
    ratio: float = 1.0
    resource: Mapping[str, str] = field(default_factory=dict)
    """Further attributes of the sender."""


def find_target(url: str, ratio: float | None, environ: Mapping[str, str]) -> Target | None:
    """Return the target; `url`: Mandor's setting, `http://HOST:4318`; empty: from the environment. None: tracing is
    off."""
    found = _with_path(url) if url else _from_environment(environ)
    if not found:
        return None
    parts = urlsplit(found)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise Invalid(
            f"{found[:100]!r} is not the address of an OTLP receiver",
            hint="write http://HOST:4318; it is OTLP over HTTP, whose port is 4318, not gRPC's 4317",
        )
    return Target(
        found,
        _pairs(environ.get("OTEL_EXPORTER_OTLP_TRACES_HEADERS") or environ.get("OTEL_EXPORTER_OTLP_HEADERS", "")),
        environ.get("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE") or environ.get("OTEL_EXPORTER_OTLP_CERTIFICATE", ""),
        _ratio(environ) if ratio is None else ratio,
        _pairs(environ.get("OTEL_RESOURCE_ATTRIBUTES", "")),
    )


def _from_environment(environ: Mapping[str, str]) -> str:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return ""
    if environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower() not in {"", "otlp"}:
        return ""
    exact = environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "").strip()
    base = environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
    return exact or (base.rstrip("/") + PATH if base else "")


def _with_path(url: str) -> str:
    base = url.rstrip("/")
    return base if "/" in base.partition("://")[2] else base + PATH


def _ratio(environ: Mapping[str, str]) -> float:
    """Return the ratio of the sampler; samplers without a ratio record all traces."""
    if not environ.get("OTEL_TRACES_SAMPLER", "").endswith("traceidratio"):
        return 0.0 if environ.get("OTEL_TRACES_SAMPLER", "").endswith("always_off") else 1.0
    try:
        return min(1.0, max(0.0, float(environ.get("OTEL_TRACES_SAMPLER_ARG", "1"))))
    except ValueError:
        return 1.0


def _pairs(text: str) -> dict[str, str]:
    """Parse `name=value,name=value`, percent-encoded; invalid pairs are skipped, as the standard says."""
    found = {}
    for each in text.split(","):
        name, equals, value = each.partition("=")
        if equals and name.strip():
            found[unquote(name.strip())] = unquote(value.strip())
    return found
