"""A raw-socket fuzzer for the API: hostile conversations from a seed, against a server that must survive them.

    python -m tests.security.fuzz_http --url http://127.0.0.1:8080 --token mdr_… --seed 1 --count 1000

Each conversation is a list of pieces that are sent one after another. A response with status 500, or a server that no
longer answers `GET /healthz`, is a finding; it is reported with its seed and number, from which it can be repeated.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from mandor.api.app import OPERATIONS

SECONDS = 20.0
QUIET_SECONDS = 0.3
"""A conversation is over when nothing has been answered for so long."""
READ_MOST = 1 << 20

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_ODD = [
    *(b"", b"\x00", b"\xff\xfe", b"%", b"%00", b"%zz", b"..", b"../../etc/passwd", b"//", b"a" * 300, b"-1", b"1e999"),
    *(
        b"NaN",
        b"9" * 40,
        b"[",
        b"]",
        b"{",
        b"null",
        b"[]",
        b"{}",
        b"\xed\xa0\x80",
        "ü😀".encode(),
        b"'\"<>",
        b"?",
        b"#",
    ),
    *(b"key=", b"\t", b"*", b"default", b"n1", b"web-0", b"true", b"0x10", b"2147483648", b"-9223372036854775809"),
]
_HEADERS = [
    *(b"origin", b"host", b"authorization", b"content-length", b"transfer-encoding", b"expect", b"upgrade"),
    *(b"connection", b"content-type", b"accept", b"x-mandor-version", b"traceparent", b"sec-fetch-site", b"cookie"),
    *(b"sec-websocket-key", b"sec-websocket-version", b"sec-websocket-protocol", b"content-encoding", b"range"),
    *(b"x-mandor-session", b"forwarded", b"x-forwarded-for", b"te", b"trailer", b"if-match"),
]
_VALUES = [
    *(
        b"http://[",
        b"http://[::1",
        b"[",
        b"localhost",
        b"127.0.0.1",
        b"null",
        b"Bearer",
        b"Bearer x",
        b"Bearer mdr_a_b",
    ),
    *(
        b"Basic eDp5",
        b"chunked",
        b"gzip, chunked",
        b"chunked, identity",
        b"100-continue",
        b"websocket",
        b"h2c",
        b"close",
    ),
    *(
        b"keep-alive, upgrade",
        b"application/json",
        b"application/yaml",
        b"application/merge-patch+json",
        b"13",
        b"99.0.0",
    ),
    *(
        b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01",
        b"00-zz-zz-zz",
        b"bytes=0-",
        b"cross-site",
        b"mandor.exec",
        b"-5",
    ),
    *(b"5", b"+5", b"0x5", b"5, 5", b"18446744073709551616", b"multipart/form-data; boundary=", b"text/html"),
]
_BODIES = [
    *(
        b"",
        b"{",
        b"{}",
        b"[]",
        b"null",
        b'"x"',
        b"1e999",
        b"[" * 5000,
        b'{"a":' * 5000,
        b"\xff\xfe\x00",
        b"a: &a [*a]\n",
    ),
    *(b"kind: x\nname: y\n", b"name: web\n", b"name: web\ncommand: [a]\n", b"---\n" * 500, b'{"writes":[{}]}'),
    *(b'{"writes":[{"put":{"kind":"node"}}]}', b'{"meta":null,"spec":null}', b'{"spec":{"pool":null}}', b"\x00" * 100),
    *(
        b'{"kind":"node","meta":{"name":"\\ud800"},"spec":{}}',
        b'{"cluster":"\\u0000"}',
        b"!!python/object:os.system x\n",
    ),
]


@dataclass
class Report:
    """What a run found."""

    conversations: int = 0
    answers: dict[int, int] = field(default_factory=dict)
    """By status."""
    findings: list[str] = field(default_factory=list)


def conversations(seed: int, count: int, token: str = "") -> Iterator[list[bytes]]:
    """The same for the same seed."""
    for number in range(count):
        yield _conversation(random.Random(f"{seed}/{number}"), token)


def _conversation(dice: random.Random, token: str) -> list[bytes]:
    data = b"".join(_request(dice, token) for _ in range(dice.choice([1, 1, 1, 2, 3])))
    for _ in range(dice.choice([0, 0, 0, 1, 3])):
        data = _mutated(dice, data)
    if dice.random() < 0.3:
        return [data]
    cuts = sorted(dice.sample(range(len(data) + 1), k=min(len(data), dice.randint(1, 4))))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True) if start != end]


def _request(dice: random.Random, token: str) -> bytes:
    operation = dice.choice(OPERATIONS)
    path = re.sub(r"{\w+}", lambda _: _word(dice).decode("latin-1"), operation.path).encode("latin-1")
    if dice.random() < 0.5:
        names = [each.encode() for each in getattr(operation.query, "__struct_fields__", ())] + [b"x"]
        path += b"?" + b"&".join(dice.choice(names) + b"=" + _word(dice) for _ in range(dice.randint(1, 4)))
    method = operation.method.encode() if dice.random() < 0.85 else dice.choice([b"GET", b"PUT", b"TRACE", b"CONNECT"])
    body = dice.choice(_BODIES) if operation.body is not None or dice.random() < 0.2 else b""
    lines = [method + b" " + path + b" HTTP/" + dice.choice([b"1.1"] * 12 + [b"1.0", b"2.0", b"9"]), b"host: localhost"]
    if token and dice.random() < 0.7:
        lines.append(b"authorization: Bearer " + token.encode())
    if operation.body is not None and dice.random() < 0.8:
        lines.append(b"content-type: " + dice.choice(operation.takes).encode())
    chunked = body and dice.random() < 0.2
    if chunked:
        lines.append(b"transfer-encoding: chunked")
        body = b"%x\r\n%b\r\n0\r\n" % (len(body), body) + dice.choice([b"\r\n", b"x: y\r\n\r\n", b""])
    elif body or dice.random() < 0.2:
        lines.append(b"content-length: %d" % (len(body) + dice.choice([0] * 8 + [1, -1, 1000])))
    lines += [
        dice.choice(_HEADERS) + b": " + (dice.choice(_VALUES) if dice.random() < 0.8 else _word(dice))
        for _ in range(dice.choice([0, 0, 1, 2, 5]))
    ]
    return b"\r\n".join([*lines, b"", b""]) + body


def _word(dice: random.Random) -> bytes:
    word = dice.choice(_ODD)
    if dice.random() < 0.7:
        return b"".join(b"%%%02x" % each if not 33 <= each < 127 or each in b" #?&" else b"%c" % each for each in word)
    return word


def _mutated(dice: random.Random, data: bytes) -> bytes:
    if not data:
        return data
    place = dice.randrange(len(data))
    kind = dice.randrange(5)
    if kind == 0:
        return data[:place] + bytes([dice.randrange(256)]) + data[place + 1 :]
    if kind == 1:
        return data[:place] + data[place + dice.randint(1, 20) :]
    if kind == 2:
        return data[:place] + dice.choice(_ODD) + data[place:]
    if kind == 3:
        return data[:place]
    return data[:place] + data[place : place + 50] * dice.randint(2, 40) + data[place + 50 :]


async def run(host: str, port: int, *, seed: int, count: int, token: str = "", at_once: int = 8) -> Report:
    """Hold the conversations, a few at once, and look after each batch whether the server answers."""
    report = Report()
    batch: list[tuple[int, Sequence[bytes]]] = []
    for number, pieces in enumerate(conversations(seed, count, token)):
        batch.append((number, pieces))
        if len(batch) == at_once or number == count - 1:
            await asyncio.gather(*(_hold(host, port, seed, each, pieces, report) for each, pieces in batch))
            if not await _alive(host, port):
                numbers = f"{batch[0][0]}…{batch[-1][0]}"
                report.findings.append(f"seed {seed}, conversations {numbers}: the server does not answer any more")
                return report
            batch.clear()
    return report


async def _hold(host: str, port: int, seed: int, number: int, pieces: Sequence[bytes], report: Report) -> None:
    report.conversations += 1
    answer = await _exchange(host, port, pieces)
    for status in map(int, _STATUS.findall(answer)):
        report.answers[status] = report.answers.get(status, 0) + 1
        if status == 500:
            report.findings.append(f"seed {seed}, conversation {number}: 500 for {b''.join(pieces)[:600]!r}")


async def _exchange(host: str, port: int, pieces: Sequence[bytes]) -> bytes:
    found = b""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return found
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        while len(found) < READ_MOST:
            async with asyncio.timeout(QUIET_SECONDS if found else SECONDS / 20):
                data = await reader.read(65536)
            if not data:
                break
            found += data
    except (OSError, TimeoutError):
        pass
    finally:
        writer.transport.abort()
    return found


async def _alive(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(SECONDS):
            answer = await _exchange(
                host, port, [b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"]
            )
    except TimeoutError:
        return False
    return b" 200 " in answer or b" 429 " in answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--token", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=1000)
    given = parser.parse_args()
    host, _, port = given.url.partition("://")[2].partition(":")
    report = asyncio.run(run(host, int(port), seed=given.seed, count=given.count, token=given.token))
    print(f"{report.conversations} conversations, answers by status: {dict(sorted(report.answers.items()))}")
    for each in report.findings:
        print(each)
    return 1 if report.findings else 0


if __name__ == "__main__":
    sys.exit(main())
