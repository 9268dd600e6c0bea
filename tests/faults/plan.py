"""Plans faults from a seed, without I/O; servers, etcd and agents fail independently of each other."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal

Lane = Literal["servers", "etcd", "agents"]
LANES: tuple[Lane, ...] = ("servers", "etcd", "agents")


@dataclass(frozen=True)
class Kind:
    """One way to fail: whose, and for how long, in seconds, or in leases."""

    lane: Lane
    seconds: tuple[float, float] = (0.0, 0.0)
    leases: tuple[float, float] = (0.0, 0.0)
    needs: Literal["", "network", "disks"] = ""

    def lasts(self, dice: random.Random, lease: float) -> float:
        return dice.uniform(*self.seconds) + dice.uniform(*self.leases) * lease


KINDS: Mapping[str, Kind] = {
    "kill the leader": Kind("servers", leases=(1.5, 2.0)),
    "kill a server": Kind("servers", (0.0, 2.0)),
    "kill all servers": Kind("servers", (1.0, 3.0)),
    "pause the leader": Kind("servers", leases=(1.5, 2.0)),
    "cut the leader off from etcd": Kind("servers", leases=(1.5, 2.0), needs="network"),
    "drop what etcd answers the leader": Kind("servers", leases=(1.5, 2.0), needs="network"),
    "set the clock of a server": Kind("servers", (2.0, 4.0)),
    "kill the leader of etcd": Kind("etcd", (1.0, 3.0)),
    "kill a member of etcd": Kind("etcd", (1.0, 4.0)),
    "kill most of etcd": Kind("etcd", (1.0, 3.0)),
    "pause the leader of etcd": Kind("etcd", (2.0, 4.0)),
    "cut the leader of etcd off from the others": Kind("etcd", (2.0, 5.0), needs="network"),
    "drop what a member of etcd sends": Kind("etcd", (2.0, 5.0), needs="network"),
    "fill the disk of a member of etcd": Kind("etcd", (3.0, 5.0), needs="disks"),
    "stop and continue all of etcd": Kind("etcd", (3.0, 5.0)),
    "kill agents": Kind("agents", (0.0, 2.0)),
    "pause agents": Kind("agents", leases=(1.1, 2.0)),
    "cut an agent off": Kind("agents", (7.0, 9.0), needs="network"),
    "cut an agent off for long": Kind("agents", (16.0, 19.0), needs="network"),
    "kill an agent that is cut off": Kind("agents", (16.0, 19.0), needs="network"),
    "drop what an agent sends": Kind("agents", (5.0, 9.0), needs="network"),
    "drop what an agent is sent": Kind("agents", (5.0, 9.0), needs="network"),
    "fill the disk of an agent": Kind("agents", (3.0, 5.0), needs="disks"),
    "set the clocks of agents": Kind("agents", (2.0, 4.0)),
    "give an agent another address": Kind("agents", needs="network"),
}
CALM: Mapping[Lane, tuple[float, float]] = {"servers": (2.0, 4.0), "etcd": (1.0, 3.0), "agents": (0.5, 1.5)}
"""Between two troubles of the same lane."""


@dataclass(frozen=True)
class Fault:
    lane: Lane
    kind: str
    after: float
    """Seconds of calm before it."""
    lasts: float
    pick: int
    """Number that selects the target among those that exist then."""

    def __str__(self) -> str:
        return f"{self.kind}, after {self.after:.1f} s, for {self.lasts:.1f} s"


def make_plan(seed: int, *, rounds: int, lease: float, able: Collection[str] = ("network", "disks")) -> list[Fault]:
    """Every kind that this machine is able to, once a round, in an order of the seed's own."""
    dice = random.Random(seed)
    found = []
    for _ in range(rounds):
        for lane in LANES:
            names = [name for name, kind in KINDS.items() if kind.lane == lane and (kind.needs or "") in {"", *able}]
            for name in dice.sample(names, len(names)):
                after, lasts = dice.uniform(*CALM[lane]), KINDS[name].lasts(dice, lease)
                found.append(Fault(lane, name, after, lasts, dice.randrange(2**32)))
    return found
