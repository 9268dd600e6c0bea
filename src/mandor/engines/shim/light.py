"""The few things a supervisor needs of json and signal, without all that those modules import.

They cost a supervisor half its start and a third of its own memory. The interpreter's C modules behind them do the work
here; where an interpreter lacks one, the full module steps in.
"""

import os

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
    "close_from",
    "encode",
    "parse",
    "read",
    "replace",
    "signal",
    "tell",
    "try_tell",
]


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
