"""Adjusts an imported group that runs once on every node."""

from typing import Any


def fit_daemon(group: dict[str, Any]) -> None:
    """Remove counts, spread and shared data from the group, in place: they have no meaning for a daemon."""
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
