"""A real server under attack: two tenants, a marker that only one of them may read, and the rules that must hold."""

from __future__ import annotations

import http.client
import json
import secrets
import ssl
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ANSWER_SECONDS = 30.0
"""No answer to an attack takes longer."""
READY_SECONDS = 10.0
"""After each campaign the server answers within this time."""
READ_MOST = 1 << 20
FINDINGS_MOST = 100


@dataclass
class Campaign:
    """Counts of one campaign, and the rules that it found broken."""

    name: str
    tried: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    slowest_seconds: float = 0.0
    findings: list[str] = field(default_factory=list)

    def found(self, what: str) -> None:
        if len(self.findings) < FINDINGS_MOST:
            self.findings.append(what[:2000])

    def note(self, status: str, seconds: float = 0.0) -> None:
        self.tried += 1
        self.statuses[status] += 1
        self.slowest_seconds = max(self.slowest_seconds, seconds)

    def report(self) -> dict[str, Any]:
        return {
            "tried": self.tried,
            "answers": dict(sorted(self.statuses.items())),
            "slowest_seconds": round(self.slowest_seconds, 3),
            "findings": self.findings,
        }


class Target:
    """`with Target(folder) as target`: a server process of its own, on SQLite."""

    def __init__(self, folder: Path, port: int, *, tls: tuple[Path, Path] | None = None) -> None:
        self.folder, self.port, self.tls = folder, port, tls
        self.marker = f"leak-{secrets.token_hex(8)}"
        """Written by team-b wherever it can write; no other tenant may ever see it."""
        self.tokens: dict[str, str] = {}
        self._log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Target:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "mandor.cli.main", "server", "--data", str(self.folder)]
        command += ["--listen", f"127.0.0.1:{self.port}"]
        if self.tls is not None:
            command += ["--tls-cert", str(self.tls[0]), "--tls-key", str(self.tls[1])]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not self.ready():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise RuntimeError(f"the server does not start:\n{self.log()[-3000:]}")
            time.sleep(0.2)
        self.tokens["admin"] = (self.folder / "admin.token").read_text().strip()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def tracebacks(self) -> list[str]:
        """Errors that the server logged with a traceback."""
        lines = self.log().splitlines()
        return ["\n".join(lines[max(0, at - 1) : at + 60]) for at, line in enumerate(lines) if "Traceback" in line]

    def connection(self, seconds: float = ANSWER_SECONDS) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=seconds)
        context = ssl.create_default_context(cafile=str(self.tls[0]))
        context.check_hostname = False
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=seconds, context=context)

    def ready(self, seconds: float = READY_SECONDS) -> bool:
        try:
            # 429: the limit on callers without a token, which is an answer.
            return self.ask("GET", "/readyz", seconds=seconds)[0] in {200, 429}
        except (OSError, http.client.HTTPException):
            return False

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        role: str = "",
        seconds: float = ANSWER_SECONDS,
    ) -> tuple[int, bytes]:
        """The status, and the beginning of the body."""
        given = dict(headers or {})
        if role:
            given["Authorization"] = f"Bearer {self.tokens[role]}"
        connection = self.connection(seconds)
        try:
            connection.request(method, path, body, given)
            answer = connection.getresponse()
            return answer.status, answer.read(READ_MOST) if _ends(path) else answer.read1(READ_MOST)
        finally:
            connection.close()

    def attack(
        self,
        campaign: Campaign,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        role: str,
    ) -> int:
        """Send it, and compare the answer with the rules. The status; 0: none came."""
        began = time.monotonic()
        what = f"{role or 'nobody'}: {method} {path[:300]} {(body or b'')[:600]!r}"
        try:
            status, text = self.ask(method, path, body, headers, role=role)
        except TimeoutError:
            status, text = 0, b""
            if _ends(path):
                campaign.found(f"no answer within {ANSWER_SECONDS:g} s: {what}")
        except (OSError, http.client.HTTPException, ValueError) as error:
            campaign.note(type(error).__name__)
            if not self.alive:
                campaign.found(f"the server died: {what}")
            return 0
        seconds = time.monotonic() - began
        campaign.note(str(status), seconds)
        if status == 500:
            campaign.found(f"500: {what}: {text[:300]!r}")
        if self.marker.encode() in text and role not in {"admin", "team-b"}:
            campaign.found(f"what belongs to team-b was shown to {what}")
        return status

    def settle(self, campaign: Campaign) -> None:
        """After a campaign the server is there, and answers."""
        if not self.alive:
            campaign.found(f"the server died:\n{self.log()[-1500:]}")
        elif not self.ready():
            campaign.found(f"the server does not answer within {READY_SECONDS:g} s after the campaign")

    def make_tenants(self) -> None:
        """Two namespaces; team-b has a workload, a secret and an event with the marker in them."""
        manifest = "\n---\n".join(
            [
                "kind: namespace\nname: team-a",
                "kind: namespace\nname: team-b",
                f"name: {self.marker}\nnamespace: team-b\nimage: x:1\nlabels: {{marker: {self.marker}}}",
                f"kind: secret\nname: {self.marker}\nnamespace: team-b\nvalue: {self.marker}",
            ]
        )
        status, text = self.ask(
            "POST", "/v1/apply", manifest.encode(), {"Content-Type": "application/yaml"}, role="admin"
        )
        if status != 200:
            raise RuntimeError(f"the tenants cannot be made: {text.decode()}")
        for name, role, namespaces in (
            ("team-a", "operator", ["team-a"]),
            ("team-b", "operator", ["team-b"]),
            ("viewer", "viewer", ["team-a"]),
            ("boss", "admin", ["team-a"]),
            ("join", "join", ["*"]),
            ("node", "node", ["*"]),
        ):
            body = json.dumps({"role": role, "identity": name if role != "node" else "n1", "namespaces": namespaces})
            status, text = self.ask(
                "POST", "/v1/tokens", body.encode(), {"Content-Type": "application/json"}, role="admin"
            )
            if status != 201:
                raise RuntimeError(f"no token for {name}: {text.decode()}")
            self.tokens[name] = json.loads(text)["token"]


def _ends(path: str) -> bool:
    """Whether the answer ends by itself: a watch does not, and a log may not."""
    return not any(word in path for word in ("/watch", "/logs"))
