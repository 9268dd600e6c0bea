"""Display of event receivers and their deliveries."""

import time
from collections.abc import Callable
from typing import Any

from mandor.cli.output import age, aligned

Object = dict[str, Any]


def state(item: Object) -> str:
    status = item.get("status", {})
    if not item["spec"].get("active", True):
        return "Off"
    return f"Failing ({status['failures']})" if status.get("failures") else "Serving"


def counted(name: str) -> Callable[[Object], Any]:
    return lambda item: item.get("status", {}).get(name, 0)


def patterns(name: str) -> Callable[[Object], Any]:
    return lambda item: ",".join(item["spec"].get(name, ("*",)))


def says(item: Object) -> str:
    return str(item.get("status", {}).get("message") or "-")


def log_rows(item: Object) -> list[tuple[str, ...]]:
    return [
        (
            f"{age(each['at'], time.time())} ago",
            each["outcome"] + (f" (attempt {each['attempt']})" if each.get("attempt", 1) > 1 else ""),
            each["type"].removeprefix("mandor."),
            each["subject"],
            f"{each.get('milliseconds', 0)} ms",
            each.get("says", ""),
            each["id"],
        )
        for each in item.get("status", {}).get("log", ())
    ]


def describe_deliveries(item: Object) -> list[str]:
    status = item.get("status", {})
    lines = [f"  {status.get('delivered', 0)} delivered, {status.get('given_up', 0)} dropped, {state(item)}"]
    rows = [tuple(f"  {cell}" if number == 0 else cell for number, cell in enumerate(row)) for row in log_rows(item)]
    return [*lines, *(["", "deliveries:", *aligned(rows)] if rows else [])]
