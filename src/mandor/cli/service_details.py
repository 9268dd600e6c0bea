"""The description of a service: its instances, and its state in the data paths of the nodes."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mandor.cli import services, tables
from mandor.cli.output import aligned
from mandor.errors import Forbidden, NotFound

if TYPE_CHECKING:
    from mandor.client.sync import Client

Object = dict[str, Any]
SHOWN_MOST = 50
"""Instances and endpoints that are shown."""


def facts(item: Object) -> list[tuple[str, str]]:
    spec, health = item["spec"], item["spec"].get("health")
    return [
        ("to", services.sources(item)),
        ("ports", services.ports(item)),
        ("balance", spec.get("balance", "round-robin") + (f", near {spec['near']}" if spec.get("near") else "")),
        ("health", _health(health) if health is not None else ""),
        ("owner", f"workload {item['status']['owner']}" if item.get("status", {}).get("owner") else ""),
        ("message", item.get("status", {}).get("message", "")),
    ]


def _health(health: Object) -> str:
    asked = f"http {health['http']}" if health.get("http") else "tcp"
    port = f" port {health['tcp']}" if health.get("tcp") else ""
    return f"{asked}{port} every {health.get('every', '10s')}, {health.get('failures', 3)} failures"


def traffic(client: "Client", item: Object) -> list[str]:
    """Ask the nodes for their endpoints and counters; nothing if the caller may not."""
    meta = item["meta"]
    try:
        found = client.read(f"/v1/services/{meta['name']}/traffic", {"namespace": meta.get("namespace")})
    except (Forbidden, NotFound):  # A server of an earlier version does not know the path.
        return []
    return [*_instances(found["instances"]), *_nodes(found)]


def _instances(found: list[Object]) -> Iterator[str]:
    if not found:
        return
    good = sum(not each.get("reason") for each in found)
    yield from ("", f"instances: {good} of {len(found)} get traffic")
    rows = [("  INSTANCE", "NODE", "ADDRESS", "TRAFFIC")]
    for each in found[:SHOWN_MOST]:
        traffic = "yes" if not each.get("reason") else f"no: {each['reason']}"
        rows.append((f"  {each['instance']}", each.get("node") or "-", each.get("address") or "-", traffic))
    yield from aligned(rows)
    if len(found) > SHOWN_MOST:
        yield f"  … and {len(found) - SHOWN_MOST} more"


def _nodes(found: Object) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [
        ("  NODE", "PORT", "ADDRESS", "ENDPOINTS", "CONNECTIONS", "SENT", "RECEIVED", "FAILURES")
    ]
    notes, endpoints = [], []
    for node in found["nodes"]:
        if node.get("problem"):
            notes.append(f"  {node['node']}: {node['problem']}")
        notes += [f"  {node['node']}: {text} gets no traffic: {why}" for text, why in node.get("excluded", {}).items()]
        for port in node.get("ports", ()):
            rows.append(_row(node["node"], port))
            endpoints += [(f"  {node['node']}", port["port"], *_endpoint(each)) for each in port.get("endpoints", ())]
    if len(rows) > 1:
        yield from ("", "data paths:", *aligned(rows))
    if endpoints:
        yield from ("", f"endpoints: {len(endpoints)}")
        yield from aligned([("  NODE", "PORT", "ENDPOINT", "INSTANCE", "WEIGHT"), *endpoints[:SHOWN_MOST]])
    if found.get("unasked"):
        notes.append(f"  {found['unasked']} further nodes were not asked")
    if notes:
        yield from ("", "problems:", *notes)


def _row(node: str, port: Object) -> tuple[str, ...]:
    return (
        f"  {node}",
        port["port"],
        ", ".join(f"{each}:{port['number']}" for each in port.get("addresses", ())) or "-",
        str(len(port.get("endpoints", ()))),
        str(port.get("connections", 0)),
        tables.amount(port.get("sent_bytes", 0)),
        tables.amount(port.get("received_bytes", 0)),
        str(port.get("failures", 0)),
    )


def _endpoint(found: Object) -> tuple[str, str, str]:
    address = f"[{found['address']}]" if ":" in found["address"] else found["address"]
    return f"{address}:{found['port']}", found.get("instance", "-"), str(found.get("weight", 100))
