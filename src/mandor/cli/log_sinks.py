"""How log sinks are shown: what they take, and how they do on each node."""

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
    """One sink on one node, in words."""
    since = f" for {age(state['since'], time.time())}" if state.get("since") else ""
    numbers = f"{state.get('shipped', 0)} lines shipped, {state.get('waiting', 0)} waiting"
    dropped = f", {state['dropped']} dropped" if state.get("dropped") else ""
    message = f": {state['message']}" if state.get("message") else ""
    return f"{state['state']}{since} ({numbers}{dropped}){message}"


def story(item: Object, nodes: list[Object]) -> list[str]:
    """Those where it fails come first."""
    name = item["meta"]["name"]
    told = [(each["meta"]["name"], each["status"].get("log_sinks", {}).get(name)) for each in nodes]
    told = sorted((each for each in told if each[1]), key=lambda each: (each[1]["state"] != "Failing", each[0]))
    if not told:
        return ["", "nodes: none has told yet"]
    failing = sum(each["state"] == "Failing" for _, each in told)
    rows = [(f"  {node}", health(each)) for node, each in told[:NODES_SHOWN]]
    more = [f"  … and {len(told) - NODES_SHOWN} more"] if len(told) > NODES_SHOWN else []
    return ["", f"nodes: {len(told)}, {failing} failing", *aligned(rows), *more]
