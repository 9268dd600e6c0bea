"""Display of VM requests and spares: their steps and machines."""

import time
from typing import Any

from mandor.cli.output import age, aligned

Object = dict[str, Any]
Facts = list[tuple[str, str]]


def task_facts(item: Object) -> Facts:
    spec, status = item["spec"], item.get("status", {})
    machine = " ".join(
        filter(None, [status.get("node", ""), f"({status['address']})" if status.get("address") else ""])
    )
    return [
        ("requests", f"{spec['cpu']} cores and {spec['memory_mib']:,} MiB in the pool {spec.get('pool', 'default')}"),
        ("machine", machine),
        ("error", status.get("error", "")),
        ("failed attempts", str(status["attempts"]) if status.get("attempts") else ""),
    ]


def spare_facts(item: Object) -> Facts:
    spec = item["spec"]
    each = f"{spec['cpu']} cores and {spec['memory_mib']:,} MiB"
    pool = spec.get("pool", "default")
    return [("requests", f"{spec.get('count', 1)} of {each} for {spec['cluster']}, in the pool {pool}")]


def spare_machines(item: Object) -> list[str]:
    rows = [
        (f"  {vm['name']}", vm.get("state", "Placing"), vm.get("node") or "-", vm.get("message", ""))
        for vm in item.get("status", {}).get("vms", ())
    ]
    return ["", "machines:", *aligned(rows)] if rows else []


def steps(item: Object) -> list[str]:
    rows = [
        (f"  {age(each['at'], time.time())} ago", each.get("state") or each.get("phase", ""), each.get("why", ""))
        for each in item.get("status", {}).get("history", ())
    ]
    return ["", "steps:", *aligned(rows)] if rows else []
