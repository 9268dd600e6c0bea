"""Who may talk to this server, and what may be written, while versions are mixed."""

from collections.abc import Callable

from mandor import __version__
from mandor.api.http.request import Headers, header
from mandor.errors import Invalid, MandorError, Unsupported
from mandor.lib.versions import SKEW_MOST, compatible, newer
from mandor.model.features import gated
from mandor.model.meta import Object

_VERSION = b"x-mandor-version"


def check_skew(headers: Headers) -> None:
    """Raise `Unsupported` for a client that says it is of a version too far from this one."""
    version = header(headers, _VERSION)
    if version is None or compatible(__version__, version):
        return
    older = "the servers" if newer(__version__, version) else "the client"
    raise Unsupported(
        f"the server is version {__version__}, its client {version[:40]}: they may differ by {SKEW_MOST} minor version",
        hint=f"upgrade {older}, one minor version at a time",
        server=__version__,
    )


def note_newer(error: MandorError, headers: Headers) -> None:
    """Say so if what is wrong may only be too new for this server."""
    version = header(headers, _VERSION)
    if isinstance(error, Invalid) and version is not None and newer(__version__, version):
        told = f"this server is version {__version__}, its client {version[:40]}: it may not know all of it yet"
        error.hint = f"{error.hint}; {told}" if error.hint else told


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
