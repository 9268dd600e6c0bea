"""A small agent for the crash test: calls verbs of a process engine at random until it is killed.

Started once; for each line on standard input (a seed) it forks one agent and prints its number, then, when that is
dead, `dead`. What must outlive an agent is in a file, as in a real one's journal: which units it has decided to remove.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

from mandor.engines.base import Launch, Mount, Unit
from mandor.engines.process import ProcessEngine

AT_ONCE = 24
"""Number of units of each agent; most of them were used by earlier agents."""


def make_units(prefix: str) -> list[Unit]:
    """Return the units of a prefix."""
    return [Unit(f"{prefix}{number:04x}", "main", attempt) for number in range(100) for attempt in range(2)]


async def give_orders(directory: Path, ledger: Path, journal: Path, units: list[Unit], seed: int) -> None:
    chance = random.Random(seed)
    engine = ProcessEngine(directory)
    first = seed * 3 % (len(units) - AT_ONCE)
    known = units[first : first + AT_ONCE]
    # One handles the stop signal, one ignores it; each prints when it starts.
    mounts = (Mount(path="/mnt", source=str(ledger.parent.resolve())),)
    scripts = [
        f"echo $MANDOR_UNIT >> /mnt/{ledger.name}; {rest}"
        for rest in ("exec sleep 3600", "trap '' TERM; sleep 3600; :")
    ]

    async def order() -> None:
        while True:
            unit = chance.choice(known)
            removed = str(unit) in journal.read_text().split()
            verb = chance.choices(["start", "stop", "remove", "list"], [8, 2, 1, 2])[0]
            if verb == "start" and not removed:
                script = scripts[int(unit.uid, 16) % 2]
                command = ("sh", "-c", script)
                await engine.start(unit, Launch(name="crash", command=command, mounts=mounts, memory_bytes=64 << 20))
            elif verb == "stop":
                await engine.stop(unit, grace_seconds=chance.choice([0, 0.05, 0.2]))
            elif verb == "remove":
                with journal.open("a") as file:
                    file.write(f"{unit}\n")
                await engine.remove(unit)
            elif verb == "list":
                await engine.list()

    await asyncio.gather(*(order() for _ in range(4)))


def main() -> None:
    directory, ledger, journal = map(Path, sys.argv[1:4])
    units = make_units(sys.argv[4])
    for line in sys.stdin:
        agent = os.fork()
        if agent == 0:
            os.setsid()
            asyncio.run(give_orders(directory, ledger, journal, units, int(line)))
        print(agent, flush=True)
        os.waitpid(agent, 0)
        print("dead", flush=True)


if __name__ == "__main__":
    main()
