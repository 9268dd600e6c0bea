"""What the autoscaler does, in words."""

from collections.abc import Sequence

from mandor.model.autoscale import AutoscaleStatus, Reading


def step_story(before: int, after: int, status: AutoscaleStatus) -> str:
    """Of a count that changes; empty: it does not."""
    if before == after:
        return ""
    return f"from {before} to {after}: {'; '.join(filter(None, [shown_readings(status.readings), status.message]))}"


def shown_readings(readings: Sequence[Reading]) -> str:
    return ", ".join(_shown(each) for each in readings)


def _shown(reading: Reading) -> str:
    if reading.current is None:
        return f"{reading.name} is not known"
    unit = "" if reading.name == "metric" else "%"
    return f"{reading.name} is {reading.current:g}{unit}, {reading.target:g}{unit} is wanted"
