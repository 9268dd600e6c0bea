"""Checks of `mandor doctor`: problems found in the data of servers and objects, each with the next step."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from email.utils import parsedate_to_datetime
from enum import StrEnum
from ssl import cert_time_to_seconds
from typing import Any, NamedTuple

from mandor.client.sync import Examined
from mandor.lib.versions import compatible, newer
from mandor.model.node import CLOCK_AHEAD
from mandor.model.record import ends_soon, soon_seconds

Object = Mapping[str, Any]

CLOCK_SECONDS = 5.0
"""Clock differences below this number of seconds are ignored: every lease is measured on one clock."""
SLOW_SECONDS = 1.0
WAITING_SECONDS = 300.0
NAMES_MOST = 5
LEAVING_SECONDS = 600.0
"""Seconds after which a machine that is being deleted is reported."""
SECRET_REASONS = ("SecretUnavailable", "SecretMissing")
CERTIFICATE_SECONDS = 86_400.0
"""Seconds before its end from which on the certificate of a route is reported; it is renewed long before."""
AUTHORITY_DAYS = 90
"""Days before its end from which on the certificate of the authority is reported."""


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


class Finding(NamedTuple):
    level: Level
    about: str
    says: str
    do: str = ""


def of_server(name: str, health: Examined, version: str, ours: str, now: float) -> Iterator[Finding]:
    """Check one server. `health` is its response to `/readyz`, `now` this machine's clock when the response arrived."""
    about = f"server {name}"
    found = [
        *_of_clock(about, health.date, now),
        *_of_certificate(about, health.certificate_from, health.certificate_until, now),
    ]
    found += [Finding(Level.WARNING, about, note) for note in health.body.get("notes", ())]
    if health.seconds > SLOW_SECONDS:
        says = f"took {health.seconds:.1f} s to respond and read its store"
        found.append(Finding(Level.WARNING, about, says, "check the store's disk and the server's load"))
    if version != ours:
        says = f"version {version} differs from this program's version {ours}"
        found.append(Finding(_level(version, ours), about, says, "upgrade servers first, then agents and this program"))
    if not found:
        found.append(Finding(Level.OK, about, f"ready in {health.seconds * 1000:.0f} ms, version {version}"))
    yield from found


def _level(one: str, other: str) -> Level:
    """Return the level of a difference between two versions."""
    return Level.WARNING if compatible(one, other) else Level.PROBLEM


def of_servers(servers: Sequence[Object]) -> Iterator[Finding]:
    """Compare the versions, features and keys that the servers report."""
    yield from _of_master_keys(servers)
    by_version: dict[str, list[str]] = {}
    for each in servers:
        by_version.setdefault(each["spec"]["version"], []).append(each["spec"].get("address") or each["meta"]["name"])
    if len(by_version) <= 1:
        yield from (Finding(Level.OK, "servers", f"{len(servers)} with version {version}") for version in by_version)
        return
    versions = "; ".join(f"{version} at {', '.join(names)}" for version, names in sorted(by_version.items()))
    features = [set(each["spec"].get("features", ())) for each in servers]
    unused = sorted(set.union(*features) - set.intersection(*features))
    waits = f"; not used until every server supports it: {', '.join(unused)}" if unused else ""
    apart = not all(compatible(one, other) for one in by_version for other in by_version)
    if apart:
        do = "stop or upgrade the oldest servers: versions may differ by one minor version"
        yield Finding(Level.PROBLEM, "servers", f"versions are too far apart: {versions}", do)
    else:
        do = "upgrade the other servers one after another; see the upgrade guide"
        yield Finding(Level.WARNING, "servers", f"mixed versions: {versions}{waits}", do)


def _of_master_keys(servers: Sequence[Object]) -> Iterator[Finding]:
    """Report servers with different keys for secrets: after a fail-over one may be unable to open a secret."""
    keys = {each["spec"].get("address") or each["meta"]["name"]: each["spec"].get("keys", ()) for each in servers}
    if len({frozenset(each) for each in keys.values()}) > 1:
        shown = "; ".join(f"{name} has {', '.join(each) or 'none'}" for name, each in sorted(keys.items()))
        do = "give all servers the same lines in `secrets.key`, and restart them one after another"
        yield Finding(Level.WARNING, "servers", f"their keys for secrets differ: {shown}", do)


