"""HTTP attacks: requests that the OpenAPI document allows and more, and bytes that are no HTTP at all."""

from __future__ import annotations

import json
import random
import socket
import time
import warnings
from urllib.parse import quote, urlencode

from bench._attack_target import Campaign, Target

ROLES = ("", "team-a", "viewer", "boss", "node", "join")
CASES_EACH = 4  # examples of one operation and role in a round


def by_document(target: Target, dice: random.Random, until: float) -> Campaign:
    """Requests that schemathesis makes from the server's own OpenAPI document, by every role."""
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, seed, settings

    campaign = Campaign("openapi")
    document = json.loads(target.ask("GET", "/openapi.json")[1])
    schema = schemathesis.openapi.from_dict(document)
    operations = [each.ok() for each in schema.get_all_operations()]
    quick = settings(
        max_examples=CASES_EACH,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    while time.monotonic() < until:
        role = dice.choice(ROLES)
        operation = dice.choice(operations)
        if operation.path in {"/v1/watch", "/v1/simulate"}:
            continue  # One goes on, and the other begins a process.

        def run(case: object) -> None:
            _send_case(target, campaign, case, role)  # noqa: B023 - called at once

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seed(dice.randrange(2**32))(quick(given(case=operation.as_strategy())(run)))()
    target.settle(campaign)
    return campaign


def _send_case(target: Target, campaign: Campaign, case: object, role: str) -> None:
    path = str(case.path)
    for name, value in (case.path_parameters or {}).items():
        path = path.replace(f"{{{name}}}", quote(str(value), safe=""))
    query = case.query or {}
    if query:
        path += "?" + urlencode(query, doseq=True)
    body = case.body
    media = str(case.media_type or "application/json")
    data: bytes | None
    if isinstance(body, bytes | str):
        data = body if isinstance(body, bytes) else body.encode(errors="replace")
    elif type(body).__name__ == "NotSet":
        data = None
    else:
        data = json.dumps(body, default=str).encode()
    try:
        target.attack(campaign, str(case.method), path, data, {"Content-Type": media}, role=role)
    except UnicodeError:
        campaign.note("unsendable")


# Bytes.

HEADS = [
    b"GET /v1/nodes HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/apply HTTP/1.1\r\nHost: x\r\nContent-Type: application/yaml\r\nContent-Length: 10\r\n\r\nname: x\r\n",
    b"POST /v1/commit HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"GET /v1/watch HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n",
    b"GET /v1/instances/x/exec HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
]
PIECES = [
    *(b"\r\n", b"\n", b"\r", b"\0", b"\x80\xff", b" ", b"\t", b":", b"HTTP/9.9", b"Content-Length: -1\r\n"),
    *(b"Content-Length: 99999999999999999999\r\n", b"Content-Length: 5\r\nContent-Length: 6\r\n"),
    *(b"Transfer-Encoding: chunked, identity\r\n", b"ffffffffffffffff\r\n", b"Host: [\r\n", b"Origin: http://[\r\n"),
    *(b"Expect: 100-continue\r\n", b"Authorization: Bearer \xff\xfe\r\n", b"Authorization: Bearer mdr__\r\n"),
    *(b"/../../etc/passwd", b"%00", b"%2e%2e%2f", b"?" + b"a=1&" * 200, b"X-Long: " + b"a" * 70_000 + b"\r\n"),
]


def by_bytes(target: Target, dice: random.Random, until: float) -> Campaign:
    """Requests with bytes removed, repeated and put in, several on one connection, cut anywhere."""
    campaign = Campaign("raw sockets")
    while time.monotonic() < until:
        data = b"".join(_damaged(dice.choice(HEADS), dice) for _ in range(dice.choice((1, 1, 1, 3))))
        began = time.monotonic()
        try:
            status = _exchange(target.port, data)
        except OSError as error:
            campaign.note(type(error).__name__)
        else:
            campaign.note(status, time.monotonic() - began)
            if status == "500":
                campaign.found(f"500: {data[:600]!r}")
        if campaign.tried % 200 == 0 and not target.ready():
            campaign.found(f"no answer on another connection after {data[:600]!r}")
    target.settle(campaign)
    return campaign


def _damaged(data: bytes, dice: random.Random) -> bytes:
    for _ in range(dice.randrange(1, 5)):
        at = dice.randrange(len(data) + 1)
        kind = dice.randrange(5)
        if kind == 0:
            data = data[:at] + dice.choice(PIECES) + data[at:]
        elif kind == 1:
            data = data[:at] + data[at + dice.randrange(1, 10) :]
        elif kind == 2:
            data = data[:at] + bytes([dice.randrange(256)]) + data[at + 1 :]
        elif kind == 3:
            data = data[:at]
        else:
            data = data[:at] + data[:at]
    return data[:200_000]


def _exchange(port: int, data: bytes) -> str:
    """The status of the first answer; `closed`: there was none."""
    with socket.create_connection(("127.0.0.1", port), timeout=1.0) as line:
        line.sendall(data)
        try:
            line.shutdown(socket.SHUT_WR)
            answer = line.recv(65536)
        except TimeoutError:
            return "quiet"
        if not answer:
            return "closed"
        words = answer.split(b" ", 2)
        return words[1].decode("ascii", "replace") if len(words) > 1 and answer[:5] == b"HTTP/" else "other"
