"""What `mandor doctor` finds: from what servers and objects say to what is wrong, and what to do about it."""

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
"""Clocks that differ by less do no harm: leases are measured on one clock each."""
SLOW_SECONDS = 1.0
WAITING_SECONDS = 300.0
NAMES_MOST = 5
AUTHORITY_DAYS = 90
"""An authority that ends within so many days is told of."""


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
    """`health`: its answer to `/readyz`; `now`: this machine's clock when it came."""
    about = f"server {name}"
    found = [
        *_of_clock(about, health.date, now),
        *_of_certificate(about, health.certificate_from, health.certificate_until, now),
    ]
    found += [Finding(Level.WARNING, about, note) for note in health.body.get("notes", ())]
    if health.seconds > SLOW_SECONDS:
        says = f"it took {health.seconds:.1f} s to answer and to read its store"
        found.append(Finding(Level.WARNING, about, says, "look at the disk of the store, and at the server's load"))
    if version != ours:
        says = f"it is version {version}, this program is {ours}"
        found.append(Finding(_level(version, ours), about, says, "upgrade servers first, then agents and this program"))
    if not found:
        found.append(Finding(Level.OK, about, f"ready in {health.seconds * 1000:.0f} ms, version {version}"))
    yield from found


def _level(one: str, other: str) -> Level:
    """Of two versions that are not the same."""
    return Level.WARNING if compatible(one, other) else Level.PROBLEM


def of_servers(servers: Sequence[Object]) -> Iterator[Finding]:
    """What the servers tell of themselves."""
    by_version: dict[str, list[str]] = {}
    for each in servers:
        by_version.setdefault(each["spec"]["version"], []).append(each["spec"].get("address") or each["meta"]["name"])
    if len(by_version) <= 1:
        yield from (Finding(Level.OK, "servers", f"{len(servers)} of version {version}") for version in by_version)
        return
    told = "; ".join(f"{version} at {', '.join(names)}" for version, names in sorted(by_version.items()))
    features = [set(each["spec"].get("features", ())) for each in servers]
    unused = sorted(set.union(*features) - set.intersection(*features))
    waits = f", and not every server knows {', '.join(unused)}, which is not used until then" if unused else ""
    apart = not all(compatible(one, other) for one in by_version for other in by_version)
    if apart:
        do = "stop the oldest ones, or upgrade them: servers may differ by one minor version"
        yield Finding(Level.PROBLEM, "servers", f"their versions are too far apart: {told}", do)
    else:
        do = "upgrade the others, one after another; see the guide on upgrades"
        yield Finding(Level.WARNING, "servers", f"their versions are mixed: {told}{waits}", do)


def _of_clock(about: str, date: str, now: float) -> Iterator[Finding]:
    try:
        ahead = now - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return
    if abs(ahead) >= CLOCK_SECONDS:
        way = "behind" if ahead > 0 else "ahead of"
        yield Finding(Level.WARNING, about, f"its clock is {abs(ahead):.0f} s {way} this machine's", SET_CLOCK)


SET_CLOCK = "let a time service set the clocks (chrony, systemd-timesyncd)"


def _of_certificate(about: str, begins: str, until: str, now: float) -> Iterator[Finding]:
    """A short-lived certificate is renewed at two thirds of its life; it is told of when half of the rest is over."""
    if not until:
        return
    ends = cert_time_to_seconds(until)
    left = ends - now
    lasts = ends - cert_time_to_seconds(begins) if begins else float("inf")
    if left < soon_seconds("node", lasts):
        says = f"its certificate ends on {until}, in {max(0.0, left) / 86_400:.0f} days"
        do = "put a new one in its place: the server takes it up by itself"
        yield Finding(Level.WARNING if left > 0 else Level.PROBLEM, about, says, do)


def of_leases(before: Sequence[Object], after: Sequence[Object], known: Sequence[str]) -> Iterator[Finding]:
    """`after`: the same leases once each that is held must have been renewed. `known`: servers this program asks."""
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
            yield Finding(Level.OK, role, f"led by {holders}")
        else:
            do = f"start a server with `--roles` that has {role}, and see its log"
            yield Finding(Level.PROBLEM, role, "nobody leads: nothing of its work is done", do)
    for name, spec in alive.items():
        address = spec.get("address", "")
        if name.startswith("server-") and len(alive) > 1 and address and address not in known:
            says = "it serves too, but is not among the servers that this program knows"
            yield Finding(Level.OK, f"server {address}", says, "name it in MANDOR_SERVER to be spared when others fail")


