"""Unique ids."""

import os
import random
import secrets
import time
from collections.abc import Callable

NewId = Callable[[], str]


def new_uid() -> str:
    """Return a random uid of 20 hexadecimal digits."""
    return secrets.token_hex(10)


class OrderedIds:
    """Ids of 24 hexadecimal digits that sort by when they were made.

    Milliseconds, then 48 bits that are random for the first id of a millisecond and grow with the
    others: what is made together stands together in a file, and costs no system call each.
    """

    def __init__(self) -> None:
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """Reset the generator, so that a forked process does not repeat the ids of its parent."""
        self._random = random.Random(os.urandom(32))
        self._ms = 0
        self._prefix = ""
        self._low = 0

    def __call__(self) -> str:
        now = time.time_ns() // 1_000_000
        if now > self._ms:
            self._ms = now
            self._prefix = f"{now:012x}"
            self._low = self._random.getrandbits(47)
        else:
            self._low += 1
        return f"{self._prefix}{self._low:012x}"

    def uuid(self) -> str:
        """Return a random UUID (version 4)."""
        bits = self._random.getrandbits(128) & ~(0xF << 76) & ~(0x3 << 62) | (0x4 << 76) | (0x2 << 62)
        text = f"{bits:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


_ids = OrderedIds()
ordered_uid: NewId = _ids
"""Ids that stores assign to new objects."""
random_uuid: NewId = _ids.uuid
