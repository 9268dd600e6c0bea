"""A private certificate authority with ACME: pebble, which resolves every name to this machine."""

from __future__ import annotations

import http.server
import json
import os
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mandor.lib import x509
from tests.components.ports import free_port

READY_SECONDS = 60.0
PATH = "/.well-known/acme-challenge/"


@dataclass
class Pebble:
    binary: Path
    folder: Path
    port: int = field(default_factory=free_port)
    management_port: int = field(default_factory=free_port)
    challenge_port: int = field(default_factory=free_port)
    """Port at which the authority reads challenges, instead of 80."""
    tls_port: int = field(default_factory=free_port)
    dns_port: int = field(default_factory=free_port)
    bindings: dict[str, str] = field(default_factory=dict)
    """Keys of external accounts by id; not empty: an account needs one."""
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def directory(self) -> str:
        return f"https://127.0.0.1:{self.port}/dir"

    @property
    def ca(self) -> Path:
        """The certificates to trust for the directory."""
        return self.folder / "ca.pem"

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        authority = x509.make_authority("authority of the directory", now=now, seconds=86_400)
        key = x509.new_key()
        own = x509.issue(
            authority, x509.public_key(key), "pebble", hosts=["127.0.0.1"], server=True, now=now, seconds=86_400
        )
        self.ca.write_text(authority.certificate)
        (self.folder / "own.pem").write_text(own)
        (self.folder / "own.key").write_text(key)
        config = {
            "listenAddress": f"127.0.0.1:{self.port}",
            "managementListenAddress": f"127.0.0.1:{self.management_port}",
            "certificate": str(self.folder / "own.pem"),
            "privateKey": str(self.folder / "own.key"),
            "httpPort": self.challenge_port,
            "tlsPort": self.tls_port,
            "ocspResponderURL": "",
            "externalAccountBindingRequired": bool(self.bindings),
            "externalAccountMACKeys": self.bindings,
        }
        (self.folder / "config.json").write_text(json.dumps({"pebble": config}))

    def start(self, **environ: str) -> None:
        """Start with an empty memory: accounts and orders of an earlier start are unknown."""
        env = {**os.environ, "PEBBLE_VA_NOSLEEP": "1", **environ}
        names = [str(self.binary.with_name("pebble-challtestsrv")), "-dns01", f"127.0.0.1:{self.dns_port}"]
        names += ["-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", "", "-defaultIPv4", "127.0.0.1"]
        names += ["-management", f"127.0.0.1:{free_port()}"]
        self._launch(names, env)
        config = str(self.folder / "config.json")
        self._launch([str(self.binary), "-config", config, "-dnsserver", f"127.0.0.1:{self.dns_port}"], env)
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            if any(each.poll() is not None for each in self.processes) or time.monotonic() > deadline:
                raise RuntimeError(f"pebble is not ready:\n{(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        for each in self.processes:
            each.kill()
            each.wait()
        self.processes.clear()

    def root(self) -> str:
        """Return the certificate of the authority that issues."""
        return self._read(f"https://127.0.0.1:{self.management_port}/roots/0")

    def requests(self, text: str) -> int:
        """Return the number of lines of the log that contain a text."""
        return sum(text in line for line in (self.folder / "log").read_text().splitlines())

    def _launch(self, command: list[str], env: dict[str, str]) -> None:
        with (self.folder / "log").open("ab") as log:
            self.processes.append(
                subprocess.Popen(
                    command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=env, start_new_session=True
                )
            )

    def _answers(self) -> bool:
        try:
            return bool(self._read(self.directory))
        except OSError:
            return False

    def _read(self, url: str) -> str:
        trusted = ssl.create_default_context(cafile=str(self.ca))
        with urllib.request.urlopen(url, context=trusted, timeout=10) as answer:
            return str(answer.read().decode())


@contextmanager
def running(binary: Path, folder: Path, *, bindings: dict[str, str] | None = None, **environ: str) -> Iterator[Pebble]:
    pebble = Pebble(binary, folder, bindings=bindings or {})
    pebble.prepare()
    try:
        pebble.start(**environ)
        yield pebble
    finally:
        pebble.stop()


@contextmanager
def serving(port: int, find: Callable[[str, str], str | None]) -> Iterator[list[str]]:
    """Serve challenges like a gateway. `find`: the answer for a host and a token; yields the tokens asked for."""
    asked: list[str] = []

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            host = (self.headers.get("Host") or "").partition(":")[0]
            token = self.path.removeprefix(PATH)
            asked.append(token)
            text = find(host, token)
            self.send_response(200 if text else 404)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Answers) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield asked
        finally:
            server.shutdown()
            thread.join()
