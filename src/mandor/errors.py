"""Every error mandor raises on purpose.

MandorError              internal         a bug, or a case nobody thought of
├── NotFound             not_found        no such object
├── Invalid              invalid          the request can never succeed as written
│   └── TooLarge         too_large        a body, list or object over its bound
├── Conflict             conflict         someone wrote first: read again, then retry
├── Expired              expired          the watch fell too far behind: list again
├── Unsupported          unsupported      this engine or store cannot do that
├── Unauthenticated      unauthenticated  no token, or one nobody knows
├── Forbidden            forbidden        a known caller who may not do that
├── TooMany              too_many         a bounded queue or table is full: slow down
└── Unavailable          unavailable      a dependency is down: retry later
    ├── EngineDown       engine_down      an engine does not answer
    └── PortTaken        port_taken       somebody else has that port of the node

A code is part of the public API: it is never renamed and never reused.
"""

from typing import ClassVar


class MandorError(Exception):
    """Base class. `facts` go to logs and JSON; the message is for people."""

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

    def __init__(self, message: str, *, port: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint, port=port)
        self.port = port


def _tree(base: type[MandorError]) -> dict[str, type[MandorError]]:
    found = {base.code: base}
    for sub in base.__subclasses__():
        found |= _tree(sub)
    return found


BY_CODE: dict[str, type[MandorError]] = _tree(MandorError)
"""What a client uses to raise again what a server answered."""
