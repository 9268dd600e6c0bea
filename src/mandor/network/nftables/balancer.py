"""The balancer that translates destinations in the kernel with nftables; needs root, `nft` and `ip`."""

import asyncio
import hashlib
import logging
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from mandor.errors import MandorError, Unavailable
from mandor.network.base import Balancer, Frontend, FrontendKey, Traffic
from mandor.network.nftables.commands import run, which
from mandor.network.nftables.conntrack import Flow, delete_flows
from mandor.network.nftables.rules import (
    MAPS,
    Objects,
    change_set,
    difference,
    frontend_id,
    objects,
    skeleton,
    skeleton_mark,
)

ROUTE_PROTOCOL = "173"  # marks the routes of balancers
_INTERFACES = Path("/sys/class/net")
_BRIDGE_FILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")
_PREFIXES = ("service", "endpoint", "clients", "new_", "sent_", "received_")
log = logging.getLogger(__name__)
T = TypeVar("T")


class NftablesBalancer(Balancer):
    """One table of the kernel for one agent; other tables are never changed."""

    name = "nftables"

    def __init__(self, node: str, ranges: Sequence[str] = (), *, owner: str = "") -> None:
        """`ranges`: virtual addresses, to which routes are made. `owner`: names the table and its routes together with
        the node, since nodes of several clusters on one machine may have the same name."""
        digest = hashlib.sha256(f"{node} {owner}".encode()).hexdigest()
        self.table = f"mandor_balancer_{digest[:8]}"
        self._node, self._metric = node, str(1024 + int(digest[:4], 16))
        self._ranges = tuple(str(ip_network(each)) for each in ranges)
        self._lock = asyncio.Lock()
        self._frontends: dict[FrontendKey, Frontend] | None = None
        """Frontends in effect; None: not yet read from the kernel, or unknown after a failure."""
        self._own: Counter[str] = Counter()
        self._links: set[str] = set()

    async def probe(self) -> None:
        """Check rights, programs and the kernel with a table that is loaded and removed in one transaction."""
        if os.geteuid() != 0:
            raise Unavailable("the nftables balancer needs root", hint="run the agent as root, or use the relay")
        for name in ("nft", "ip"):
            if which(name) is None:
                raise Unavailable(f"the nftables balancer needs the program `{name}`", hint=f"install `{name}`")
        trial = f"{self.table}_probe"
        await run("nft", "-f", "-", text=f"{skeleton(trial, self._ranges)}delete table inet {trial}\n")

    async def apply(self, frontends: Sequence[Frontend]) -> None:
        """Send one transaction with the difference to the kernel."""
        desired = _without_conflicts(frontends)
        async with self._lock:
            if self._frontends is None:
                await self._apply_all(desired)
            else:
                await self._apply_change(self._frontends, desired)

    async def traffic(self) -> Mapping[FrontendKey, Traffic]:
        """Return the named counters of the kernel; bytes include the headers of packets."""
        async with self._lock:
            frontends = self._frontends or {}
            if not frontends:
                return {}
            found = await self._list("list", "counters", "table", "inet", self.table)
        counters = {each["counter"]["name"]: each["counter"] for each in found if "counter" in each}

        def value(kind: str, key: FrontendKey, what: str) -> int:
            return int(counters.get(f"{kind}_{frontend_id(key)}", {}).get(what, 0))

        return {
            key: Traffic(value("new", key, "packets"), value("sent", key, "bytes"), value("received", key, "bytes"))
            for key in frontends
        }

    async def close(self) -> None:
        """Hold nothing: all state is in the kernel."""

    async def remove(self) -> None:
        """Delete the table, the routes and the rules for forwarding."""
        async with self._lock:
            self._frontends, self._own, self._links = None, Counter(), set()
            if await self._exists():
                await run("nft", "-f", "-", text=f"delete table inet {self.table}\n")
            for command in self._routes("delete"):
                with suppress(Unavailable):  # there is no such route
                    await run("ip", *command)
            for program, rule in self._forwarding():
                with suppress(Unavailable):  # there is no such rule
                    await run(program, "-w", "-D", "FORWARD", *rule)

    async def _apply_all(self, desired: dict[FrontendKey, Frontend]) -> None:
        """Compare the kernel with the whole desired state: after a start, and after a failure."""
        statements = ""
        before, own, links = Objects(), set[str](), set[str]()
        exists = await self._exists()
        if exists:
            listed = await self._list("list", "counters", "table", "inet", self.table)
            names = {each["counter"]["name"] for each in listed if "counter" in each}
            if skeleton_mark(self._ranges) in names:
                before, own, links = await self._read(names)
            else:
                statements = f"delete table inet {self.table}\n"  # of another version: replaced in one transaction
                exists = False
        if not exists:
            statements += skeleton(self.table, self._ranges)
        after = Objects()
        for each in desired.values():
            after.add(objects(each))
        wanted = Counter(_own_elements(desired.values(), self._node))
        present = await _in_thread(_links)
        statements += difference(self.table, before, after) + "\n" + self._sets(own, set(wanted), links, present)
        await self._load(statements)
        for command in self._routes("replace"):
            await run("ip", *command)
        await self._allow_forwarding()
        self._frontends, self._own, self._links = desired, wanted, present
        await self._forget_flows([each for each in desired.values() if each.protocol == "udp"])

    async def _apply_change(self, known: dict[FrontendKey, Frontend], desired: dict[FrontendKey, Frontend]) -> None:
        removed = [old for key, old in known.items() if (new := desired.get(key)) is not old and new != old]
        added = [new for key, new in desired.items() if (old := known.get(key)) is not new and old != new]
        links = await _in_thread(_links)
        if not removed and not added and links == self._links:
            return
        before, after = Objects(), Objects()
        for each in removed:
            before.add(objects(each))
        for each in added:
            after.add(objects(each))
        own = self._own.copy()
        own.subtract(_own_elements(removed, self._node))
        own.update(_own_elements(added, self._node))
        own = +own
        statements = difference(self.table, before, after)
        statements += "\n" + self._sets(set(self._own), set(own), self._links, links)
        self._frontends = None  # unknown until the kernel has accepted the transaction
        await self._load(statements)
        self._frontends, self._own, self._links = desired, own, links
        await self._forget_flows([each for each in (*removed, *added) if each.protocol == "udp"])

    def _sets(self, own: set[str], wanted: set[str], links: set[str], wanted_links: set[str]) -> str:
        parts = [change_set(self.table, "links", links, wanted_links)]
        for number in "46":
            chosen = [{each for each in group if (":" in each) == (number == "6")} for group in (own, wanted)]
            parts.append(change_set(self.table, f"self{number}", *chosen))
        return "\n".join(parts)

    async def _load(self, statements: str) -> None:
        if statements.strip():
            await run("nft", "-f", "-", text=statements + "\n")

    async def _exists(self) -> bool:
        found = await self._list("list", "tables", "inet")
        return any(each.get("table", {}).get("name") == self.table for each in found)

    async def _list(self, *command: str) -> list[dict[str, Any]]:
        text = await run("nft", "-j", *command)
        listed: list[dict[str, Any]] = msgspec.json.decode(text)["nftables"] if text.strip() else []
        return listed

    async def _read(self, counters: set[str]) -> tuple[Objects, set[str], set[str]]:
        """Return the objects of frontends, the elements of `self4` and `self6`, and the links in the kernel."""
        found = Objects(counters={each for each in counters if each.startswith(_PREFIXES)})
        for each in await self._list("list", "chains", "inet"):
            chain = each.get("chain", {})
            if chain.get("table") == self.table and chain["name"].startswith(_PREFIXES):
                found.chains[chain["name"]] = ()
        for each in await self._list("-t", "list", "sets", "inet"):
            listed = each.get("set", {})
            if listed.get("table") == self.table and listed["name"].startswith(_PREFIXES):
                found.sets[listed["name"]] = ""
        for name in MAPS:
            for key, value in await self._elements("map", name):
                target = f"goto {value['goto']['target']}" if isinstance(value, dict) else f'"{value}"'
                found.elements[name, _join(key)] = target
        own = {_join(key) for number in "46" for key in await self._elements("set", f"self{number}")}
        links = {" . ".join(f'"{part}"' for part in key["concat"]) for key in await self._elements("set", "links")}
        return found, own, links

    async def _elements(self, kind: str, name: str) -> list[Any]:
        listed = await self._list("list", kind, "inet", self.table, name)
        return next((each[kind].get("elem", []) for each in listed if kind in each), [])

    def _routes(self, verb: str) -> list[tuple[str, ...]]:
        """Routes by which processes of the node send packets to virtual addresses, so that the output hook sees them.

        IPv6 rejects packets on unicast routes to `lo`. The metric keeps the routes of several agents apart."""
        end = ("dev", "lo", "proto", ROUTE_PROTOCOL, "metric", self._metric)
        return [
            ("-6", "route", verb, "local", each, *end) if ":" in each else ("-4", "route", verb, each, *end)
            for each in self._ranges
        ]

    def _forwarding(self) -> list[tuple[str, tuple[str, ...]]]:
        match = ("-m", "conntrack", "--ctstate", "DNAT", "--ctorigdst")
        mark = ("-m", "comment", "--comment", self.table, "-j", "ACCEPT")
        return [
            (program, (*match, each, *mark))
            for each in self._ranges
            if which(program := "ip6tables" if ":" in each else "iptables") is not None
        ]

    async def _allow_forwarding(self) -> None:
        """Accept balanced connections where another program, such as Docker, drops forwarded packets by default."""
        for program, rule in self._forwarding():
            try:
                if "-P FORWARD DROP" not in await run(program, "-w", "-S", "FORWARD"):
                    continue
                try:
                    await run(program, "-w", "-C", "FORWARD", *rule)
                except Unavailable:
                    await run(program, "-w", "-I", "FORWARD", "1", *rule)
            except MandorError as error:
                log.warning("forwarded packets of services can be dropped: %s", error)

    async def _forget_flows(self, changed: Sequence[Frontend]) -> None:
        """Delete tracked UDP flows of changed frontends to endpoints that are gone."""
        endpoints: dict[tuple[str, int], set[tuple[str, int]]] = {}
        current = self._frontends or {}
        for each in changed:
            kept = current.get(each.key)
            for address in each.addresses:
                places = endpoints.setdefault((str(ip_address(address)), each.port), set())
                if kept is not None and address in kept.addresses and kept.port == each.port:
                    places |= {(str(ip_address(to.address)), to.port) for to in kept.endpoints}

        def unwanted(flow: Flow) -> bool:
            places = endpoints.get((flow.address, flow.port))
            return places is not None and (flow.endpoint, flow.endpoint_port) not in places

        if endpoints:
            try:
                await _in_thread(partial(delete_flows, unwanted))
            except OSError as error:
                log.warning("UDP clients can keep endpoints that are gone until they pause: %s", error)


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)


