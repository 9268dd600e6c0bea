"""Display of a pool's autoscaling."""

import time
from typing import Any

from mandor.cli.output import age, aligned

Object = dict[str, Any]


def machines(item: Object) -> str:
    """Summarize the machines: `3/0-5 incus` means 3 joined, 0 to 5 allowed, ordered from the provisioner `incus`;
    `-` without autoscaling.
    """
    scaling = item["spec"].get("autoscale")
    if not scaling:
        return "-"
    found = _machines(item)
    joined = sum(each.get("phase", "Ordered") == "Joined" for each in found)
    coming = sum(each.get("phase", "Ordered") == "Ordered" for each in found)
    going = len(found) - joined - coming
    moving = "".join([f" +{coming}" if coming else "", f" -{going}" if going else ""])
    return f"{joined}/{scaling.get('min', 0)}-{scaling['max']}{moving} {scaling['provisioner']}"


def describe_scaling(item: Object) -> tuple[list[tuple[str, str]], list[str]]:
    """Return facts about the autoscaling, and a table of the machines."""
    scaling = item["spec"].get("autoscale")
    if not scaling:
        return [], []
    status = item.get("status", {}).get("scaling") or {}
    kinds = "; ".join(f"{name}: cpu {each['cpu']}, memory {each['memory']}" for name, each in scaling["kinds"].items())
    facts = [("machines", machines(item)), ("kinds", kinds)]
    for kind, each in status.get("trouble", {}).items():
        left = each["until"] - time.time()
        again = f"; retry in {age(time.time() - left, time.time())}" if left > 0 else ""
        facts.append(("error", f"{kind}, {each['failures']} times: {each['message']}{again}"))
    rows = [
        (each["id"], each["kind"], each.get("phase", "Ordered"), age(each["at"], time.time()), each.get("why", ""))
        for each in _machines(item)
    ]
    shown = aligned([("MACHINE", "KIND", "PHASE", "SINCE", "REASON"), *rows]) if rows else []
    return facts, ["", *(f"  {line}" for line in shown)] if rows else []


def _machines(item: Object) -> list[Object]:
    return list((item.get("status", {}).get("scaling") or {}).get("machines", ()))
