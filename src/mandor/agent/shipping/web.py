"""Receivers over HTTP: Loki's push API, and logs as OTLP in JSON."""

import json
import ssl
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import aiohttp
import msgspec

from mandor import __version__
from mandor.agent.shipping.line import SEVERITIES, Line
from mandor.agent.shipping.sink import ReadSecret, Sink
from mandor.errors import Invalid, TooLarge, Unavailable
from mandor.model.log_sink import LogSinkSpec

ANSWER_MOST = 64 * 1024
REFUSED = frozenset({400, 422})
"""The lines are not to its liking. Anything else may be put right by somebody, and they wait."""
OTLP_SEVERITIES = {"debug": 5, "info": 9, "warning": 13, "error": 17, "critical": 21}


class WebSink(Sink):
    path: str
    """Where lines are posted, if the address has none."""

    def __init__(self, spec: LogSinkSpec, read_secret: ReadSecret) -> None:
        self._spec, self._read_secret = spec, read_secret
        base = spec.url.partition("+")[2].rstrip("/")
        self._url = base if "/" in base.partition("://")[2] else base + self.path
        self._session: aiohttp.ClientSession | None = None

    @abstractmethod
    def body(self, lines: Sequence[Line]) -> bytes: ...

    def judge(self, answer: bytes) -> None:
        """What a receiver says that took them; `Invalid`: not all."""

    async def send(self, lines: Sequence[Line]) -> None:
        headers = {"Content-Type": "application/json", "User-Agent": f"mandor/{__version__}"} | await self._identity()
        try:
            session = self._open()
            async with session.post(self._url, data=self.body(lines), headers=headers, allow_redirects=False) as answer:
                said = await answer.content.read(ANSWER_MOST)
        except TimeoutError as error:
            raise Unavailable(f"no answer within {self._spec.timeout}") from error
        except (aiohttp.ClientError, OSError) as error:
            raise Unavailable(" ".join(str(error).split())[:200] or type(error).__name__) from error
        if 200 <= answer.status < 300:
            self.judge(said)
            return
        told = f"{answer.status} {' '.join(said.decode(errors='replace').split())[:200]}".strip()
        if answer.status == 413:
            raise TooLarge(told)
        raise Invalid(told) if answer.status in REFUSED else Unavailable(told)

    async def close(self) -> None:
        if self._session is not None:
            session, self._session = self._session, None
            await session.close()

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

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            trusted: ssl.SSLContext | bool = True
            if self._spec.ca:
                try:
                    trusted = ssl.create_default_context(cafile=self._spec.ca)
                except (OSError, ssl.SSLError) as error:
                    raise Unavailable(f"the certificates in {self._spec.ca} cannot be read: {error}") from error
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=1, ssl=trusted),
                timeout=aiohttp.ClientTimeout(total=float(self._spec.timeout)),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


class LokiSink(WebSink):
    path = "/loki/api/v1/push"

    def body(self, lines: Sequence[Line]) -> bytes:
        streams: dict[tuple[tuple[str, str], ...], list[tuple[str, str]]] = {}
        for line in lines:
            streams.setdefault(tuple(line.labels.items()), []).append((str(line.nanoseconds), _with_facts(line)))
        return msgspec.json.encode(
            {"streams": [{"stream": dict(labels), "values": values} for labels, values in streams.items()]}
        )


def _with_facts(line: Line) -> str:
    """The agent's facts are part of its lines, as logfmt: as labels they would be a stream each."""
    if not line.level:
        return line.text
    facts = "".join(f" {name}={json.dumps(value)}" for name, value in line.facts.items())
    return f"level={line.level} msg={json.dumps(line.text)}{facts}"


class OtlpSink(WebSink):
    path = "/v1/logs"

    def body(self, lines: Sequence[Line]) -> bytes:
        resources: dict[tuple[tuple[str, str], ...], list[dict[str, Any]]] = {}
        for line in lines:
            resources.setdefault(tuple(_resource(line).items()), []).append(_record(line))
        return msgspec.json.encode(
            {
                "resourceLogs": [
                    {
                        "resource": {"attributes": _attributes(dict(about))},
                        "scopeLogs": [{"scope": {"name": "mandor", "version": __version__}, "logRecords": records}],
                    }
                    for about, records in resources.items()
                ]
            }
        )

    def judge(self, answer: bytes) -> None:
        try:
            partial = (msgspec.json.decode(answer) if answer.strip() else {}).get("partialSuccess") or {}
            refused = int(partial.get("rejectedLogRecords") or 0)
        except (msgspec.MsgspecError, AttributeError, ValueError):
            return  # It is taken; what else it says is its own affair.
        if refused:
            raise Invalid(f"{refused} records were refused: {partial.get('errorMessage', '')}"[:200], lines=refused)


def _resource(line: Line) -> dict[str, str]:
    """After OpenTelemetry's conventions for resources."""
    if not line.instance:
        return {"service.name": "mandor-agent", "host.name": line.node}
    return {
        "service.name": line.workload,
        "service.namespace": line.namespace,
        "service.instance.id": line.instance,
        "host.name": line.node,
    }


def _record(line: Line) -> dict[str, Any]:
    about = {"log.iostream": line.stream, "mandor.task": line.task} if line.instance else line.facts
    return {
        "timeUnixNano": str(line.nanoseconds),
        "observedTimeUnixNano": str(line.nanoseconds),
        "severityNumber": OTLP_SEVERITIES.get(line.severity, 9),
        "severityText": line.severity.upper() if line.severity in SEVERITIES else "INFO",
        "body": {"stringValue": line.text},
        "attributes": _attributes(about),
    }


def _attributes(values: dict[str, str]) -> list[dict[str, Any]]:
    return [{"key": name, "value": {"stringValue": value}} for name, value in values.items()]
