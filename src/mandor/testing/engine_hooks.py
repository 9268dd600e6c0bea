"""Hooks of the engine suite: the factory of an engine, launches and commands by their effect."""

import shlex
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from mandor.engines.base import Engine, Launch, Unit
from mandor.model.image import ImageFile
from mandor.model.level import Level
from mandor.testing.traces import find_traces

MIB = 1024 * 1024


class Line(Protocol):
    """The connection from an engine to its daemon, on which one request can be delayed."""

    engine: Engine

    def hold(self, skip: int) -> None:
        """Delay the request after the next `skip` requests that change something."""

    @property
    def holds(self) -> bool: ...

    def cut(self) -> None:
        """Cut the connection of the delayed request, as if its sender had died."""

    async def release(self) -> None:
        """Deliver the delayed request; return when the daemon has answered."""


class EngineHooks:
    """Differences between engines. Only `make_engine` is required."""

    image: ClassVar[str | None] = None
    other_user: ClassVar[str] = "65534"
    """Number of a user other than the engine's default; used if `user` is announced."""
    patience_seconds: ClassVar[float] = 60.0
    memory_limit_bytes: ClassVar[int] = 48 * MIB
    mount_path: ClassVar[str] = "/mnt"
    """Mount path of the suite's volumes."""
    seeded_path: ClassVar[tuple[str, str]] = ("", "")
    """A folder of the image, and a text file in it; empty: the engine copies nothing from images to new volumes."""
    level: ClassVar[Level] = "baseline"
    """Level of the namespace in the suite's launches."""
    limits: ClassVar[frozenset[str] | None] = None
    """Limits that the engine has to announce, no fewer and no more; None: any."""
    extras: ClassVar[frozenset[str] | None] = None
    """Capabilities that the engine has to announce; tests of others are skipped, so a lost one goes unnoticed
    without this. None: any."""

    def make_engine(self, directory: Path) -> Engine:
        """Make an engine object; a second one with the same directory is the same engine after a restart."""
        raise NotImplementedError("say how to make the engine")

    def traces(self, uids: Sequence[str]) -> Sequence[str]:
        """Return leftovers of removed units on the machine: processes, cgroups, mounts. It may be extended."""
        return find_traces(uids)

    @contextmanager
    def foreigner(self) -> Iterator[Callable[[], bool]]:
        """Run a foreign process; the function returns whether it still runs."""
        process = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        try:
            yield lambda: process.poll() is None
        finally:
            process.kill()
            process.wait()

    def occupies(self, unit: Unit) -> AbstractContextManager[Callable[[], bool]] | None:
        """Create a foreign object with the name of this unit; None: names cannot conflict."""
        return None

    def image_files(self) -> Sequence[tuple[ImageFile, bytes]]:
        """Return images in files, each with a POSIX shell and not on the machine; at least one of each supported
        kind."""
        return ()

    def forget_image(self, name: str) -> None:
        """Remove an image that was loaded."""

    def fetched_image(self, engine: Engine, name: str) -> bool:
        """Make the engine treat this image as pulled by itself; False: not possible."""
        return False

    def away(self) -> AbstractContextManager[None] | None:
        """Stop the engine's daemon inside the context; None: there is none that tests may stop."""
        return None

    def hangs(self) -> AbstractContextManager[None] | None:
        """Freeze the engine's daemon inside the context; None: as with `away`."""
        return None

    def line(self, directory: Path) -> AbstractContextManager[Line] | None:
        """Make an engine object over that directory whose requests can be delayed; None: the engine has no daemon."""
        return None

    def make_impatient(self, directory: Path) -> Engine:
        """Make an engine object with an answer timeout of half a second; used if the engine can hang."""
        return self.make_engine(directory)

    # Launches by their effect.

    def launch(self, **parts: Any) -> Launch:
        return Launch(**{"name": "suite", "image": self.image, "level": self.level} | parts)

    def shell(self, script: str, **parts: Any) -> Launch:
        return self.launch(**{"command": ("sh", "-c"), "args": (script,)} | parts)

    def sleeps(self, **parts: Any) -> Launch:
        """Prints `begun`, and ends with 0 on the stop signal."""
        return self.shell("trap 'exit 0' TERM; echo begun; while :; do sleep 0.1; done", **parts)

    def obeys(self, signal: str, code: int, **parts: Any) -> Launch:
        """Prints `begun`, runs until it gets that signal, and then ends with that code."""
        script = f"trap 'exit {code}' {signal.removeprefix('SIG')}; echo begun; while :; do sleep 0.1; done"
        return self.shell(script, stop_signal=signal, **parts)

    def shows_on_signal(self, signal: str, path: str, **parts: Any) -> Launch:
        """Prints `begun`, and the text of that file each time it gets the signal; ends well when asked to stop."""
        script = f"trap 'cat {shlex.quote(path)}' {signal.removeprefix('SIG')}; trap 'exit 0' TERM; echo begun; "
        return self.shell(f"{script} while :; do sleep 0.1; done", **parts)

    def ignores(self, **parts: Any) -> Launch:
        """Prints `begun`, and ignores the stop signal."""
        return self.shell("trap '' TERM; sleep 3600 & echo begun; while :; do sleep 0.1; done", **parts)

    def exits(self, code: int, **parts: Any) -> Launch:
        return self.shell(f"exit {code}", **parts)

    def exits_later(self, seconds: float, code: int, **parts: Any) -> Launch:
        return self.shell(f"sleep {seconds}; exit {code}", **parts)

    def dies(self, signal: str, **parts: Any) -> Launch:
        """Dies of that signal. In a container the first process cannot: there, run it under an init."""
        return self.shell(f"kill -{signal.removeprefix('SIG')} $$; sleep 3600", **parts)

    def cannot_start(self, **parts: Any) -> Launch:
        return self.launch(command=("/there/is/no/such/program",), **parts)

    def lacks_image(self, **parts: Any) -> Launch:
        """Has an image that is not on the machine and is not pulled."""
        return self.launch(image="mandor.test/nowhere:1", command=("sh",), options={"pull": "never"}, **parts)

    def prints(self, stdout: Sequence[str], stderr: Sequence[str] = (), **parts: Any) -> Launch:
        """Prints these lines, then ends well."""
        script = [f"printf '%s\\n' {shlex.quote(line)}" for line in stdout]
        script += [f"printf '%s\\n' {shlex.quote(line)} >&2" for line in stderr]
        return self.shell("; ".join([*script, "exit 0"]), **parts)

    def ticks(self, **parts: Any) -> Launch:
        """Prints `tick N` several times a second, from 0 on, until it is asked to stop."""
        script = "trap 'exit 0' TERM; n=0; while :; do echo tick $n; n=$((n+1)); sleep 0.1; done"
        return self.shell(script, **parts)

    def serves(self, port: int, text: str, **parts: Any) -> Launch:
        """Serves that text on that port over HTTP; used if `sandbox` is announced."""
        script = f"mkdir -p /tmp/www; echo {shlex.quote(text)} > /tmp/www/index.html; trap 'exit 0' TERM; "
        return self.shell(f"{script} httpd -f -p {port} -h /tmp/www & wait", **parts)

    def fetches(self, port: int, **parts: Any) -> Launch:
        """Prints the page that is served on that port of its own network, and ends."""
        return self.shell(f"until wget -qO- http://127.0.0.1:{port}/ 2>/dev/null; do sleep 0.1; done", **parts)

    def shows_variable(self, name: str, **parts: Any) -> Launch:
        return self.shell(f'printf "%s\\n" "${name}"', **parts)

    def shows_arguments(self, arguments: Sequence[str], **parts: Any) -> Launch:
        """Prints each argument on its own line."""
        return self.launch(command=("sh", "-c", 'printf "%s\\n" "$@"', "sh"), args=tuple(arguments), **parts)

    def shows_file(self, path: str, **parts: Any) -> Launch:
        return self.shell(f"cat {shlex.quote(path)}", **parts)

    def writes_file(self, path: str, text: str, **parts: Any) -> Launch:
        """Writes that line to a file; ends with 0 if that succeeded."""
        return self.shell(f"printf '%s\\n' {shlex.quote(text)} > {shlex.quote(path)}", **parts)

    def fills(self, path: str, size: int, **parts: Any) -> Launch:
        """Writes `size` bytes to a folder; ends with 0 if they fit."""
        return self.shell(f"head -c {size} /dev/zero > {shlex.quote(path)}/filled", **parts)

    def shows_mode(self, path: str, **parts: Any) -> Launch:
        """Prints the file's mode in octal."""
        return self.shell(f"stat -c %a {shlex.quote(path)}", **parts)

    def shows_folder(self, **parts: Any) -> Launch:
        return self.shell("pwd", **parts)

    def shows_user(self, **parts: Any) -> Launch:
        return self.shell("id -u", **parts)

    def eats_memory(self, **parts: Any) -> Launch:
        return self.shell('x=0123456789abcdef; while :; do x="$x$x"; done', **parts)

    def forks(self, count: int, **parts: Any) -> Launch:
        """Starts `count` processes at once; ends with 0 if that succeeded."""
        script = f"n=0; while [ $n -lt {count} ]; do sleep 1 & n=$((n+1)); done; wait; exit 0"
        return self.shell(script, **parts)

    def burns_cpu(self, **parts: Any) -> Launch:
        """Prints `begun`, and uses CPU time until it is stopped."""
        return self.shell("trap 'exit 0' TERM; echo begun; while :; do :; done", **parts)

    # Commands to run beside a task.

    def says(self, text: str) -> Sequence[str]:
        return ("sh", "-c", f"echo {shlex.quote(text)}")

    def complains(self, text: str) -> Sequence[str]:
        return ("sh", "-c", f"echo {shlex.quote(text)} >&2")

    def ends_with(self, code: int) -> Sequence[str]:
        return ("sh", "-c", f"exit {code}")

    def copies(self) -> Sequence[str]:
        """Copies its input to its output."""
        return ("cat",)

    def shows_size(self) -> Sequence[str]:
        """Prints `ROWS COLUMNS` of its terminal."""
        return ("stty", "size")

    def tells_file(self, path: str) -> Sequence[str]:
        return ("cat", path)

    def tells_variable(self, name: str) -> Sequence[str]:
        return ("sh", "-c", f'echo "${name}"')
