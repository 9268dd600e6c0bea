"""Compact text for sets of integers: `0-4,7`."""

from collections.abc import Iterable


def shown(numbers: Iterable[int]) -> str:
    """Format numbers as ranges, sorted."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in spans)


def parse(text: str) -> set[int]:
    """Parse the text of `shown`; raises `ValueError` for other text."""
    found: set[int] = set()
    for span in filter(None, text.split(",")):
        first, dash, last = span.partition("-")
        found.update(range(int(first), int(last if dash else first) + 1))
    return found
