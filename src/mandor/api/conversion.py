"""Conversion of other tools' files for callers of the API, in a child process with limits."""

import sys
from collections.abc import Sequence

import msgspec

from mandor.errors import BY_CODE, Invalid, TooLarge
from mandor.importers.base import Source
from mandor.importers.child import Answer, Failure, Question
from mandor.lib.limited import Limits, Overran, run_limited

FOREIGN_MOST = 256 * 1024
"""Characters of all files of one request."""
MADE_MOST = 1 << 20
"""Characters of the resulting manifests."""
LIMITS = Limits(
    seconds=20.0,
    cpu_seconds=10,
    memory_bytes=512 << 20,
    output_bytes=4 << 20,
    files=32,
    writes=False,
    niceness=10,
)
HINT = "`mandor import` converts the files on your machine"


async def convert(files: Sequence[Source], format_name: str, *, strict: bool) -> Answer:
    """Return the manifests made from other tools' files; raise `TooLarge` if a limit is exceeded."""
    size = sum(len(each.text) for each in files)
    if size > FOREIGN_MOST:
        message = f"files of other tools have {size} characters; at most {FOREIGN_MOST} are allowed"
        raise TooLarge(message, hint=HINT, most=FOREIGN_MOST)
    question = msgspec.json.encode(Question([(each.name, each.text) for each in files], format_name, strict))
    try:
        ended = await run_limited((sys.executable, "-m", "mandor.importers.child"), LIMITS, given=question)
    except Overran as error:
        raise TooLarge(f"the server cannot convert the files: {error}", hint=HINT) from None
    if ended.status != 0:
        limit = f"{LIMITS.cpu_seconds} s of processor time" if ended.out_of_time else "the memory it may use"
        raise TooLarge(f"the server cannot convert the files: the conversion takes more than {limit}", hint=HINT)
    found = msgspec.json.decode(ended.output, type=Answer)
    if found.failure is not None:
        raise _error(found.failure)
    made = sum(len(each.text) for each in found.made)
    if made > MADE_MOST:
        raise TooLarge(f"the manifests made of the files have {made} characters; at most {MADE_MOST} are allowed")
    return found


def _error(failure: Failure) -> Invalid:
    kind = BY_CODE.get(failure.code, Invalid)
    return (kind if issubclass(kind, Invalid) else Invalid)(failure.message, hint=failure.hint, **failure.facts)