def _of_clock(about: str, date: str, now: float) -> Iterator[Finding]:
    try:
        ahead = now - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return
    if abs(ahead) >= CLOCK_SECONDS:
        way = "behind" if ahead > 0 else "ahead of"
        yield Finding(Level.WARNING, about, f"the clock is {abs(ahead):.0f} s {way} this machine's", SET_CLOCK)


SET_CLOCK = "synchronize the clocks (chrony, systemd-timesyncd)"


def _of_certificate(about: str, begins: str, until: str, now: float) -> Iterator[Finding]:
    """Report a certificate that ends soon. Short-lived ones are renewed after two thirds of their lifetime, and
    reported after five sixths.
    """
    if not until:
        return
    ends = cert_time_to_seconds(until)
    left = ends - now
    lasts = ends - cert_time_to_seconds(begins) if begins else float("inf")
    if left < soon_seconds("node", lasts):
        says = f"the certificate expires on {until}, in {max(0.0, left) / 86_400:.0f} days"
        do = "replace the certificate file; the server reloads it automatically"
        yield Finding(Level.WARNING if left > 0 else Level.PROBLEM, about, says, do)


def of_leases(before: Sequence[Object], after: Sequence[Object], known: Sequence[str]) -> Iterator[Finding]:
    """Check which roles have a leader. `after` are the leases read again after every held lease must have been
    renewed; `known` are the servers that this program is configured with.
    """
    renewals = {each["meta"]["name"]: each["spec"].get("renewals", 0) for each in before}
    alive = {
        each["meta"]["name"]: each["spec"]
        for each in after
        if each["spec"].get("holder") and each["spec"].get("renewals", 0) != renewals.get(each["meta"]["name"])
    }
    leads = {name.removeprefix("leader-"): spec for name, spec in alive.items() if name.startswith("leader-")}
    for role in ("scheduler", "controllers"):
        led = [name for name in leads if name.partition(".")[0] == role]
        if led:
            holders = ", ".join(leads[name].get("address") or leads[name]["holder"] for name in led)
            yield Finding(Level.OK, role, f"leader: {holders}")
        else:
            do = f"start a server whose `--roles` include {role}, and check its log"
            yield Finding(Level.PROBLEM, role, "no leader: its work is not done", do)
    for name, spec in alive.items():
        address = spec.get("address", "")
        if name.startswith("server-") and len(alive) > 1 and address and address not in known:
            says = "also serves, but is not in MANDOR_SERVER"
            yield Finding(
                Level.OK, f"server {address}", says, "add it to MANDOR_SERVER, to be used when other servers fail"
            )


def of_nodes(nodes: Sequence[Object], version: str) -> Iterator[Finding]:
    if not nodes:
        yield Finding(Level.PROBLEM, "nodes", "there are no nodes", "start `mandor agent --server URL` on a machine")
        return
    found = [each for node in nodes for each in _of_node(node, version)]
    ready = sum(node["status"].get("phase") == "Ready" for node in nodes)
    if ready:
        yield Finding(Level.OK, "nodes", f"{ready} of {len(nodes)} ready")
    else:
        yield Finding(Level.PROBLEM, "nodes", "no node is ready: no instance can start", "check the agents' logs")
    yield from found


