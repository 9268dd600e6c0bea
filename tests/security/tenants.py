"""Two tenants on one node: a server that requires tokens, an agent with five engines, a victim and an attacker."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.components.ports import free_port
from tests.e2e.cluster import Program, end_units, eventually

ENGINES = ("process", "docker", "podman", "cri", "incus")
VICTIM, ATTACKER = "bank", "thief"
NAMESPACE = """
kind: namespace
name: {name}
level: restricted
engines: [process, docker, podman, cri, incus]
registries: [mandor.test, docker.io/library/mandor-busybox]
"""
RUN_ATTACKS = """if [ $(id -u) = 0 ] && awk '$1 == 0 && $2 == 0' /proc/self/uid_map | grep -q .; then
echo @@be-root; echo PWNED; echo @@end; exit 0; fi
for attack; do
echo "@@${attack%% *}"; timeout 30 sh -c "${attack#* }" </dev/null 2>&1 | head -c 2000; echo
done
echo @@end"""
"""Runs each argument, `NAME COMMAND`. Some of the commands would end this very machine if a task were root on it."""
SECRET = """
kind: secret
name: pin
namespace: {namespace}
data: {{env: {marker}-env, file: {marker}-file}}
"""


@dataclass
class Tenants:
    """The running cluster with both tenants; `stop` ends everything it started."""

    directory: Path
    options: tuple[str, ...]
    """Arguments of the agent: one socket or URL per engine."""
    images: Mapping[str, str]
    """The image that each engine runs; `process` has none."""
    marker: str = field(default_factory=lambda: f"S3CR3T-{uuid.uuid4().hex[:12]}")
    """Part of everything that only the victim may know."""
    url: str = ""
    programs: list[Program] = field(default_factory=list)
    tokens: dict[str, str] = field(default_factory=dict)

    @property
    def agent_home(self) -> Path:
        return self.directory / "agent"

    @property
    def server_home(self) -> Path:
        return self.directory / "server"

    def start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        address = f"127.0.0.1:{free_port()}"
        self.url = f"http://{address}"
        self._run("server", "mandor.roots.server", "--data", str(self.server_home), "--listen", address)
        eventually("the server is ready", lambda: self.call("GET", "/readyz", token="")[0] == 200)
        self.tokens["admin"] = (self.server_home / "admin.token").read_text().strip()
        words = [word for engine in ENGINES for word in ("--engine", engine)]
        token_file = str(self.server_home / "join.token")
        named = ("--name", "n1", "--server", self.url, "--join-token-file", token_file)
        self._run("agent", "mandor.roots.agent", "--data", str(self.agent_home), *named, *words, *self.options)
        eventually("the node is ready with every engine", self._node_ready, patience=120)
        for name in (VICTIM, ATTACKER):
            self.apply(NAMESPACE.format(name=name))
            self.tokens[name] = self.make_token("operator", name)
        self.apply(SECRET.format(namespace=VICTIM, marker=self.marker), token=self.tokens[VICTIM])

    def stop(self) -> None:
        for program in reversed(self.programs):
            program.end()
        end_units(self.agent_home)

    def print_logs(self) -> None:
        for program in self.programs:
            print(f"== the log of {program.name} ends:\n{program.text()[-4000:]}")

    def _run(self, name: str, module: str, *words: str) -> None:
        environ = {"MANDOR_HEARTBEAT": "500ms"}
        program = Program(name, [sys.executable, "-m", module, *words], self.directory / f"{name}.log", environ)
        self.programs.append(program)
        program.start()

    def _node_ready(self) -> bool:
        nodes = self.items("nodes")
        if not nodes or nodes[0]["status"]["phase"] != "Ready":
            return False
        engines = nodes[0]["status"]["engines"]
        return all(engine in engines and engines[engine].get("up", True) for engine in ENGINES)

    # The API, as one of the tenants or as the administrator.

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        token: str | None = None,
        content: str = "application/json",
    ) -> tuple[int, str]:
        """(status, text of the answer); `token` None: the administrator's, empty: none."""
        token = self.tokens.get("admin", "") if token is None else token
        data = None if body is None else (body if isinstance(body, str) else json.dumps(body)).encode()
        headers = {"Content-Type": content} | ({"Authorization": f"Bearer {token}"} if token else {})
        request = Request(self.url + path, data, headers, method=method)
        try:
            with urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode(errors="replace")
        except HTTPError as error:
            return error.code, error.read().decode(errors="replace")

    def apply(self, manifest: str, *, token: str | None = None) -> tuple[int, str]:
        status, text = self.call("POST", "/v1/apply", manifest, token=token, content="application/yaml")
        assert status == 200, text
        return status, text

    def items(self, plural: str, *, token: str | None = None, query: str = "") -> list[Any]:
        status, text = self.call("GET", f"/v1/{plural}{query}", token=token)
        assert status == 200, text
        found: list[Any] = json.loads(text)["items"]
        return found

    def make_token(self, role: str, namespace: str) -> str:
        wanted = {"role": role, "identity": f"user:{namespace}-{role}", "namespaces": [namespace]}
        status, text = self.call("POST", "/v1/tokens", wanted)
        assert status == 201, text
        made: str = json.loads(text)["token"]
        return made

    def phases(self, namespace: str) -> dict[str, str]:
        found = self.items("instances", query=f"?namespace={namespace}")
        return {each["meta"]["name"]: each["status"]["phase"] for each in found}

    def failures(self, namespace: str) -> list[str]:
        found = self.items("instances", query=f"?namespace={namespace}")
        return [f"{each['meta']['name']}: {each['status']}" for each in found if each["status"]["phase"] != "Running"]

    def logs(self, namespace: str, instance: str) -> str:
        return self.call("GET", f"/v1/instances/{instance}/logs?namespace={namespace}")[1]

    # Work.

    def manifest(self, namespace: str, name: str, engine: str, script: str, more: str = "", *words: str) -> str:
        """A workload that runs a shell script on one engine, with these arguments."""
        image = f"image: {self.images[engine]}\n" if engine in self.images else ""
        command = json.dumps(["sh", "-c", script, "sh", *words])
        return (
            f"name: {name}\nnamespace: {namespace}\nengine: {engine}\n{image}command: {command}\n"
            f"restart: {{policy: never}}\nstop: {{grace: 1s}}\n{more}"
        )

    def start_victims(self) -> None:
        """One instance per engine that holds the marker wherever a task can hold something."""
        for engine in ENGINES:
            volume = "data" if engine == "process" else "/data"
            script = (
                f"echo {self.marker}-log; echo {self.marker}-volume > {volume}/note; "
                f"echo {self.marker}-shm > /dev/shm/note 2>/dev/null; echo {self.marker}-tmp > /tmp/note; "
                f"exec sh -c 'while :; do sleep 1; done' {self.marker}-argument"
            )
            file = "pin" if engine == "process" else "/tmp/pin"
            more = (
                f"secrets: {{PIN: pin/env}}\nfiles: [{{path: {file}, secret: pin/file}}]\n"
                f"volumes: {{data: {{type: local, size: 1Mi}}}}\nmounts: [{{volume: data, path: {volume}}}]\n"
            )
            manifest = self.manifest(VICTIM, f"vault-{engine}", engine, script, more)
            self.apply(manifest, token=self.tokens[VICTIM])

        def running() -> bool:
            phases = self.phases(VICTIM)
            assert "Failed" not in phases.values(), self.failures(VICTIM)
            return len(phases) == len(ENGINES) and set(phases.values()) == {"Running"}

        eventually("the victim runs on every engine", running, patience=180)

    def run_attacks(self, engine: str, attacks: Mapping[str, str]) -> dict[str, str]:
        """What each attack printed, by its name, when it ran inside a task of the attacker on this engine."""
        return self.run_attacks_as(engine, f"probe-{engine}", attacks)

    def run_attacks_as(self, engine: str, name: str, attacks: Mapping[str, str], more: str = "") -> dict[str, str]:
        """The same in a workload of this name, with more keys in its manifest."""
        words = [f"{each} {command}" for each, command in attacks.items()]
        name = name if name.endswith(engine) else f"{name}-{engine}"
        more += "type: batch\nbatch: {retries: 0}\nresources: {limits: {processes: 200}}\n"
        manifest = self.manifest(ATTACKER, name, engine, RUN_ATTACKS, more, *words)
        self.apply(manifest, token=self.tokens[ATTACKER])
        over = {"Succeeded", "Failed"}
        eventually(
            f"the attacks on {engine} are over", lambda: self.phases(ATTACKER).get(f"{name}-0") in over, patience=300
        )
        text = self.logs(ATTACKER, f"{name}-0")
        assert "@@end" in text, f"the script of attacks did not end: {text}"
        parts = (part.partition("\n") for part in text.split("@@")[1:])
        return {head.strip(): rest for head, _, rest in parts}
