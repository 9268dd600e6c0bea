"""Where traces go: our own setting, or what all of OpenTelemetry reads."""

from __future__ import annotations

import pytest

from mandor.errors import Invalid
from mandor.telemetry.target import find_target


def test_without_a_receiver_there_are_no_traces() -> None:
    assert find_target("", None, {}) is None


@pytest.mark.parametrize(
    ("url", "environ", "wanted"),
    [
        ("http://h:4318", {}, "http://h:4318/v1/traces"),
        ("http://h:4318/", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://other"}, "http://h:4318/v1/traces"),
        ("https://h/own/path", {}, "https://h/own/path"),
        ("", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318/base/"}, "http://h:4318/base/v1/traces"),
        (
            "",
            {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://h/t"},
            "http://h/t",
        ),
    ],
)
def test_the_address_is_found(url: str, environ: dict[str, str], wanted: str) -> None:
    target = find_target(url, None, environ)
    assert target is not None
    assert target.url == wanted
    assert target.ratio == 1.0


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_the_environment_can_switch_its_own_receiver_off(off: dict[str, str]) -> None:
    assert find_target("", None, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h:4318", **off}) is None


def test_headers_certificates_and_shares_come_from_the_environment() -> None:
    environ = {
        "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20abc, x-scope=1,nonsense",
        "OTEL_EXPORTER_OTLP_CERTIFICATE": "/etc/ca.pem",
        "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
        "OTEL_TRACES_SAMPLER_ARG": "0.25",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
    }
    target = find_target("https://h:4318", None, environ)
    assert target is not None
    assert target.headers == {"authorization": "Bearer abc", "x-scope": "1"}
    assert (target.ca, target.ratio) == ("/etc/ca.pem", 0.25)
    assert target.resource == {"deployment.environment.name": "test"}
    own = find_target("https://h:4318", 0.5, environ)
    assert own is not None
    assert own.ratio == 0.5


@pytest.mark.parametrize("url", ["localhost:4318", "grpc://h:4317", "http://"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(Invalid, match="OTLP receiver") as caught:
        find_target(url, None, {})
    assert "4318" in (caught.value.hint or "")
