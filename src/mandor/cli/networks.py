"""Columns of networks in tables."""

from typing import Any

Object = dict[str, Any]


def ranges(item: Object) -> str:
    return ",".join(each for each in (item["spec"]["subnet"], item["spec"].get("subnet6")) if each)


def nodes(item: Object) -> str:
    """Return how many nodes are part of the network, of how many that its ranges have room for."""
    spec, slices = item["spec"], item.get("status", {}).get("slices", {})
    room = 1 << (spec.get("node_prefix", 24) - int(spec["subnet"].partition("/")[2]))
    return f"{sum(not each.get('released') for each in slices.values())}/{room}"


COLUMNS = (
    ("SUBNET", ranges),
    ("BACKEND", lambda item: item["spec"].get("backend", "vxlan")),
    ("NODES", nodes),
    ("NAMESPACES", lambda item: ",".join(item["spec"].get("namespaces", ())) or "all"),
    ("MESSAGE", lambda item: item.get("status", {}).get("message") or "-"),
)
"""Titles and cells of a table of networks."""
