"""Cron expressions (`*/5 * * * *`) in a time zone, correct across daylight saving changes."""

from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from functools import cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

_WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
LINE_MOST = 512
"""Maximum length of one expression, in characters."""
_FIELDS = "minute hour day-of-month month day-of-week"


class Cron:
    """One or more cron expressions, combined. Raises `ValueError` if one is invalid or never fires."""

    def __init__(self, expressions: Iterable[str], timezone: str = "UTC") -> None:
        self._zone = zone(timezone)
        self._lines = tuple(_five_fields(each) for each in expressions)
        if not self._lines:
            raise ValueError("there is no cron expression")
        for line in self._lines:
            if self._first(line, datetime.now(UTC)) is None:
                raise ValueError(f"the cron expression {line!r} never fires: there is no such day")

    def after(self, at: float) -> float | None:
        """Return the first time after `at`."""
        found = [self._first(line, datetime.fromtimestamp(at, UTC)) for line in self._lines]
        return min((each for each in found if each is not None), default=None)

    def latest(self, at: float) -> float | None:
        """Return the last time up to and including `at`."""
        begin = datetime.fromtimestamp(int(at) + 1, UTC)
        found = [self._first(line, begin, reverse=True) for line in self._lines]
        return max((each for each in found if each is not None), default=None)

    def _first(self, line: str, begin: datetime, *, reverse: bool = False) -> float | None:
        try:
            return next(CronSim(line, begin.astimezone(self._zone), reverse)).timestamp()
        except StopIteration:
            return None


@cache
def zone(name: str) -> tzinfo:
    """Return a time zone by its IANA name, such as `Asia/Jakarta`."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"{name[:40]!r} is not a known time zone; use an IANA name such as `Asia/Jakarta`") from None


def _five_fields(text: str) -> str:
    if len(text) > LINE_MOST:
        raise ValueError(f"a cron expression must have at most {LINE_MOST} characters; this one has {len(text)}")
    line = _WORDS.get(text.strip().lower(), text)
    if len(line.split()) != 5:
        raise ValueError(
            f"{text[:40]!r} is not a cron expression; write five fields ({_FIELDS}), or @daily and similar"
        )
    wrong = _wrong(line)
    if wrong is None:
        return line
    minute, hour, day, month, weekday = line.split()
    if _wrong(f"{minute} {hour} {day} * {weekday}") is None and _wrong(f"0 0 1 {month} *") is None:
        raise ValueError(f"the cron expression {line!r} never fires: there is no such day in its months")
    raise ValueError(f"{text[:40]!r} is not a cron expression: {wrong}")


def _wrong(line: str) -> str | None:
    try:
        CronSim(line, datetime.now(UTC))
    except (CronSimError, ValueError, AssertionError) as error:
        return str(error).lower() or "unreadable"
    return None
