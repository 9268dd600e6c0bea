"""Checks for clusters with mixed versions: version skew of clients, and fields that not every server knows."""

from collections.abc import Callable

from mandor import __version__
from mandor.api.http.request import Headers, header
from mandor.errors import Invalid, MandorError, Unsupported
from mandor.lib.versions import SKEW_MOST, compatible, newer
from mandor.model.features import gated
from mandor.model.meta import Object

_VERSION = b"x-mandor-version"


def check_skew(headers: Headers) -> None:
    """Raise `Unsupported` for a client whose version differs too much from the server's."""
    version = header(headers, _VERSION)
    if version is None or compatible(__version__, version):
        return
    older = "the servers" if newer(__version__, version) else "the client"
    raise Unsupported(
        f"the server has version {__version__}, the client {version[:40]}: "
        f"they may differ by {SKEW_MOST} minor version",
        hint=f"upgrade {older}, one minor version at a time",
        server=__version__,
    )


def note_newer(error: MandorError, headers: Headers) -> None:
    """Extend the hint of an error if the client is newer than this server, which may be its cause."""
    version = header(headers, _VERSION)
    if isinstance(error, Invalid) and version is not None and newer(__version__, version):
        note = f"the client ({version[:40]}) is newer than this server ({__version__}), which may not support this yet"
        error.hint = f"{error.hint}; {note}" if error.hint else note


def check_known(value: Object, everywhere: Callable[[], frozenset[str]]) -> None:
    """Raise `Unsupported` if the object uses a field that not every server knows."""
    used = gated(value)
    if not used:
        return
    known = everywhere()
    for each in used:
        if each.feature not in known:
            raise Unsupported(
                f"{each.path} of {value.key} is new, and not every server knows `{each.feature}` yet",
                hint="upgrade all servers first; `mandor get servers` shows their versions",
                field=each.path,
                feature=each.feature,
            )
