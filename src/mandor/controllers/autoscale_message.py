"""Texts of the autoscaler for events and statuses."""

from collections.abc import Sequence

from mandor.model.autoscale import AutoscaleStatus, Reading


def describe_step(before: int, after: int, status: AutoscaleStatus) -> str:
    """Describe a change of the count; empty: the count is unchanged."""
    if before == after:
        return ""
    return f"from {before} to {after}: {'; '.join(filter(None, [shown_readings(status.readings), status.message]))}"


def shown_readings(readings: Sequence[Reading]) -> str:
    return ", ".join(_shown(each) for each in readings)


def _shown(reading: Reading) -> str:
    if reading.current is None:
        return f"{reading.name} is unknown"
    unit = "" if reading.name == "metric" else "%"
    return f"{reading.name} {reading.current:g}{unit}, target {reading.target:g}{unit}"
