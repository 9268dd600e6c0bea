"""What a task may say under `options.fake`: how it will behave."""

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
    """It ends by itself after so long; absent: it runs until it is stopped."""
    exit_code: int = 0
    signal: str = ""
    """It dies of this signal instead."""
    oom: bool = False
    """It dies for want of memory instead."""
    vanish: bool = False
    """It is gone instead, and nobody knows how."""
    good_attempt: int = 0
    """Attempts before this one end as said above; this one and later ones run on."""
    chance: Annotated[float, Meta(ge=0, le=1)] = 1.0
    """How likely a unit ends as said above; the others run on. Decided by the engine's seed and the unit."""
    fail_start: bool | str = False
    """It can never start; a text is the message."""
    down_starts: int = 0
    """So many orders to start it are answered with `EngineDown`."""
    start_delay: Seconds = Seconds(0)
    """It is `starting` for so long."""
    slow: Seconds = Seconds(0)
    """Each order about it takes so long."""
    hang_start: bool = False
    """The order to start it never returns and does nothing."""
    hang_stop: bool = False
    """The order to stop it never returns and does nothing."""
    stop_delay: Seconds = Seconds(0)
    """It needs so long to stop when asked."""
    ignore_stop: bool = False
    """It does not stop when asked: it is killed when the grace is over."""
    stop_code: int | None = None
    """The exit code when it is asked to stop; absent: it dies of the signal."""
    stdout: tuple[str, ...] = ()
    """Lines it prints when it begins.

    `${env:NAME}`, `${file:PATH}`, `${mode:PATH}`, `${arg:N}`, `${folder}` and `${user}` are filled in from its launch.
    """
    stderr: tuple[str, ...] = ()
    on_signal: str = ""
    """A line that it prints for each signal other than that of a stop; filled in as `stdout` is."""
    writes: dict[str, str] = {}
    """Files it writes into its mounts when it begins, text by path; it fails where it may not, or has none."""
    every: Seconds | None = None
    """It prints `tick N` so often."""
    cpu: Annotated[float, Meta(ge=0)] = 0.01
    """Cores it uses."""
    memory: Size = Size(1024 * 1024)

    def __post_init__(self) -> None:
        if self.signal and self.signal not in signal.Signals.__members__:
            raise ValueError(f"{self.signal!r} is not a signal")

    def ends(self, unit: Unit, seed: int) -> bool:
        """Whether this unit is one of those that end by themselves."""
        if self.after is None or (self.good_attempt and unit.attempt >= self.good_attempt):
            return False
        return random.Random(f"{seed} {unit}").random() < self.chance

    def ending(self) -> tuple[int | None, str, str]:
        """Exit code, reason and message of the end it comes to by itself."""
        if self.oom:
            return 137, "OOMKilled", "it used more memory than its limit"
        if self.vanish:
            return None, "Vanished", "gone, on cue"
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
    """A line with what it asks about the launch."""
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
