"""Words of HAProxy's configuration, runtime commands and map files: the only way in which values of users get there."""

import re
import string

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,600}")
_PLAIN = frozenset(string.ascii_letters + string.digits + "!#$%&'()*+,-./:;<=>?@[]^_`{|}~")


def name(text: str) -> str:
    """Return a name that stands without quotes; raise `ValueError` for any other text."""
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text[:80]!r} cannot be a name in the configuration of HAProxy")
    return text


def quoted(text: str) -> str:
    """Return a text as one word of the configuration; raise `ValueError` unless it is printable ASCII."""
    if not text.isascii() or not text.isprintable():
        raise ValueError(f"{text[:80]!r} has characters other than printable ASCII")
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("$", "\\$")
    return f'"{escaped}"'


def constant(text: str) -> str:
    """Return a text that stands for itself in a format of HAProxy, where `%` begins an expression."""
    return text.replace("%", "%%")


def map_line(key: str, value: str) -> str:
    """Return a line of a map; raise `ValueError` for a key or value that is not one plain word."""
    for each in (key, value):
        if not each or not _PLAIN.issuperset(each) or each.startswith("#"):
            raise ValueError(f"{each[:80]!r} cannot be in a map of HAProxy")
    return f"{key} {value}\n"
