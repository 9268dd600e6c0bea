"""Master keys of a server, from a file or from the output of a program."""

import os
import shlex
import subprocess
import threading
from pathlib import Path

from mandor.errors import Invalid, Unavailable
from mandor.lib.sealing import KEY_BYTES, KeyRing, Sealer, parse_keys
from mandor.roots.secret_file import write_secret

COMMAND_SECONDS = 30.0
OUTPUT_BYTES = 64 << 10
HOW = "`openssl rand -hex 32` creates one"


def read_master(path: Path, *, given: bool, command: str = "") -> KeyRing | None:
    """Return the keys; None: no file was named, and the default file does not exist. `given`: an administrator named
    the file."""
    if command:
        return _ring(_run(command), f"the output of `{shlex.split(command)[0]}`")
    try:
        return _ring(path.read_text(), str(path))
    except FileNotFoundError:
        if given:
            raise Invalid(f"there is no key for secrets at {path}", hint=HOW) from None
        return None


def make_master(path: Path) -> KeyRing:
    """Write a new key to the file, for the first server of a new cluster."""
    text = os.urandom(KEY_BYTES).hex()
    write_secret(path, text)
    return _ring(text, str(path))


def _ring(text: str, source: str) -> KeyRing:
    try:
        return KeyRing([Sealer(key) for key in parse_keys(text)])
    except ValueError:
        raise Invalid(f"{source} is not a key for secrets: 64 hexadecimal digits per line", hint=HOW) from None


def _run(command: str) -> str:
    """Run the program without a shell; time and size of its output are limited, and the output is never logged."""
    words = shlex.split(command)
    if not words:
        raise Invalid("--secrets-key-command names no program")
    try:
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    except OSError as error:
        raise Unavailable(f"cannot run `{words[0]}` for the key for secrets: {error.strerror}") from error
    late = threading.Timer(COMMAND_SECONDS, child.kill)
    late.start()
    try:
        assert child.stdout is not None
        output = child.stdout.read(OUTPUT_BYTES + 1)
        if len(output) > OUTPUT_BYTES:
            raise Invalid(f"`{words[0]}` wrote more than {OUTPUT_BYTES} bytes; a key has 64 hexadecimal digits")
        status = child.wait()
    finally:
        late.cancel()
        child.kill()
        child.communicate()
    if status:
        raise Unavailable(
            f"`{words[0]}` did not return the key for secrets: it ended with status {status}",
            hint=f"its time limit is {COMMAND_SECONDS:.0f} s; its messages are in this log",
        )
    return output.decode(errors="replace")
