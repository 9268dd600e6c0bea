"""Small web servers that answer as a test wants."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer


class Answering(BaseHTTPRequestHandler):
    """The same to every request."""

    status, body, kind = 200, b'{"items": [], "revision": 1}', "application/json"

    def answer(self) -> None:
        self.send_response(self.status)
        self.send_header("Content-Type", self.kind)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    do_GET = do_POST = do_PATCH = answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def serving(
    handler: type[Answering], tls: ssl.SSLContext | None = None, *, each_in_a_thread: bool = False
) -> Iterator[str]:
    """Its address."""
    server = (ThreadingHTTPServer if each_in_a_thread else HTTPServer)(("127.0.0.1", 0), handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
