"""Columns of services in tables."""

from typing import Any

Object = dict[str, Any]


def address(item: Object) -> str:
    from mandor.network.addresses import ROUTED

    spec, number = item["spec"], item.get("status", {}).get("number", 0)
    if spec.get("external_name"):
        return str(spec["external_name"])
    return ROUTED.addresses(number)[0] if number else "none" if spec.get("headless") else "-"


def ports(item: Object) -> str:
    return ",".join(_port(*each) for each in item["spec"].get("port", {}).items()) or "-"


def _port(name: str, port: Object) -> str:
    target = port.get("target", name)
    shown = f"{port['port']}" if target in {name, port["port"]} else f"{port['port']}:{target}"
    return f"{shown}/{port.get('protocol', 'tcp')}"


def sources(item: Object) -> str:
    spec = item["spec"]
    workloads = [each["workload"] + (f".{each['group']}" if each.get("group") else "") for each in spec.get("to", ())]
    return ",".join(workloads or spec.get("external", ())) or spec.get("external_name") or "-"


COLUMNS = (
    ("ADDRESS", address),
    ("PORTS", ports),
    ("TO", sources),
    ("MESSAGE", lambda item: item.get("status", {}).get("message") or "-"),
)
"""Titles and cells of a table of services."""
