"""People who use a failing cluster: they apply, scale, delete and drain, and write down what they were told."""

from __future__ import annotations

import http.client
import itertools
import random
import threading
import time
from typing import Any

from tests.faults.history import Call, Outcome, Read
from tests.faults.observer import MARK
from tests.faults.rig import SERVERS, NotReached, Rig

_USUAL = """
name: {name}
labels: {{{mark}: {call}}}
replicas: {count}
env: {{TURN: "{turn}"}}
restart: {{delay: 200ms, max_delay: 1s, attempts: 1000}}
reschedule: {{delay: 1s, max_delay: 3s}}
update: {{max_unavailable: 1, min_healthy: 1s}}
stop: {{grace: 1s}}
"""
_FAKE = "engine: fake\ncommand: [run]\noptions: {fake: {start_delay: 50ms, after: 3s, exit_code: 1, good_attempt: 2}}\n"
_PROCESS = "engine: process\ncommand: [sh, -c, '{command}']\n"
_SINGLE = "disconnect: {stop_after: 2s, lost_after: 13s}\n"

FAKES = ("w0", "w1", "w2", "w3", "one0", "one1")
PROCESSES = ("r0", "r1", "sole0")
SINGLE = frozenset({"one0", "one1", "sole0"})
NAMES = (*FAKES, *PROCESSES)
COUNT_MOST = 4


class People:
    """`number` of them; what they did is in `calls` and `reads` when they have stopped."""

    def __init__(self, rig: Rig, seed: int, number: int = 3) -> None:
        self._rig = rig
        self._numbers = itertools.count(1)
        self.calls: list[Call] = []
        self.reads: list[Read] = []
        self._drained = (rig.fakes[-1], rig.fakes[-2], rig.processes[-1])
        """Largest number of nodes that are drained at the same time."""
        self._over = threading.Event()
        self._broken: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._live, args=(random.Random(f"{seed} {one}"),), name=f"person {one}")
            for one in range(number)
        ]

    def start(self) -> None:
        for name in NAMES:  # so that something runs before the first fault
            self._apply(random.Random(name), name, server=0)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        if self._broken:
            raise self._broken[0]

    def _live(self, dice: random.Random) -> None:
        try:
            while not self._over.wait(dice.uniform(0.2, 1.0)):
                self._act(dice, dice.randrange(SERVERS))
        except BaseException as error:  # a thread's end is seen by nobody else
            self._broken.append(error)

    def _act(self, dice: random.Random, server: int) -> None:
        name, luck = dice.choice(NAMES), dice.random()
        if luck < 0.4:
            self._apply(dice, name, server)
        elif luck < 0.62:
            count = dice.randint(0, COUNT_MOST)
            change = {"groups": {"main": {"replicas": count}}}
            self._patch("scale", name, server, f"/v1/workloads/{name}", change, count=count)
        elif luck < 0.7:
            self._write("delete", name, server, "DELETE", f"/v1/workloads/{name}")
        elif luck < 0.8:
            self.tend(dice.choice(self._drained), dice.choice(["cordon", "drain", "uncordon", "uncordon"]), server)
        else:
            self._read(server)

    def _apply(self, dice: random.Random, name: str, server: int) -> None:
        mark, count = self._mark(), dice.randint(1, COUNT_MOST)
        text = _USUAL.format(name=name, mark=MARK, call=mark, count=count, turn=dice.choice("aaab"))
        text += _FAKE if name in FAKES else _PROCESS.format(command=self._rig.roll.command)
        text += _SINGLE if name in SINGLE else ""
        self._write("apply", name, server, "POST", "/v1/apply", text, mark=mark, count=count)

    def tend(self, node: str, verb: str, server: int) -> bool:
        """Whether it was done."""
        change = {
            "cordon": {"cordoned": True},
            "drain": {"cordoned": True, "drain": {}},
            "uncordon": {"cordoned": False, "drain": None},
        }[verb]
        return self._patch(verb, node, server, f"/v1/nodes/{node}", change)

    def tidy(self) -> bool:
        """Take back whatever keeps work from nodes; whether that is done."""
        return sum(self.tend(node, "uncordon", 0) for node in self._drained) == len(self._drained)

    def _mark(self) -> str:
        """Each write changes something, and is known by it."""
        return f"c{next(self._numbers)}"

    def _patch(self, verb: str, name: str, server: int, path: str, spec: Any, **more: Any) -> bool:
        mark = self._mark()
        body = {"meta": {"labels": {MARK: mark}}, "spec": spec}
        return self._write(verb, name, server, "PATCH", path, body, mark=mark, **more)

    # How it went.

    def _write(self, verb: str, name: str, server: int, method: str, path: str, body: Any = None, **more: Any) -> bool:
        content = "application/yaml" if isinstance(body, str) else "application/json"
        begun = time.monotonic()
        outcome: Outcome = "unknown"
        revision, why = 0, ""
        try:
            status, answer = self._rig.call(server, method, path, body, content=content)
            if status == 200:
                outcome = "acknowledged"
                revision = answer["revision"] if verb == "apply" else answer["meta"]["version"]
            else:
                outcome = "refused" if status < 500 else "unknown"
                why = f"{status} {answer}"
        except NotReached as error:
            outcome, why = "refused", f"not reached: {error}"
        except (OSError, http.client.HTTPException) as error:
            why = repr(error)
        self.calls.append(
            Call(verb, name, server, begun, time.monotonic(), outcome, revision=revision, why=why, **more)
        )
        return outcome == "acknowledged"

    def _read(self, server: int) -> None:
        begun = time.monotonic()
        try:
            _, revision = self._rig.items("workloads", server)
        except (OSError, http.client.HTTPException):
            return
        self.reads.append(Read(server, begun, time.monotonic(), revision))
