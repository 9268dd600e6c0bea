"""Options of a task under `options.fake`: the behaviour of the unit."""

from __future__ import annotations

import random
import re
import signal
from typing import Annotated

from msgspec import Meta, Struct

from mandor.engines import options as engine_options
from mandor.engines.base import Launch, Unit
from mandor.engines.fake.mounts import read_file
from mandor.lib.quantity import Seconds, Size


class FakeOptions(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    after: Seconds | None = None
    """Time after which the unit ends; absent: it runs until it is stopped."""
    exit_code: int = 0
    signal: str = ""
    """Signal that ends the unit instead of an exit."""
    oom: bool = False
    """Ends the unit with OOMKilled instead."""
    vanish: bool = False
    """Lets the unit vanish instead, without an exit code."""
    good_attempt: int = 0
    """Earlier attempts end as described above; this one and later ones run on."""
    chance: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """Probability that a unit ends as described above, decided by the engine's seed and the unit; others run on."""
    fail_start: bool | str = False
    """Makes the start fail for good; a text is the message."""
    down_starts: int = 0
    """Number of starts that fail with `EngineDown`."""
    start_delay: Seconds = Seconds(0)
    """Time in the phase `starting`."""
    slow: Seconds = Seconds(0)
    """Duration of each verb on the unit."""
    hang_start: bool = False
    """`start` never returns and does nothing."""
    hang_stop: bool = False
    """`stop` never returns and does nothing."""
    stop_delay: Seconds = Seconds(0)
    """Time between the stop signal and the end."""
    ignore_stop: bool = False
    """Ignores the stop signal: the unit is killed after the grace."""
    stop_code: int | None = None
    """Exit code after the stop signal; absent: the signal ends the unit."""
    stdout: tuple[str, ...] = ()
    """Lines that the unit prints when it starts.

    `${env:NAME}`, `${file:PATH}`, `${mode:PATH}`, `${arg:N}`, `${folder}` and `${user}` are filled in from its launch.
    """
    stderr: tuple[str, ...] = ()
    on_signal: str = ""
    """Line that the unit prints for each signal other than the stop signal; filled in as `stdout` is."""
    writes: dict[str, str] = {}
    """Files that the unit writes to its mounts when it starts, text by path; it fails if it cannot write one."""
    every: Seconds | None = None
    """Interval at which the unit prints `tick N`."""
    cpu: Annotated[float, Meta(ge=0)] = 0.01
    """CPU cores that the unit uses."""
    memory: Size = Size(1024 * 1024)

    def __post_init__(self) -> None:
        if self.signal and self.signal not in signal.Signals.__members__:
            raise ValueError(f"{self.signal!r} is not a signal")

    def ends(self, unit: Unit, seed: int) -> bool:
        """Return whether this unit ends by itself."""
        if self.after is None or (self.good_attempt and unit.attempt >= self.good_attempt):
            return False
        return random.Random(f"{seed} {unit}").random() < self.chance

    def ending(self) -> tuple[int | None, str, str]:
        """Return exit code, reason and message of its own end."""
        if self.oom:
            return 137, "OOMKilled", "it used more memory than its limit"
        if self.vanish:
            return None, "Vanished", "it vanished, as requested"
        if self.signal:
            return 128 + signal.Signals[self.signal], "Signalled", self.signal
        return (
            self.exit_code,
            "Error" if self.exit_code else "Completed",
            f"exit code {self.exit_code}" * bool(self.exit_code),
        )


def read_options(launch: Launch) -> FakeOptions:
    return engine_options.read_options("fake", launch.options, FakeOptions)


def fill_in(line: str, launch: Launch) -> str:
    """Return a line with its placeholders filled in from the launch."""
    files = {file.path: file for file in launch.files}
    plain = {
        "folder": launch.working_dir or "/",
        "user": "" if launch.user is None else str(launch.user),
    }

    def answer(match: re.Match[str]) -> str:
        kind, _, name = match[1].partition(":")
        if kind == "env":
            return launch.env.get(name, "")
        if kind == "file":
            found = files[name].content if name in files else read_file(launch, name)
            return (found or "").removesuffix("\n")
        if kind == "mode":
            return files[name].mode.removeprefix("0") if name in files else ""
        if kind == "arg":
            return launch.args[int(name)]
        return plain[kind]

    return re.sub(r"\$\{(env:[^}]*|file:[^}]*|mode:[^}]*|arg:\d+|folder|user)\}", answer, line)