def _without_conflicts(frontends: Sequence[Frontend]) -> dict[FrontendKey, Frontend]:
    """Return the frontends by key; of several with one address and port the first is served."""
    taken: set[tuple[str, str, int]] = set()
    found: dict[FrontendKey, Frontend] = {}
    for each in frontends:
        places = {(address, each.protocol, each.port) for address in each.addresses}
        if places & taken:
            log.warning("service %s/%s: its address and port belong to another service", *each.key[:2])
            continue
        taken |= places
        found[each.key] = each
    return found


def _own_elements(frontends: Iterable[Frontend], node: str) -> list[str]:
    """Pairs of source and destination with which an endpoint of this node reaches itself."""
    return [
        f"{address} . {address}"
        for each in frontends
        for endpoint in each.endpoints
        if endpoint.node in ("", node)
        for address in (str(ip_address(endpoint.address)),)
    ]


def _links() -> set[str]:
    """Interfaces on which an endpoint answers a neighbour directly, so that the answer would miss the translation.

    Packets of a bridge pass the translation if `bridge-nf-call-iptables` is set."""
    try:
        filtered = _BRIDGE_FILTER.read_text().strip() == "1"
    except OSError:
        filtered = False
    every = [name for _, name in socket.if_nameindex() if name != "lo"]
    names = [each for each in every if not (_INTERFACES / each / "brport").exists()]
    return {f'"{name}" . "{name}"' for name in names if not filtered or not (_INTERFACES / name / "bridge").exists()}


def _join(key: Any) -> str:
    return " . ".join(str(part) for part in key["concat"])
