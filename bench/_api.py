"""Starts the server of a bench, asks it what it uses, and holds many cheap connections to it."""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast


@dataclass
class Server:
    process: subprocess.Popen[str]
    host: str
    port: int
    url: str
    tokens: dict[str, str]

    def usage(self, profile: str = "") -> dict[str, Any]:
        """CPU since its start, memory now, and the longest hold of its loop since the last question. `profile`: begin
        to look where its time goes, or end that and write it to this file."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{profile}\n")
        self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self.process.stdout.readline())
        return found


def server(store: str = "memory:", *, trace: bool = False) -> AbstractContextManager[Server]:
    """Only the API, on a store of its own."""
    return started("_server.py", "--store", store, *(["--trace"] if trace else []))


def allow_files() -> None:
    """As many connections as this machine lets anybody have."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextmanager
def started(program: str, *options: str) -> Iterator[Server]:
    """A server of this folder, which says where it is and is asked by `usage`."""
    allow_files()
    command = [sys.executable, str(Path(__file__).with_name(program)), *options]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        told = json.loads(process.stdout.readline())
        host, _, port = told["url"].removeprefix("http://").partition(":")
        yield Server(process, host, int(port), told["url"], told["tokens"])
    finally:
        process.stdin.close()
        process.wait(60)
        process.stdout.close()


class Reader(asyncio.Protocol):
    """A connection that counts the lines it gets and keeps nothing."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self.lines = 0
        self.begun = False
        self.refused = b""
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self.begun:
            self.begun = True
            if not data.startswith(b"HTTP/1.1 200"):
                self.refused = data
        self.lines += data.count(b'{"revision":')


def request(method: str, path: str, host: str, token: str, body: bytes = b"") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {token}\r\n"
    if body:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def report(name: str, result: dict[str, Any], path: str | None) -> None:
    """Print it, and keep it with the machine it was measured on."""
    print(json.dumps(result, indent=2))
    keep(name, result, path)


def keep(name: str, result: dict[str, Any], path: str | None) -> None:
    from mandor.bench.machine import machine

    if path:
        Path(path).write_text(json.dumps({"bench": name, "machine": machine(), "result": result}, indent=2) + "\n")
