"""Log sinks over HTTP: Loki's push API, and OTLP as JSON."""

import json
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import msgspec

from mandor import __version__
from mandor.agent.shipping.line import SEVERITIES, Line
from mandor.agent.shipping.sink import ReadSecret, Sink
from mandor.errors import Invalid, TooLarge, Unavailable
from mandor.lib.egress import STRICT, Egress
from mandor.lib.secret_files import NO_FILES, SecretFiles
from mandor.model.log_sink import LogSinkSpec
from mandor.telemetry.otlp import attributes, refused
from mandor.telemetry.receiver import HttpReceiver

REFUSED = frozenset({400, 422})
"""Statuses with which a receiver refuses lines for good; after any other error they are sent again."""
OTLP_SEVERITIES = {"debug": 5, "info": 9, "warning": 13, "error": 17, "critical": 21}


class WebSink(Sink):
    """Base of sinks that post lines over HTTP."""

    path: str
    """Path of the request if the URL has none."""

    def __init__(
        self, spec: LogSinkSpec, read_secret: ReadSecret, egress: Egress = STRICT, files: SecretFiles = NO_FILES
    ) -> None:
        self._spec, self._read_secret = spec, read_secret
        base = spec.url.partition("+")[2].rstrip("/")
        url = base if "/" in base.partition("://")[2] else base + self.path
        try:
            ca = str(files.path(spec.ca)) if spec.ca else ""
        except ValueError as error:
            raise Unavailable(str(error)) from error
        self._receiver = HttpReceiver(url, ca=ca, seconds=float(spec.timeout), egress=egress)

    @abstractmethod
    def body(self, lines: Sequence[Line]) -> bytes: ...

    def judge(self, answer: bytes) -> None:
        """Check the response of a receiver that accepted the request; raise `Invalid` if it refused lines."""

    async def send(self, lines: Sequence[Line]) -> None:
        answer = await self._receiver.post(self.body(lines), await self._identity())
        if answer.accepted:
            self.judge(answer.body)
        elif answer.status == 413:
            raise TooLarge(str(answer))
        else:
            raise Invalid(str(answer)) if answer.status in REFUSED else Unavailable(str(answer))

    async def close(self) -> None:
        await self._receiver.close()

    async def _identity(self) -> dict[str, str]:
        spec = self._spec
        headers = {"X-Scope-OrgID": spec.tenant} if spec.tenant else {}
        if spec.token is not None:
            value = (await self._read_secret(spec.token, spec.secret_namespace)).strip()
            headers["Authorization"] = f"Bearer {value}"
        elif spec.password is not None:
            value = (await self._read_secret(spec.password, spec.secret_namespace)).strip()
            headers["Authorization"] = f"Basic {b64encode(f'{spec.user}:{value}'.encode()).decode()}"
        return headers


class LokiSink(WebSink):
    """Sends lines to Loki's push API."""

    path = "/loki/api/v1/push"

    def body(self, lines: Sequence[Line]) -> bytes:
        streams: dict[tuple[tuple[str, str], ...], list[tuple[str, str]]] = {}
        for line in lines:
            streams.setdefault(tuple(line.labels.items()), []).append((str(line.nanoseconds), _with_facts(line)))
        return msgspec.json.encode(
            {"streams": [{"stream": dict(labels), "values": values} for labels, values in streams.items()]}
        )


def _with_facts(line: Line) -> str:
    """Add the agent's fields to its line as logfmt: as labels, each value would create a stream."""
    if not line.level:
        return line.text
    facts = "".join(f" {name}={json.dumps(value)}" for name, value in line.facts.items())
    return f"level={line.level} msg={json.dumps(line.text)}{facts}"


class OtlpSink(WebSink):
    """Sends lines as OTLP log records."""

    path = "/v1/logs"

    def body(self, lines: Sequence[Line]) -> bytes:
        resources: dict[tuple[tuple[str, str], ...], list[dict[str, Any]]] = {}
        for line in lines:
            resources.setdefault(tuple(_resource(line).items()), []).append(_record(line))
        return msgspec.json.encode(
            {
                "resourceLogs": [
                    {
                        "resource": {"attributes": attributes(dict(about))},
                        "scopeLogs": [{"scope": {"name": "mandor", "version": __version__}, "logRecords": records}],
                    }
                    for about, records in resources.items()
                ]
            }
        )

    def judge(self, answer: bytes) -> None:
        lost, why = refused(answer, "rejectedLogRecords")
        if lost:
            raise Invalid(f"the receiver refused {lost} records: {why}"[:200], lines=lost)


def _resource(line: Line) -> dict[str, str]:
    """Return the resource attributes by OpenTelemetry's conventions."""
    if not line.instance:
        return {"service.name": "mandor-agent", "host.name": line.node}
    return {
        "service.name": line.workload,
        "service.namespace": line.namespace,
        "service.instance.id": line.instance,
        "host.name": line.node,
    }


def _record(line: Line) -> dict[str, Any]:
    about = {"log.iostream": line.stream, "mandor.task": line.task} if line.instance else dict(line.facts)
    trace_id, span_id = about.pop("trace_id", ""), about.pop("span_id", "")
    return {
        **({"traceId": trace_id, "spanId": span_id, "flags": 1} if trace_id else {}),
        "timeUnixNano": str(line.nanoseconds),
        "observedTimeUnixNano": str(line.nanoseconds),
        "severityNumber": OTLP_SEVERITIES.get(line.severity, 9),
        "severityText": line.severity.upper() if line.severity in SEVERITIES else "INFO",
        "body": {"stringValue": line.text},
        "attributes": attributes(about),
    }
