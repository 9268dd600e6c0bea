"""A receiver of webhooks that takes what is signed, and nothing else."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mandor.notify import verify
from tests.components.ports import free_port

SECRET = "change-me-to-what-openssl-rand-says"
"""As the example has it."""


class Hook(ThreadingHTTPServer):
    """Takes what is signed, and nothing else."""

    daemon_threads = True

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        super().__init__(("127.0.0.1", free_port()), Answering)

    def reasons(self) -> set[str]:
        return {each["data"]["reason"] for each in self.messages}

    def about(self, name: str) -> list[dict[str, Any]]:
        return [each for each in self.messages if each["subject"].startswith(f"default/{name}")]


class Answering(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        genuine = verify(SECRET, body, dict(self.headers))
        if genuine:
            self.server.messages.append(json.loads(body))
        self.send_response(204 if genuine else 401)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def hooked() -> Iterator[Hook]:
    hook = Hook()
    thread = threading.Thread(target=hook.serve_forever, daemon=True)
    thread.start()
    try:
        yield hook
    finally:
        hook.shutdown()
        hook.server_close()
        thread.join()
