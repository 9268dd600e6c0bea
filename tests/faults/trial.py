"""One run: a cluster, people who use it, faults from a seed, then rest; what came of it is a history and a report."""

from __future__ import annotations

import http.client
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mandor.model.phase import Phase
from tests.e2e.cluster import eventually
from tests.faults.checker import violations
from tests.faults.history import History, story
from tests.faults.inflict import Suffered, Trouble
from tests.faults.people import SINGLE, People
from tests.faults.plan import make_plan
from tests.faults.rig import Rig, summary

REST_SECONDS = 4.0
"""Seconds without changes after which a cluster has settled; longer than any unit that ends by itself runs."""
PATIENCE_SECONDS = 180.0


@dataclass(frozen=True)
class Trial:
    seed: int
    lease: float
    history: History
    suffered: Sequence[Suffered]
    seconds: float
    rest_seconds: float
    """Seconds from the end of the last fault until the counts were and stayed correct."""

    @property
    def violations(self) -> list[str]:
        return violations(self.history)

    def evidence(self) -> list[str]:
        """Return the history of the instances that violations name."""
        history = self.history
        words = {word.strip("(),:") for each in self.violations for word in each.split()}
        known = {life.uid for life in history.lives} | {life.name for life in history.lives}
        return [line for word in sorted(words & known) for line in (f"== {word}", *story(history, word))]


def run_trial(folder: Path, etcd: Path, seed: int, *, rounds: int = 1, lease: float = 3.0, real: bool = True) -> Trial:
    begun = time.monotonic()
    with Rig(folder, etcd, lease=lease, real=real) as rig:
        trouble, people = Trouble(rig), People(rig, seed)
        try:
            people.start()
            trouble.run(make_plan(seed, rounds=rounds, lease=lease, able=trouble.able))
        finally:
            people.stop()
        over = time.monotonic()
        settle(rig, people)
        rest = time.monotonic() - over
        final = rig.final()
        history = History(people.calls, people.reads, rig.changes(), rig.lives(), final, SINGLE)
        trial = Trial(seed, lease, history, trouble.suffered, time.monotonic() - begun, rest)
        if trial.violations:
            rig.tell()
    return trial


def settle(rig: Rig, people: People) -> None:
    """Everything runs again; then wait until nothing is left to do."""
    for index, member in enumerate(rig.etcd.members):
        if not member.running:
            rig.etcd.start(index, wait=False)
    rig.etcd.wait_ready()
    for number, server in enumerate(rig.servers):
        if not server.running:  # it began while there was no etcd, and gave up: somebody starts it again
            server.start()
        rig.wait_ready(number)
    ended = [each.name for each in rig.agents.values() if not each.running]
    assert not ended, f"{ended} ended by themselves: {rig.agents[ended[0]].text()[-3000:]}"
    eventually("all nodes are heard", rig.all_ready, patience=PATIENCE_SECONDS)
    eventually("all nodes take work", people.tidy, patience=PATIENCE_SECONDS)
    resting: list[Any] = [None, 0.0]

    def at_rest() -> bool:
        now, seen = time.monotonic(), converged(rig)
        if seen is None or seen != resting[0]:
            resting[:] = [seen, now]
        time.sleep(0.4)
        return seen is not None and now - resting[1] >= REST_SECONDS

    try:
        eventually("the counts are right", at_rest, patience=PATIENCE_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}: {unrest(rig)}") from None


def converged(rig: Rig) -> list[Any] | None:
    """Return the running instances if they match the wanted counts."""
    try:
        if unrest(rig):
            return None
        return sorted((each["meta"]["uid"], each["status"].get("restarts", 0)) for each in rig.items("instances")[0])
    except (OSError, http.client.HTTPException):
        return None


def unrest(rig: Rig) -> list[str]:
    """Return the differences between the wanted and the running instances."""
    workloads, instances = rig.items("workloads")[0], rig.items("instances")[0]
    wanted = {each["meta"]["name"]: each["spec"]["groups"]["main"]["replicas"] for each in workloads}
    found = Counter(each["spec"]["workload"] for each in instances)
    counts = [f"{name}: {found[name]} of {wanted.get(name, 0)}" for name in {*wanted, *found}]
    wrong = [each for each in counts if each.split()[1] != each.split()[3]]
    return wrong + [
        f"{summary(each)} {each['status']}" for each in instances if each["status"]["phase"] != Phase.RUNNING
    ]
