"""The few functions of json and signal that a supervisor needs, without the imports of those modules.

The full modules cost a supervisor half of its start time and a third of its memory. This module uses the interpreter's
C modules behind them, and the full module where an interpreter lacks one."""

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
    "try_write_kernel",
    "write_kernel",
]


class _Plain:
    """Default settings of the JSON scanner."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_float = float
    parse_int = int
    parse_constant = float
    memo: dict[str, str] = {}


def parse(text: str) -> "Any":
    """Parse JSON."""
    try:
        from _json import make_scanner

        return make_scanner(_Plain())(text, 0)[0]  # type: ignore[arg-type]
    except (ImportError, TypeError):
        import json

        return json.loads(text)
    except StopIteration:
        raise ValueError("not JSON") from None


def encode(record: "dict[str, str | float | None]") -> bytes:
    """Encode a flat record as JSON."""
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
    """Read the record in a file; None: there is no file."""
    try:
        with open(path, encoding="utf-8") as file:
            return parse(file.read())
    except FileNotFoundError:
        return None


def replace(path: str, data: bytes, *, durable: bool = False) -> None:
    """Replace a file atomically; `durable`: synced to disk before the return."""
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
    """Close all file descriptors from `lowest` on, such as those inherited through the agent."""
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        if number >= lowest:
            try:
                os.close(number)
            except OSError:
                continue  # The descriptor of the listing itself.


def try_write_kernel(path: str, text: str) -> None:
    """Write to a file of the kernel, and ignore errors."""
    try:
        write_kernel(path, text)
    except OSError:
        return


def write_kernel(path: str, text: str) -> None:
    """Write to a file of the kernel, in one call."""
    file = os.open(path, os.O_WRONLY)
    try:
        os.write(file, text.encode())
    finally:
        os.close(file)
