"""The few things a supervisor needs of json, signal and ctypes, without all that those modules import.

They cost a supervisor half its start and a third of its own memory. The interpreter's C modules behind them do the work
here; where an interpreter lacks one, the full module steps in.
"""

import os

try:
    # Loaded here and not when needed: a task that has changed its user may not be able to read the interpreter's files.
    from _ctypes import call_function, dlopen, dlsym
except ImportError:
    call_function = None  # type: ignore[assignment]

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from typing import Any
else:
    try:
        import _signal as signal
    except ImportError:
        import signal

__all__ = [
    "become_subreaper",
    "close_from",
    "die_with_parent",
    "encode",
    "gain_no_privileges",
    "parse",
    "read",
    "replace",
    "signal",
    "tell",
    "try_tell",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38


def _prctl(option: int, value: int) -> None:
    arguments = (option, value, 0, 0, 0)
    if call_function is not None:
        result = call_function(dlsym(dlopen(None, 0), "prctl"), arguments)  # type: ignore[arg-type]
    else:
        import ctypes

        result = ctypes.CDLL(None).prctl(*arguments)
    if result != 0:
        raise OSError(f"prctl({option}) failed")


def die_with_parent() -> None:
    """Ask the kernel to kill this process when the thread that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def gain_no_privileges() -> None:
    """From now on, a program that would run as its owner runs as whoever starts it."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def become_subreaper() -> None:
    """Descendants whose parents end become children of this process, not of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


class _Plain:
    """How the scanner reads JSON: nothing special."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict[str, str] = {}


def parse(text: str) -> "Any":
    """JSON to values."""
    try:
        from _json import make_scanner

        return make_scanner(_Plain())(text, 0)[0]  # type: ignore[arg-type]
    except (ImportError, TypeError):
        import json

        return json.loads(text)
    except StopIteration:
        raise ValueError("not JSON") from None


def encode(record: "dict[str, str | float | None]") -> bytes:
    """A flat record as JSON."""
    return ("{" + ",".join(f"{_text(key)}:{_value(value)}" for key, value in record.items()) + "}").encode()


def _value(value: "str | float | None") -> str:
    if value is None:
        return "null"
    return _text(value) if isinstance(value, str) else repr(value).lower()


def _text(text: str) -> str:
    try:
        from _json import encode_basestring_ascii

        return encode_basestring_ascii(text)
    except ImportError:
        import json

        return json.dumps(text)


def read(path: str) -> "Any":
    """The record in a file; None where there is none."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read())
    except FileNotFoundError:
        return None


def replace(path: str, data: bytes, *, durable: bool = False) -> None:
    """Write a file so that others see all of it or nothing; `durable`: it survives a power failure, too."""
    draft = f"{path}.{os.getpid()}"
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        if os.write(file, data) != len(data):
            raise OSError(28, os.strerror(28))
        if durable:
            os.fsync(file)
    except OSError:
        os.unlink(draft)
        raise
    finally:
        os.close(file)
    os.rename(draft, path)


def close_from(lowest: int) -> None:
    """Close every open file from this number on: whoever started the agent may have left it some."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number >= lowest:
            try:
                os.close(number)
            except OSError:
                continue  # The listing's own.


def try_tell(path: str, text: str) -> None:
    """As `tell`, where it does no harm if the kernel does not listen."""
    try:
        tell(path, text)
    except OSError:
        return


def tell(path: str, text: str) -> None:
    """Write to a file of the kernel, in one go."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
