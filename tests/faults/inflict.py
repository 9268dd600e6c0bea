"""Makes things fail: each kind of fault is a context; inside it the fault lasts, and its end undoes it."""

from __future__ import annotations

import contextlib
import errno
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tests.components.etcd import NotReady
from tests.faults.plan import KINDS, LANES, Fault
from tests.faults.program import set_clock
from tests.faults.rig import MEMBERS, Placed, Rig

T = TypeVar("T")
Victims = Iterator[Sequence[str]]
WRONG_BY = (-3600.0, -7.0, 7.0, 3600.0)
STOPPED_SECONDS, GOING_SECONDS = 0.4, 0.15


@dataclass(frozen=True)
class Suffered:
    """A fault with its target and time."""

    kind: str
    victims: tuple[str, ...]
    begun: float
    ended: float


class Trouble:
    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.suffered: list[Suffered] = []
        self.broken: list[BaseException] = []
        self._kinds: dict[str, Callable[[random.Random], AbstractContextManager[Sequence[str]]]] = {
            "kill the leader": lambda dice: self._killed([self._leader(dice)]),
            "kill a server": lambda dice: self._killed([dice.choice(rig.servers)]),
            "kill all servers": lambda dice: self._killed(rig.servers),
            "pause the leader": lambda dice: self._paused([self._leader(dice)]),
            "cut the leader off from etcd": lambda dice: self._cut([self._leader(dice).name], rig.members),
            "drop what etcd answers the leader": lambda dice: self._cut(
                rig.members, [self._leader(dice).name], both=False
            ),
            "set the clock of a server": lambda dice: self._wrong(dice, [dice.choice(rig.servers)]),
            "kill the leader of etcd": lambda dice: self._members_killed([self._member(dice)]),
            "kill a member of etcd": lambda dice: self._members_killed([dice.randrange(MEMBERS)]),
            "kill most of etcd": lambda dice: self._members_killed(dice.sample(range(MEMBERS), MEMBERS // 2 + 1)),
            "pause the leader of etcd": lambda dice: self._member_paused(self._member(dice)),
            "cut the leader of etcd off from the others": lambda dice: self._member_cut(self._member(dice)),
            "drop what a member of etcd sends": lambda dice: self._member_cut(dice.randrange(MEMBERS), both=False),
            "fill the disk of a member of etcd": lambda _: self._member_full(0),
            "stop and continue all of etcd": lambda _: self._stutter(),
            "kill agents": lambda dice: self._killed(dice.sample(list(rig.agents.values()), 4)),
            "pause agents": lambda dice: self._paused(dice.sample(list(rig.agents.values()), 2)),
            "cut an agent off": lambda dice: self._cut([dice.choice([*rig.agents])], rig.names),
            "cut an agent off for long": lambda dice: self._cut([dice.choice([*rig.agents])], rig.names),
            "kill an agent that is cut off": lambda dice: self._cut_and_killed(dice.choice([*rig.agents])),
            "drop what an agent sends": lambda dice: self._cut([dice.choice([*rig.agents])], rig.names, both=False),
            "drop what an agent is sent": lambda dice: self._cut(rig.names, [dice.choice([*rig.agents])], both=False),
            "fill the disk of an agent": lambda _: self._full("p0"),
            "set the clocks of agents": lambda dice: self._wrong(dice, dice.sample(list(rig.agents.values()), 3)),
            "give an agent another address": lambda dice: self._moved(dice.choice([*rig.agents])),
        }
        assert self._kinds.keys() == KINDS.keys()

    @property
    def able(self) -> set[str]:
        """Return the kinds of faults that this machine supports."""
        found = {"network"} if self._rig.network.real else set()
        return found | ({"disks"} if {"e0", "p0"} <= self._rig.disks.keys() else set())

    def run(self, plan: Sequence[Fault]) -> None:
        """All of it; each lane has a thread of its own."""
        threads = [
            threading.Thread(target=self._follow, args=([each for each in plan if each.lane == lane],), name=lane)
            for lane in LANES
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.broken:
            raise self.broken[0]

    def _follow(self, faults: Sequence[Fault]) -> None:
        try:
            for fault in faults:
                time.sleep(fault.after)
                self.inflict(fault)
        except BaseException as error:  # a thread's end is seen by nobody else
            self.broken.append(error)

    def inflict(self, fault: Fault) -> Suffered:
        begun = time.monotonic()
        with self._kinds[fault.kind](random.Random(fault.pick)) as victims:
            time.sleep(fault.lasts)
        self.suffered.append(Suffered(fault.kind, tuple(victims), begun, time.monotonic()))
        return self.suffered[-1]

    # Whom.

    def _leader(self, dice: random.Random) -> Placed:
        found = self._rig.leaders()
        number = found.get(dice.choice(["scheduler", "controllers"]))
        return self._rig.servers[number] if number is not None else dice.choice(self._rig.servers)

    def _member(self, dice: random.Random) -> int:
        try:
            return self._rig.etcd.leader()
        except NotReady:
            return dice.randrange(MEMBERS)

    # Servers and agents.

    @contextlib.contextmanager
    def _killed(self, programs: Sequence[Placed]) -> Victims:
        for program in programs:
            program.kill()
        yield [program.name for program in programs]
        for program in programs:
            program.start()

    @contextlib.contextmanager
    def _paused(self, programs: Sequence[Placed]) -> Victims:
        for program in programs:
            program.pause()
        yield [program.name for program in programs]
        for program in programs:
            program.resume()

    @contextlib.contextmanager
    def _wrong(self, dice: random.Random, programs: Sequence[Placed]) -> Victims:
        for program in programs:
            set_clock(program.clock, dice.choice(WRONG_BY))
        yield [program.name for program in programs]
        for program in programs:
            set_clock(program.clock, 0.0)

    @contextlib.contextmanager
    def _cut(self, sources: Sequence[str], targets: Sequence[str], *, both: bool = True) -> Victims:
        with self._rig.network.cut(sources, targets, both=both):
            yield [*sources, *targets]

    @contextlib.contextmanager
    def _cut_and_killed(self, name: str) -> Victims:
        """Cut a machine off from the control plane while its agent is killed."""
        with self._cut([name], self._rig.names) as victims, self._killed([self._rig.agents[name]]):
            yield victims

    @contextlib.contextmanager
    def _moved(self, name: str) -> Victims:
        self._rig.network.move(name)
        yield [name]

    @contextlib.contextmanager
    def _full(self, name: str) -> Victims:
        ballast = self._rig.disks[name] / "ballast"
        _fill(ballast)
        yield [name]
        ballast.unlink()

    # etcd.

    def _shown(self, *indexes: int) -> list[str]:
        return [self._rig.members[index] for index in indexes]

    def _signal(self, number: signal.Signals, *indexes: int) -> None:
        for index in indexes:
            process = self._rig.etcd.members[index].process
            if process is not None:  # one that has ended, with a full disk, gets nothing
                process.send_signal(number)

    @contextlib.contextmanager
    def _members_killed(self, indexes: Sequence[int]) -> Victims:
        etcd = self._rig.etcd
        for index in indexes:
            if etcd.members[index].running:
                etcd.kill(index)
        yield self._shown(*indexes)
        for index in indexes:
            if not etcd.members[index].running:
                etcd.start(index, wait=False)

    @contextlib.contextmanager
    def _member_paused(self, index: int) -> Victims:
        self._signal(signal.SIGSTOP, index)
        yield self._shown(index)
        self._signal(signal.SIGCONT, index)

    def _member_cut(self, index: int, *, both: bool = True) -> AbstractContextManager[Sequence[str]]:
        name = self._rig.members[index]
        return self._cut([name], [each for each in self._rig.members if each != name], both=both)

    @contextlib.contextmanager
    def _member_full(self, index: int) -> Victims:
        """Fill the disk of etcd, which exits; restart it when there is room again."""
        with self._full(self._rig.members[index]) as victims:
            yield victims
        # It may just be about to end.
        time.sleep(0.2)
        if not self._rig.etcd.members[index].running:
            self._rig.etcd.start(index, wait=False)

    @contextlib.contextmanager
    def _stutter(self) -> Victims:
        """Pause all etcd members repeatedly, for longer than a heartbeat of etcd, as a slow disk does."""
        over = threading.Event()

        def stutter() -> None:
            while not over.is_set():
                self._signal(signal.SIGSTOP, *range(MEMBERS))
                time.sleep(STOPPED_SECONDS)
                self._signal(signal.SIGCONT, *range(MEMBERS))
                over.wait(GOING_SECONDS)

        thread = threading.Thread(target=stutter, name="stutter")
        with ExitStack() as stack:
            thread.start()
            stack.callback(thread.join)
            stack.callback(over.set)
            yield self._rig.members


def _fill(ballast: Path) -> None:
    """To the last byte."""
    with ballast.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2
