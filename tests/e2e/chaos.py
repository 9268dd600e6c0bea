"""Kills servers and agents at random moments while people change what they want, and checks what came of it."""

from __future__ import annotations

import http.client
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.cluster import Cluster, Program, eventually

PATIENT = {"MANDOR_SUSPECT_AFTER": "60s", "MANDOR_LOST_AFTER": "120s", "MANDOR_LEASE": "2s"}
"""Nobody is given up: what starts twice then does so by mistake, not by policy."""
FAKES, PROCESSES = ("f0", "f1", "f2"), ("p0", "p1")

FAKE = """
name: {name}
replicas: {replicas}
engine: fake
command: [run]
restart: {{delay: 200ms, max_delay: 1s, attempts: 1000}}
stop: {{grace: 1s}}
options: {{fake: {{start_delay: 50ms, after: 5s, exit_code: 1, chance: 0.1}}}}
"""

PROCESS = """
name: {name}
replicas: {replicas}
engine: process
command: [sh, -c, 'pwd >> {log}; exec sleep 1000']
restart: {{delay: 200ms, max_delay: 1s, attempts: 1000}}
stop: {{grace: 1s}}
"""


@dataclass
class Chaos:
    """One run: the cluster, what was acknowledged, and how often something was killed."""

    cluster: Cluster
    dice: random.Random
    log: Path
    """Where processes write that they began."""
    wanted: dict[str, int] = field(default_factory=dict)
    """Replicas by workload, as far as they were acknowledged; after a lost answer both are possible."""
    unsure: dict[str, set[int | None]] = field(default_factory=dict)
    kills: int = 0

    @property
    def programs(self) -> list[Program]:
        return [*self.cluster.servers, *self.cluster.agents.values()]

    def run(self, kills: int) -> None:
        while self.kills < kills:
            for _ in range(self.dice.randint(1, 4)):
                self.change()
            for program in self.dice.sample(self.programs, self.dice.randint(1, min(3, len(self.programs)))):
                time.sleep(self.dice.uniform(0, 0.3))
                program.kill()
                self.kills += 1
            time.sleep(self.dice.uniform(0, 0.4))
            for program in self.programs:
                if not program.running:
                    program.start()
            # A young process is killed, too: half the time nobody waits for it.
            time.sleep(self.dice.choice([0.2, 0.8, 1.5, 2.5]))

    def change(self) -> None:
        """Someone applies or deletes a workload; an answer that did not come leaves both outcomes open."""
        name = f"w{self.dice.randint(0, 5)}"
        replicas = self.dice.randint(0, 4) if self.dice.random() < 0.8 else None
        before = self.wanted.get(name)
        try:
            if replicas is None:
                status, _ = self.cluster.call("DELETE", f"/v1/workloads/{name}")
                good = status in {200, 404}
            else:
                text = self._manifest(name, replicas)
                status, _ = self.cluster.call("POST", "/v1/apply", text, content="application/yaml")
                good = status == 200
        except (OSError, http.client.HTTPException):
            good, status = False, 0
        if good:
            self.unsure.pop(name, None)
            self._know(name, replicas)
        elif status in {0, 503}:
            self.unsure.setdefault(name, {before}).add(replicas)

    def _manifest(self, name: str, replicas: int) -> str:
        form = PROCESS if name in {"w0", "w1", "last-process"} else FAKE
        return form.format(name=name, replicas=replicas, log=self.log)

    def _know(self, name: str, replicas: int | None) -> None:
        if replicas is None:
            self.wanted.pop(name, None)
        else:
            self.wanted[name] = replicas

    # Afterwards.

    def settle(self) -> None:
        """Everything runs; what was acknowledged is there, and what is there is what was acknowledged."""
        for program in self.programs:
            if not program.running:
                program.start()
        self.cluster.wait_ready()
        self.cluster.wait_nodes(*self.cluster.agents)
        for name in ("last-process", "last-fake"):
            self.cluster.apply(self._manifest(name, 2))
            self._know(name, 2)
        stored = {
            one["meta"]["name"]: one["spec"]["groups"]["main"].get("replicas", 1)
            for one in self.cluster.items("workloads")
        }
        for name in {*self.wanted, *self.unsure, *stored}:
            possible = self.unsure.get(name, {self.wanted.get(name)})
            assert stored.get(name) in possible, f"{name}: stored {stored.get(name)}, acknowledged {possible}"
        eventually(f"all of {stored} run", lambda: self._converged(stored), patience=120)

    def _converged(self, stored: dict[str, int]) -> bool:
        instances = self.cluster.instances()
        live = Counter(one["spec"]["workload"] for one in instances)
        # A fake unit may be between two of its own crashes just now.
        fine = all(one["status"]["phase"] in {"Running", "Starting"} for one in instances)
        return fine and live == Counter({name: count for name, count in stored.items() if count})


def survive(folder: Path, seed: int, kills: int) -> list[Any]:
    """One server on SQLite, and five agents, killed so often: what was started twice."""
    with Cluster(folder / "cluster", settings=PATIENT) as cluster:
        cluster.start_server()
        for name in (*FAKES, *PROCESSES):
            cluster.start_agent(name, engines=("fake" if name in FAKES else "process",))
        cluster.wait_nodes(*FAKES, *PROCESSES)
        chaos = Chaos(cluster, random.Random(seed), folder / "starts")
        chaos.run(kills)
        chaos.settle()
        return [*doubled_fake_starts(cluster, FAKES), *doubled_process_starts(chaos.log)]


def doubled_fake_starts(cluster: Cluster, names: Iterable[str]) -> list[Any]:
    """Units that the fake world of any of these nodes started twice, or that two of them started."""
    starts: Counter[tuple[str, str, int]] = Counter()
    for name in names:
        with sqlite3.connect(cluster.home(name) / "engines" / "fake" / "world.db") as world:
            starts.update(tuple(row) for row in world.execute("SELECT uid, task, attempt FROM starts"))
        world.close()
    assert starts, "nothing was ever started"
    return [unit for unit, count in starts.items() if count > 1]


def doubled_process_starts(log: Path) -> list[str]:
    starts = Counter(log.read_text().splitlines())
    assert starts, "nothing was ever started"
    return [unit for unit, count in starts.items() if count > 1]
