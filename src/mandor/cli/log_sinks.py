"""Display of log sinks and their health on each node."""

import time
from typing import Any

from mandor.cli.output import age, aligned

Object = dict[str, Any]
NODES_SHOWN = 50


def state(item: Object) -> str:
    return "On" if item["spec"].get("active", True) else "Off"


def takes(item: Object) -> str:
    return ",".join(item["spec"].get("sources", ("instances", "agent")))


def health(state: Object) -> str:
    """Describe the health of one sink on one node."""
    since = f" for {age(state['since'], time.time())}" if state.get("since") else ""
    numbers = f"{state.get('shipped', 0)} lines shipped, {state.get('waiting', 0)} waiting"
    dropped = f", {state['dropped']} dropped" if state.get("dropped") else ""
    message = f": {state['message']}" if state.get("message") else ""
    return f"{state['state']}{since} ({numbers}{dropped}){message}"


def describe_health(item: Object, nodes: list[Object]) -> list[str]:
    """List the health on each node, failing nodes first."""
    name = item["meta"]["name"]
    reports = [(each["meta"]["name"], each["status"].get("log_sinks", {}).get(name)) for each in nodes]
    reports = sorted((each for each in reports if each[1]), key=lambda each: (each[1]["state"] != "Failing", each[0]))
    if not reports:
        return ["", "nodes: no reports yet"]
    failing = sum(each["state"] == "Failing" for _, each in reports)
    rows = [(f"  {node}", health(each)) for node, each in reports[:NODES_SHOWN]]
    more = [f"  … and {len(reports) - NODES_SHOWN} more"] if len(reports) > NODES_SHOWN else []
    return ["", f"nodes: {len(reports)}, {failing} failing", *aligned(rows), *more]
