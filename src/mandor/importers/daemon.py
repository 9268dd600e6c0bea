"""What of a group remains when it is to run once on every node, as the tools that are imported mean it."""

from typing import Any


def fit_daemon(group: dict[str, Any]) -> None:
    """In place: how many and how they spread means nothing there, and each node has its own data."""
    for key in ("replicas", "gang", "disruption"):
        group.pop(key, None)
    placement = group.get("placement", {})
    for key in ("spread", "apart"):
        placement.pop(key, None)
    update = group.get("update", {})
    if update.get("strategy") == "blue-green":
        update.pop("strategy")
    if share := update.pop("max_surge", None):
        update["max_unavailable"] = share
    update.pop("order", None)
    for name, volume in group.get("volumes", {}).items():
        if volume.get("type", "local") == "local" and not volume.get("per_instance"):
            group["volumes"][name] = {"per_instance": True}
    for key in ("placement", "update"):
        if key in group and not group[key]:
            del group[key]
