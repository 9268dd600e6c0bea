"""Cost of a connection to a real server: without TLS, with TLS, and with a node's certificate.

Each connection is new, with a full handshake and one request (`GET /v1/whoami`
of an admin by token, or of the node by its certificate). The processor time is the server's own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from machine import machine

CONNECTIONS = 1000
ROUNDS = 5
AGENTS = 5000
CONNECTIONS_OF_AGENT = 2  # a stream, and one for heartbeats and reports
WAIT_SECONDS = 120.0
TICKS = os.sysconf("SC_CLK_TCK")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def program(log: Path, *words: str) -> Iterator[int]:
    with log.open("wb") as output:
        child = subprocess.Popen([sys.executable, "-m", "mandor.cli.main", *words], stdout=output, stderr=output)
        try:
            yield child.pid
        finally:
            child.terminate()
            child.wait(WAIT_SECONDS)


def wait_for(path: Path) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not path.exists():
        if time.monotonic() > until:
            raise SystemExit(f"{path} did not appear")
        time.sleep(0.1)


def wait_answer(port: int, context: ssl.SSLContext | None, asked: bytes) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while True:
        try:
            return connect(port, context, asked)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def request(token_file: Path | None) -> bytes:
    """A request with the token of the file, without the fingerprint behind it."""
    token = f"Authorization: Bearer {token_file.read_text().partition('.')[0].strip()}\r\n" if token_file else ""
    return f"GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\n{token}Connection: close\r\n\r\n".encode()


def connect(port: int, context: ssl.SSLContext | None, asked: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=30) as plain:
        connection = context.wrap_socket(plain, server_hostname="localhost") if context else plain
        with connection:
            connection.sendall(asked)
            answer = b""
            while data := connection.recv(65536):
                answer += data
    if not answer.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"the server answered {answer[:60]!r}")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def measured(pid: int, port: int, context: ssl.SSLContext | None, asked: bytes) -> dict[str, float]:
    """Milliseconds for each connection: the server's processor time, and time on the clock, best and median round."""
    cpu, wall = [], []
    for _ in range(ROUNDS):
        began, used = time.monotonic(), cpu_seconds(pid)
        for _ in range(CONNECTIONS):
            connect(port, context, asked)
        cpu.append(1000 * (cpu_seconds(pid) - used) / CONNECTIONS)
        wall.append(1000 * (time.monotonic() - began) / CONNECTIONS)
    return {
        "server_cpu_ms_best": round(min(cpu), 3),
        "server_cpu_ms_median": round(statistics.median(cpu), 3),
        "wall_ms_median": round(statistics.median(wall), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    result: dict[str, object] = {"connections": CONNECTIONS, "rounds": ROUNDS}
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder, plain, secure = Path(name), free_port(), free_port()
        words = ("server", "--data", str(folder / "plain"), "--listen", f"127.0.0.1:{plain}")
        plain_pid = stack.enter_context(program(folder / "plain.log", *words))
        words = ("server", "--data", str(folder / "secure"), "--listen", f"127.0.0.1:{secure}", "--tls")
        secure_pid = stack.enter_context(program(folder / "secure.log", *words))
        wait_for(folder / "secure" / "join.token")
        authorities = str(folder / "secure" / "tls" / "authorities.pem")
        wait_for(Path(authorities))
        anonymous, node = (ssl.create_default_context(cafile=authorities) for _ in range(2))
        wait_for(folder / "plain" / "admin.token")
        by_token = [request(folder / each / "admin.token") for each in ("plain", "secure")]
        wait_answer(plain, None, by_token[0])
        wait_answer(secure, anonymous, by_token[1])
        words = ("--server", f"https://localhost:{secure}", "--name", "n1", "--engine", "fake")
        token = ("--join-token-file", str(folder / "secure" / "join.token"))
        with program(folder / "agent.log", "agent", "--data", str(folder / "agent"), *words, *token):
            wait_for(folder / "agent" / "node.pem")
        node.load_cert_chain(folder / "agent" / "node.pem")
        kinds = {
            "without_tls": (plain_pid, plain, None, by_token[0]),
            "tls": (secure_pid, secure, anonymous, by_token[1]),
            "tls_with_node_certificate": (secure_pid, secure, node, request(None)),
        }
        for kind, each in kinds.items():
            found = result[kind] = measured(*each)
            server, wall = found["server_cpu_ms_median"], found["wall_ms_median"]
            print(f"{kind:28} {server:6.2f} ms of the server, {wall:6.2f} ms in all")
    costs = {kind: result[kind]["server_cpu_ms_median"] for kind in kinds}  # type: ignore[index]
    handshake = {kind: round(costs[kind] - costs["without_tls"], 3) for kind in costs if kind != "without_tls"}
    result["handshake_server_cpu_ms"] = handshake
    all_agents = AGENTS * CONNECTIONS_OF_AGENT * handshake["tls_with_node_certificate"] / 1000
    result["start_of_5000_agents_cpu_seconds"] = round(all_agents, 1)
    print(f"handshakes: {handshake}")
    if options.json:
        options.json.write_text(json.dumps({"bench": "tls", "machine": machine(), "result": result}, indent=2) + "\n")


if __name__ == "__main__":
    main()