def _of_node(node: Object, version: str) -> Iterator[Finding]:
    name, status = node["meta"]["name"], node["status"]
    about = f"node {name}"
    if status.get("phase") != "Ready":
        says = f"{status.get('phase', 'Unknown')}: {status.get('reason') or 'no heartbeats from its agent'}"
        yield Finding(Level.WARNING, about, says, f"check its agent; `mandor describe node {name}` shows more")
        return
    for engine, each in status.get("engines", {}).items():
        if not each.get("up", True):
            says = f"the engine {engine} does not respond: {each.get('message', '')}"
            yield Finding(Level.WARNING, about, says, f"start {engine} on the node; the agent detects it automatically")
    if pressure := status.get("pressure"):
        says = f"short of {', '.join(pressure)}"
        hint = "it accepts only instances that tolerate the pressure; add resources, or move instances away"
        yield Finding(Level.WARNING, about, says, hint)
    for sink, each in status.get("log_sinks", {}).items():
        if each.get("state") == "Failing":
            says = f"the log sink {sink} fails: {each.get('message', '')}"
            yield Finding(
                Level.WARNING, about, says, f"lines are buffered on disk; see `mandor describe log-sink {sink}`"
            )
    if held := status.get("facts", {}).get("held"):
        number, _, names = held.partition(": ")
        says = f"runs {number} instances that the cluster does not list, and leaves them as they are: {names}"
        do = f"restore the state that contains them, or stop them with `mandor stop-held {name}`"
        yield Finding(Level.WARNING, about, says, do)
    if ahead := status.get("facts", {}).get(CLOCK_AHEAD):
        seconds = int(ahead)
        way = "ahead of" if seconds > 0 else "behind"
        yield Finding(Level.WARNING, about, f"the clock is {abs(seconds)} s {way} the server's", SET_CLOCK)
    theirs = status.get("agent_version", "")
    if theirs and theirs != version:
        level, says = _level(version, theirs), f"the agent has version {theirs}, the server {version}"
        do = "upgrade the servers" if newer(version, theirs) else "upgrade its agent"
        if level is Level.PROBLEM:
            do += "; it continues to run, but cannot join again with this version"
        yield Finding(level, about, says, do)


def of_authority(certificates: Sequence[Object], now: float) -> Iterator[Finding]:
    """Check the authority that issues certificates; trusted predecessors expire without action."""
    days = (certificates[0]["ends_at"] - now) / 86_400
    if days < AUTHORITY_DAYS:
        says = f"its certificate expires in {days:.0f} days, and with it all certificates that it issued"
        level = Level.WARNING if days > 0 else Level.PROBLEM
        yield Finding(level, "authority", says, "run `mandor ca rotate`; replace the files of an authority of your own")
    else:
        yield Finding(Level.OK, "authority", f"its certificate is valid for {days:.0f} days")


def of_tokens(tokens: Iterable[Object], now: float) -> Iterator[Finding]:
    for token in tokens:
        ends = token["spec"].get("expires_at", 0.0)
        role, lasts = token["spec"]["role"], ends - token["meta"]["created_at"]
        if ends and ends_soon(role, ends - now, lasts):
            who, about = token["spec"]["identity"], f"token {token['meta']['name']}"
            days = (ends - now) / 86_400
            says = f"the token of {who} expires in {days:.0f} days" if days > 0 else f"the token of {who} has expired"
            do = f"`mandor token rotate {token['meta']['name']}` creates a new one"
            if role == "node":
                says, do = f"{says}, and was not renewed in time", "check that its agent is running, and its log"
            yield Finding(Level.WARNING, about, says, do)


def of_instances(instances: Sequence[Object], now: float) -> Iterator[Finding]:
    waiting = [
        each
        for each in instances
        if each["status"].get("phase", "Pending") == "Pending"
        and not each["spec"].get("stop")
        and now - each["meta"].get("created_at", now) > WAITING_SECONDS
    ]
    phases = Counter(each["status"].get("phase", "Pending") for each in instances)
    yield Finding(Level.OK, "instances", ", ".join(f"{n:,} {phase}" for phase, n in phases.most_common()) or "none")
    for reason in SECRET_REASONS:
        yield from _without_secret([each for each in instances if each["status"].get("reason") == reason])
    if waiting:
        names = ", ".join(each["meta"]["name"] for each in waiting[:NAMES_MOST])
        more = f" and {len(waiting) - NAMES_MOST:,} more" if len(waiting) > NAMES_MOST else ""
        says = f"{len(waiting):,} have been pending for more than five minutes: {names}{more}"
        yield Finding(
            Level.WARNING, "instances", says, f"`mandor explain {waiting[0]['meta']['name']}` shows the reason"
        )


