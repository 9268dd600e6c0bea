"""A strict receiver of traces: what OpenTelemetry's own definitions of OTLP do not know, it refuses."""

import json
import re
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic, sleep
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Seen:
    """One span, as it arrived."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    kind: int
    start: int
    end: int
    attributes: dict[str, Any]
    status: int
    message: str
    links: tuple[tuple[str, str], ...]
    resource: dict[str, Any]

    @property
    def service(self) -> str:
        return str(self.resource["service.name"])


@dataclass
class TraceReceiver:
    port: int = 0
    spans: list[Seen] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    answers: list[int] = field(default_factory=list)
    """Given instead of taking anything, the first first."""
    requests: int = 0
    _server: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, said = receiver.take(self.path, self.headers.get("Content-Type", ""), body)
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(said)))
                self.end_headers()
                self.wfile.write(said)

            def log_message(self, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            server.shutdown()
            server.server_close()

    def take(self, path: str, content_type: str, body: bytes) -> tuple[int, bytes]:
        self.requests += 1
        if self.answers:
            return self.answers.pop(0), b"{}"
        try:
            assert path == "/v1/traces", path
            assert content_type == "application/json", content_type
            self.spans += read(body)
        except Exception as error:
            self.faults.append(repr(error))
            return 400, b"{}"
        return 200, b'{"partialSuccess":{}}'

    def trace(self, trace_id: str) -> list[Seen]:
        return [each for each in list(self.spans) if each.trace_id == trace_id]

    def wait_for(self, what: Callable[[list[Seen]], bool]) -> list[Seen]:
        """Until the spans that have come are as they should be."""
        end = monotonic() + PATIENCE_SECONDS
        while not what(found := list(self.spans)):
            assert not self.faults, self.faults
            assert monotonic() < end, f"there are {sorted(each.name for each in found)}"
            sleep(0.1)
        return found


def read(body: bytes) -> list[Seen]:
    """Every span of a request in JSON; an error for whatever a collector would not take."""
    told = json.loads(body, object_pairs_hook=_no_twins)
    for resource in told["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                _ids_as_bytes(span, ("traceId", 32), ("spanId", 16), ("parentSpanId", 16))
                for link in span.get("links", ()):
                    _ids_as_bytes(link, ("traceId", 32), ("spanId", 16))
                for at in ("startTimeUnixNano", "endTimeUnixNano"):
                    assert isinstance(span[at], str), "64 bits are a text in JSON"
    request = ParseDict(told, ExportTraceServiceRequest())
    found = []
    for each in request.resource_spans:
        about = _plain(each.resource.attributes)
        assert about["service.name"]
        for scope in each.scope_spans:
            assert scope.scope.name == "mandor"
            found += [_seen(span, about) for span in scope.spans]
    return found


def _ids_as_bytes(value: dict[str, Any], *fields: tuple[str, int]) -> None:
    """OTLP writes ids in hexadecimal, where Protobuf's own JSON has base64."""
    for name, length in fields:
        if name == "parentSpanId" and name not in value:
            continue
        assert re.fullmatch(rf"[0-9a-f]{{{length}}}", value[name]), (name, value[name])
        assert int(value[name], 16), f"{name} is zero"
        value[name] = b64encode(bytes.fromhex(value[name])).decode()


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    assert len(found) == len(pairs), "a key stands there twice"
    return found


def _seen(span: Any, about: dict[str, Any]) -> Seen:
    assert span.name
    assert 1 <= span.kind <= 5
    assert span.status.code in {0, 1, 2}
    assert 0 < span.start_time_unix_nano <= span.end_time_unix_nano
    assert span.status.code == 2 or not span.status.message, "only an error has a message"
    return Seen(
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.name,
        span.kind,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _plain(span.attributes),
        span.status.code,
        span.status.message,
        tuple((each.trace_id.hex(), each.span_id.hex()) for each in span.links),
        about,
    )


def _plain(attributes: Any) -> dict[str, Any]:
    found = {each.key: _value(each.value) for each in attributes}
    assert len(found) == len(attributes), "an attribute stands there twice"
    return found


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    assert kind is not None, "an attribute has a value"
    return [_value(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def check_whole(spans: list[Seen], root_parent: str = "") -> None:
    """One trace: every parent is there, one span has none (or the given one), and no id stands there twice."""
    assert len({each.trace_id for each in spans}) == 1
    ids = {each.span_id for each in spans}
    assert len(ids) == len(spans), "a span was sent twice"
    orphans = [each.name for each in spans if each.parent_id not in ids and each.parent_id != root_parent]
    assert not orphans, f"the parents of {orphans} are missing"
    assert len([each for each in spans if each.parent_id == root_parent]) == 1


@contextmanager
def receiving() -> Iterator[TraceReceiver]:
    receiver = TraceReceiver()
    receiver.start()
    try:
        yield receiver
    finally:
        receiver.stop()
