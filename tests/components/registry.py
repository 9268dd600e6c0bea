"""A registry for tests: one image, on loopback inside an enclosure, open or with a password, as slow as one likes.

Run as a program it serves; `Registry` starts it.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PORT = 5000
ADDRESS = f"127.0.0.1:{PORT}"
MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
PIECE_BYTES = 65536


def write_image(folder: Path, layer: bytes) -> None:
    """The blobs and the manifest of an image of one layer; the tag moves to it, and others stay by their digests."""
    (folder / "blobs").mkdir(parents=True, exist_ok=True)
    packed = gzip.compress(layer, 1)
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin"], "Cmd": ["sh"]},
            "rootfs": {"type": "layers", "diff_ids": [_digest(layer)]},
        }
    ).encode()
    for blob in (packed, config):
        (folder / "blobs" / _digest(blob)).write_bytes(blob)
    kind = "application/vnd.docker"
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": f"{kind}.container.image.v1+json", "size": len(config), "digest": _digest(config)},
        "layers": [{"mediaType": f"{kind}.image.rootfs.diff.tar.gzip", "size": len(packed), "digest": _digest(packed)}],
    }
    text = json.dumps(manifest)
    (folder / "manifest.json").write_text(text)
    (folder / "manifests").mkdir(exist_ok=True)
    (folder / "manifests" / _digest(text.encode())).write_text(text)


def _digest(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


@dataclass
class Registry:
    """Serves `test/busybox:1` until it is closed; `asked` tells how often the manifest was fetched."""

    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def image(self) -> str:
        return f"{ADDRESS}/test/busybox:1"

    @property
    def asked(self) -> int:
        log = self.folder / "asked"
        return len(log.read_text().splitlines()) if log.exists() else 0

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def serve(folder: Path, login: str, pause: float) -> None:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(body=True)

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def _answer(self, *, body: bool) -> None:
            if login and self.headers.get("Authorization") != f"Basic {base64.b64encode(login.encode()).decode()}":
                self._send(
                    401, b'{"errors":[{"code":"UNAUTHORIZED"}]}', body, **{"WWW-Authenticate": 'Basic realm="t"'}
                )
            elif self.path.rstrip("/") == "/v2":
                self._send(200, b"{}", body)
            elif "/manifests/" in self.path:
                self._manifest(body)
            else:
                path = folder / "blobs" / self.path.rpartition("/")[2]
                self._send(200, path.read_bytes(), body) if path.exists() else self._send(404, b"{}", body)

        def _manifest(self, body: bool) -> None:
            reference = self.path.rpartition("/")[2]
            file = folder / "manifest.json" if reference == "1" else folder / "manifests" / reference
            data = file.read_bytes() if file.exists() else b""
            if not self.path.startswith("/v2/test/busybox/") or not data:
                self._send(404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"manifest unknown"}]}', body)
                return
            with (folder / "asked").open("a") as log:
                log.write(f"{self.command} {self.path}\n")
            self._send(200, data, body, **{"Content-Type": MANIFEST, "Docker-Content-Digest": _digest(data)})

        def _send(self, status: int, data: bytes, body: bool, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            for start in range(0, len(data) if body else 0, PIECE_BYTES):
                self.wfile.write(data[start : start + PIECE_BYTES])
                time.sleep(pause if len(data) > PIECE_BYTES else 0)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", PORT), Handler) as server:
        print("ready", flush=True)
        server.serve_forever()


def start_registry(command: list[str], folder: Path, *, login: str = "", pause: float = 0.0) -> Registry:
    """`command`: how to run a program where the engine can reach it, up to the program's own words."""
    process = subprocess.Popen(
        [*command, sys.executable, __file__, str(folder), login, str(pause)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    return Registry(folder, process)


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