def _without_secret(blocked: Sequence[Object]) -> Iterator[Finding]:
    """Report instances that cannot start because a secret cannot be read."""
    if blocked:
        first, status = blocked[0]["meta"]["name"], blocked[0]["status"]
        says = f"{len(blocked):,} cannot start without a secret, such as {first}: {status.get('message', '')}"
        do = "create the secret" if status["reason"] == "SecretMissing" else "check `secrets.key` of the servers"
        yield Finding(Level.WARNING, "instances", says, do)


def of_pools(pools: Iterable[Object], now: float) -> Iterator[Finding]:
    """Check the machines that pools order."""
    for each in pools:
        name, scaling = each["meta"]["name"], (each.get("status") or {}).get("scaling") or {}
        about = f"node-pool {name}"
        for kind, trouble in scaling.get("trouble", {}).items():
            says = f"{trouble['failures']} consecutive orders of {kind} failed: {trouble['message']}"
            do = "correct the pool's `settings` or the provisioner; orders are retried automatically"
            yield Finding(Level.WARNING, about, says, do)
        stuck = [
            machine["id"]
            for machine in scaling.get("machines", ())
            if machine.get("phase") == "Leaving" and now - machine["at"] > LEAVING_SECONDS
        ]
        if stuck:
            says = f"{len(stuck)} machines cannot be deleted: {scaling.get('message') or ', '.join(stuck[:NAMES_MOST])}"
            do = f"check the provisioner; `mandor pool forget {name}` removes the records of machines that do not exist"
            yield Finding(Level.WARNING, about, says, do)


def of_receivers(kind: str, receivers: Iterable[Object]) -> Iterator[Finding]:
    for each in receivers:
        status = each.get("status", {})
        if status.get("failures"):
            says = f"{status['failures']} consecutive deliveries failed: {status.get('message', '')}"
            yield Finding(
                Level.WARNING,
                f"{kind} {each['meta']['name']}",
                says,
                "check the receiver; undelivered events are kept and retried",
            )


def of_routes(routes: Iterable[Object], now: float) -> Iterator[Finding]:
    """Report certificates by ACME that cannot be issued or renewed, or are about to expire, once per host."""
    seen: set[tuple[str, str]] = set()
    for each in routes:
        state = (each.get("status") or {}).get("certificate") or {}
        host, namespace = each["spec"].get("host", ""), each["meta"].get("namespace", "")
        ends = state.get("not_after", 0.0)
        left = ends - now
        if (namespace, host) in seen or not (state.get("message") or (ends and left < CERTIFICATE_SECONDS)):
            continue
        seen.add((namespace, host))
        until = "there is none" if not ends else f"it expires in {left / 3600:.0f} h" if left > 0 else "it has expired"
        why = state.get("message") or "its renewal is late: check the log of the server that leads the controllers"
        level = Level.PROBLEM if ends and left <= 0 else Level.WARNING
        do = f"correct the cause; orders are repeated; `mandor describe route {each['meta']['name']} -n {namespace}`"
        yield Finding(level, f"certificate of {host}", f"{until}: {why}", do)


def of_inventories(inventories: Iterable[Object]) -> Iterator[Finding]:
    for each in inventories:
        status = each.get("status", {})
        if status.get("failures"):
            says = f"{status['failures']} consecutive reads failed: {status.get('error', '')}"
            yield Finding(
                Level.WARNING,
                f"inventory {each['meta']['name']}",
                says,
                "check the source; the last good list stays in use",
            )
        if unknown := status.get("unknown"):
            yield Finding(
                Level.WARNING,
                f"inventory {each['meta']['name']}",
                f"keys of the list are not understood: {', '.join(unknown)}",
                "rename them as in docs/guides/place-vms.md; a machine whose usage is not understood counts as empty",
            )
