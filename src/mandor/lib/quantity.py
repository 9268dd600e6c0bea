"""Amounts as people write them: `500m`, `1.5`, `256Mi`, `2GB`, `30s`, `1h30m`, `70%`.

Each is an `int` or `float` with a canonical text, so that code computes with numbers and
people read back what they could have written.
"""

import math
import re
from typing import Self

_BYTES = {"": 1, "B": 1, "k": 1000, "kB": 1000, "K": 1000}
for _power, _letter in enumerate("KMGTP", start=1):
    _BYTES |= {
        _letter: 1000**_power,
        f"{_letter}B": 1000**_power,
        f"{_letter}i": 1024**_power,
        f"{_letter}iB": 1024**_power,
    }
_SHOWN = ("Pi", "Ti", "Gi", "Mi", "Ki", "PB", "TB", "GB", "MB", "kB")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)
_PLAIN = re.compile(r"\d+(?:\.\d+)?", re.ASCII)
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?(?:ms|s|m|h|d))+", re.ASCII)
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)", re.ASCII)
_MOST = 2**62


class Cpu(int):
    """Processor time in thousandths of a core. Text: `500m`, `2`."""

    @classmethod
    def parse(cls, text: str | float) -> Self:
        if isinstance(text, str):
            match = _NUMBER.fullmatch(text.strip())
            if match is None or match[2] not in {"", "m"}:
                raise _wrong(text, "an amount of CPU", "write cores (`0.5`, `2`) or thousandths (`500m`)")
            milli = float(match[1]) * (1 if match[2] else 1000)
        else:
            milli = _number(text) * 1000
        return cls(round(_bounded(milli, text)))

    def __str__(self) -> str:
        whole, rest = divmod(int(self), 1000)
        return f"{int(self)}m" if rest else str(whole)


class Size(int):
    """Bytes. Text: `256Mi`, `2GB`, `1024`."""

    @classmethod
    def parse(cls, text: str | float) -> Self:
        if isinstance(text, str):
            match = _NUMBER.fullmatch(text.strip())
            if match is None or match[2] not in _BYTES:
                raise _wrong(text, "a size", "write bytes with a unit: `256Mi`, `2GB`")
            count = float(match[1]) if "." in match[1] else int(match[1])
            amount = count * _BYTES[match[2]]
        else:
            amount = _number(text)
        return cls(_bounded(amount, text))

    def __str__(self) -> str:
        """Format with the shortest unit, binary units first."""
        exact = [f"{self // _BYTES[unit]}{unit}" for unit in _SHOWN if self and self % _BYTES[unit] == 0]
        return min(exact, key=len, default=str(int(self)))


class Seconds(float):
    """A stretch of time. Text: `30s`, `1h30m`, `250ms`; a bare number is seconds."""

    @classmethod
    def parse(cls, text: str | float) -> Self:
        if isinstance(text, str):
            bare = text.strip()
            if _PLAIN.fullmatch(bare):
                amount = float(bare)
            elif _DURATION.fullmatch(bare):
                amount = sum(float(count) * _SECONDS[unit] for count, unit in _DURATION_PART.findall(bare))
            else:
                raise _wrong(text, "a duration", "write a number with a unit: `250ms`, `30s`, `5m`, `1h30m`")
        else:
            amount = _number(text)
        return cls(_bounded(amount, text))

    def __str__(self) -> str:
        rest = round(float(self) * 1000)
        if rest == 0:
            return "0s"
        text = ""
        for unit, milli in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
            count, rest = divmod(rest, milli)
            text += f"{count}{unit}" if count else ""
        return text


class SecondsOrNever(Seconds):
    """A stretch of time, or `never`."""

    @classmethod
    def parse(cls, text: str | float) -> Self:
        return cls(math.inf) if text == "never" else super().parse(text)

    def __str__(self) -> str:
        return "never" if math.isinf(self) else super().__str__()


NEVER = SecondsOrNever(math.inf)


class Percent(float):
    """A share in hundredths. Text: `70%`; a bare number is percent, too."""

    @classmethod
    def parse(cls, text: str | float) -> Self:
        if isinstance(text, str):
            bare = text.strip().removesuffix("%").rstrip()
            if not _PLAIN.fullmatch(bare):
                raise _wrong(text, "a percentage", "write a number with a sign: `70%`")
            amount = float(bare)
        else:
            amount = _number(text)
        return cls(_bounded(amount, text))

    def __str__(self) -> str:
        return f"{float(self):.15g}%"


def _wrong(text: object, what: str, hint: str) -> ValueError:
    return ValueError(f"{text!r} is not {what}; {hint}")


def _number(value: float) -> float:
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not an amount")
    return value


def _bounded(amount: float, text: object) -> float:
    if not 0 <= amount <= _MOST:
        raise ValueError(f"{text!r} is out of range; an amount must be finite and not negative")
    return amount