def of_nodes(nodes: Sequence[Object], version: str) -> Iterator[Finding]:
    if not nodes:
        yield Finding(Level.PROBLEM, "nodes", "there are none", "`mandor agent --server URL` makes a machine one")
        return
    found = [each for node in nodes for each in _of_node(node, version)]
    ready = sum(node["status"].get("phase") == "Ready" for node in nodes)
    if ready:
        yield Finding(Level.OK, "nodes", f"{ready} of {len(nodes)} are ready")
    else:
        yield Finding(Level.PROBLEM, "nodes", "none is ready: nothing can be started", "see their agents' logs")
    yield from found


def _of_node(node: Object, version: str) -> Iterator[Finding]:
    name, status = node["meta"]["name"], node["status"]
    about = f"node {name}"
    if status.get("phase") != "Ready":
        says = f"{status.get('phase', 'Unknown')}: {status.get('reason') or 'its agent was not heard'}"
        yield Finding(Level.WARNING, about, says, f"`mandor describe node {name}`; is its agent running there?")
        return
    for engine, each in status.get("engines", {}).items():
        if not each.get("up", True):
            says = f"its engine {engine} does not answer: {each.get('message', '')}"
            yield Finding(Level.WARNING, about, says, f"start {engine} there; the agent finds it by itself")
    if pressure := status.get("pressure"):
        says = f"it is short of {', '.join(pressure)}"
        yield Finding(Level.WARNING, about, says, "it takes only important work; give it more, or move work away")
    for sink, each in status.get("log_sinks", {}).items():
        if each.get("state") == "Failing":
            says = f"the log sink {sink} does not take its lines: {each.get('message', '')}"
            yield Finding(Level.WARNING, about, says, f"`mandor describe log-sink {sink}`; they are kept on its disk")
    if ahead := status.get("facts", {}).get(CLOCK_AHEAD):
        seconds = int(ahead)
        way = "ahead of" if seconds > 0 else "behind"
        yield Finding(Level.WARNING, about, f"its clock is {abs(seconds)} s {way} the server's", SET_CLOCK)
    theirs = status.get("agent_version", "")
    if theirs and theirs != version:
        level, says = _level(version, theirs), f"its agent is version {theirs}, the server {version}"
        do = "upgrade the servers" if newer(version, theirs) else "upgrade its agent"
        if level is Level.PROBLEM:
            do += "; it serves on, but cannot join again as it is"
        yield Finding(level, about, says, do)


def of_authority(certificates: Sequence[Object], now: float) -> Iterator[Finding]:
    """The authority that issues certificates; a trusted predecessor ends by itself."""
    days = (certificates[0]["ends_at"] - now) / 86_400
    if days < AUTHORITY_DAYS:
        says = f"its certificate ends in {days:.0f} days, and all that it issued with it"
        level = Level.WARNING if days > 0 else Level.PROBLEM
        yield Finding(level, "authority", says, "`mandor ca rotate` makes another; your own: replace its files")
    else:
        yield Finding(Level.OK, "authority", f"its certificate is good for {days:.0f} days")


def of_tokens(tokens: Iterable[Object], now: float) -> Iterator[Finding]:
    for token in tokens:
        ends = token["spec"].get("expires_at", 0.0)
        role, lasts = token["spec"]["role"], ends - token["meta"]["created_at"]
        if ends and ends_soon(role, ends - now, lasts):
            who, about = token["spec"]["identity"], f"token {token['meta']['name']}"
            days = (ends - now) / 86_400
            says = f"the one of {who} ends in {days:.0f} days" if days > 0 else f"the one of {who} has ended"
            do = f"`mandor token rotate {token['meta']['name']}` makes another"
            if role == "node":
                says, do = f"{says}, and was not renewed in time", "is its agent running, and can it write? see its log"
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
    if waiting:
        names = ", ".join(each["meta"]["name"] for each in waiting[:NAMES_MOST])
        more = f" and {len(waiting) - NAMES_MOST:,} more" if len(waiting) > NAMES_MOST else ""
        says = f"{len(waiting):,} have waited for a node for more than five minutes: {names}{more}"
        yield Finding(Level.WARNING, "instances", says, f"`mandor explain {waiting[0]['meta']['name']}` tells why")


def of_receivers(kind: str, receivers: Iterable[Object]) -> Iterator[Finding]:
    for each in receivers:
        status = each.get("status", {})
        if status.get("failures"):
            says = f"{status['failures']} tries in a row have failed: {status.get('message', '')}"
            yield Finding(Level.WARNING, f"{kind} {each['meta']['name']}", says, "what it has missed is kept for it")


def of_inventories(inventories: Iterable[Object]) -> Iterator[Finding]:
    for each in inventories:
        status = each.get("status", {})
        if status.get("failures"):
            says = f"{status['failures']} looks in a row have failed: {status.get('error', '')}"
            yield Finding(Level.WARNING, f"inventory {each['meta']['name']}", says, "its last good list is used on")
