"""All errors that Mandor raises deliberately.

MandorError              internal         a defect, or an unexpected case
├── NotFound             not_found        no such object
├── Invalid              invalid          the request can never succeed as written
│   └── TooLarge         too_large        a body, list or object above its limit
├── Conflict             conflict         another client wrote first: read again, then retry
├── Expired              expired          the watch fell too far behind: list again
├── Unsupported          unsupported      the engine or store does not support the operation
├── Unauthenticated      unauthenticated  no token, or an unknown one
├── Forbidden            forbidden        the caller lacks the permission
├── TooMany              too_many         a rate limit or bounded queue is exceeded: slow down
└── Unavailable          unavailable      a dependency is down: retry later
    ├── EngineDown       engine_down      an engine does not respond
    └── PortTaken        port_taken       the host port is in use

A code is part of the public API: it is never renamed and never reused.
"""

from typing import ClassVar


class MandorError(Exception):
    """Base class of all errors. The message is for people; `facts` go to logs and JSON."""

    code: ClassVar[str] = "internal"
    retry: ClassVar[bool] = False

    def __init__(self, message: str, *, hint: str | None = None, **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = facts


class NotFound(MandorError):
    code = "not_found"


class Invalid(MandorError):
    code = "invalid"


class TooLarge(Invalid):
    code = "too_large"


class Conflict(MandorError):
    code = "conflict"
    retry = True


class Expired(MandorError):
    code = "expired"
    retry = True


class Unsupported(MandorError):
    code = "unsupported"


class Unauthenticated(MandorError):
    code = "unauthenticated"


class Forbidden(MandorError):
    code = "forbidden"


class TooMany(MandorError):
    code = "too_many"
    retry = True


class Unavailable(MandorError):
    code = "unavailable"
    retry = True


class EngineDown(Unavailable):
    code = "engine_down"


class PortTaken(Unavailable):
    code = "port_taken"

    @property
    def port(self) -> int:
        """The port number; 0 if unknown."""
        found = self.facts.get("port")
        return found if isinstance(found, int) else 0


def _tree(base: type[MandorError]) -> dict[str, type[MandorError]]:
    found = {base.code: base}
    for sub in base.__subclasses__():
        found |= _tree(sub)
    return found


BY_CODE: dict[str, type[MandorError]] = _tree(MandorError)
"""Error classes by code; clients use it to raise the error that a server returned."""
