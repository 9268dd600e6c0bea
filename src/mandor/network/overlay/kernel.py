"""The data path of networks in the kernel, by the programs `ip`, `bridge` and `nft`; needs root."""

import asyncio
import hashlib
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import msgspec

from mandor.errors import MandorError, Unavailable
from mandor.network.base import Bridge, NetworkPart, Overlay
from mandor.network.nftables.commands import run, which
from mandor.network.overlay.plan import (
    ROUTE_PROTOCOL,
    Devices,
    Names,
    Tunnel,
    desired,
    device_names,
    forwarding_commands,
    link_commands,
    rules,
    stale_routes,
)

MTU_USUAL = 1500
PROGRAMS = ("ip", "bridge", "nft")
TRIAL_IDENTIFIER = 0x4CFFFF
_SYSTEM = Path("/proc/sys/net")
log = logging.getLogger(__name__)

Link = dict[str, Any]
"""One interface, as `ip -json -details address show` prints it."""


class KernelOverlay(Overlay):
    """Networks of one agent; devices, routes and tables of others are never changed."""

    name = "kernel"

    def __init__(self, node: str) -> None:
        """`node`: names the table and the devices."""
        self._node = node
        self.table = f"mandor_overlay_{hashlib.sha256(node.encode()).hexdigest()[:8]}"
        self._mark = f"mandor/{node}/"
        """Beginning of the alias of each device; the name of the network follows."""
        self._lock = asyncio.Lock()
        self._rules = ""
        """Rules in effect; empty: unknown."""
        self._problems: dict[str, str] = {}

    @property
    def problems(self) -> Mapping[str, str]:
        return self._problems

    async def probe(self) -> None:
        """Check rights, programs and the kernel with a device that is made and removed."""
        if os.geteuid() != 0:
            raise Unavailable("networks need root", hint="run the agent as root")
        for name in PROGRAMS:
            if which(name) is None:
                raise Unavailable(f"networks need the program `{name}`", hint=f"install `{name}`")
        trial = f"mdt{self.table[-8:]}"
        with suppress(Unavailable):
            await run("ip", "link", "delete", trial)
        tunnel = ("type", "vxlan", "id", str(TRIAL_IDENTIFIER), "local", "127.0.0.1", "dstport", "4788")
        await run("ip", "link", "add", trial, *tunnel)
        await run("ip", "link", "delete", trial)
        await run("nft", "-f", "-", text=f"{rules(f'{self.table}_probe', [])}delete table inet {self.table}_probe\n")

    async def apply(self, parts: Sequence[NetworkPart]) -> Mapping[str, Bridge]:
        """Compare the kernel with the wanted networks, and change only the difference."""
        async with self._lock:
            links = await self._links()
            found: dict[str, Bridge] = {}
            effective: list[tuple[NetworkPart, Names]] = []
            self._problems = {}
            await self._remove_others(links, {each.name for each in parts})
            if parts:
                await asyncio.to_thread(_allow_forwarding)
            # The rules come before the devices: no packet passes a device without its rules.
            await self._apply_rules([(each, device_names(self._node, each.name)) for each in parts])
            for part in parts:
                names = device_names(self._node, part.name)
                try:
                    found[part.name] = await self._apply_part(part, names, links)
                    effective.append((part, names))
                except (MandorError, ValueError) as error:
                    self._problems[part.name] = str(error)
                    log.warning("network %s is not in effect on this node: %s", part.name, error)
            await self._accept_forwarded([names.bridge for _, names in effective])
            return found

    async def remove(self) -> None:
        """Remove the devices, the rules and the routes."""
        async with self._lock:
            await self._remove_others(await self._links(), set())
            await self._apply_rules([])

    async def _apply_part(self, part: NetworkPart, names: Names, links: Mapping[str, Link]) -> Bridge:
        holder = next((each for each in links.values() if part.address in _addresses(each)), None)
        if holder is None and not ip_address(part.address).is_loopback:
            raise Unavailable(
                f"the node's address {part.address} is on no interface of this machine",
                hint="start the agent with `--address` and an address of the machine",
            )
        wanted = desired(part, names, min(int(holder["mtu"]), MTU_USUAL * 6) if holder else MTU_USUAL)
        present = await self._present(part, names, links)
        batch = "\n".join(link_commands(names, present, wanted))
        if batch:
            await run("ip", "-batch", "-", text=batch)
        for device in names if wanted.tunnel is not None else names[:1]:
            recreated = device == names.vxlan and present.tunnel != wanted.tunnel
            # An engine that starts before the agent makes the bridges of its networks without an alias.
            if recreated or "ifalias" not in links.get(device, {}):
                await run("ip", "link", "set", device, "alias", self._mark + part.name)
        for command in stale_routes(present, wanted):
            with suppress(Unavailable):  # it went with its device
                await run("ip", *command.split())
        if entries := "\n".join(forwarding_commands(names, present, wanted)):
            await run("bridge", "-batch", "-", text=entries)
        return Bridge(names.bridge, wanted.mtu)

    async def _present(self, part: NetworkPart, names: Names, links: Mapping[str, Link]) -> Devices:
        """Read the state of one network from the kernel."""
        bridge, vxlan = links.get(names.bridge), links.get(names.vxlan)
        found = Devices(bridge=bridge is not None)
        for link in (bridge, vxlan):
            if link is not None and link.get("ifalias") not in (None, self._mark + part.name):
                raise Unavailable(f"the interface {link['ifname']} belongs to another program")
        if bridge is not None:
            found.mtu = int(bridge["mtu"]) if "UP" in bridge["flags"] else 0
            found.addresses = {
                f"{each['local']}/{each['prefixlen']}"
                for each in bridge.get("addr_info", ())
                if each.get("scope") == "global"
            }
        if vxlan is not None:
            data = vxlan.get("linkinfo", {}).get("info_data", {})
            found.tunnel = Tunnel(int(data.get("id", 0)), str(data.get("local") or data.get("local6") or ""))
            if int(vxlan["mtu"]) != found.mtu or "UP" not in vxlan["flags"]:
                found.mtu = 0
            for each in await _json("ip", "neigh", "show", "dev", names.vxlan, "nud", "permanent"):
                found.neighbours[each["dst"]] = each.get("lladdr", "")
            for each in await _json("bridge", "fdb", "show", "dev", names.vxlan):
                if each.get("dst"):
                    found.forwarding[each["mac"]] = str(ip_address(each["dst"]))
        ranges = [ip_network(each) for each in (part.range4, part.range6) if each]
        for version in ("-4", "-6"):
            for each in await _json("ip", version, "route", "show", "proto", ROUTE_PROTOCOL):
                text = each["dst"] if "/" in each["dst"] else f"{each['dst']}/{'32' if version == '-4' else '128'}"
                if text[0].isdigit() or ":" in text:
                    destination = ip_network(text)
                    if any(destination.version == one.version and destination.subnet_of(one) for one in ranges):  # type: ignore[arg-type]
                        found.routes[text] = _way(each, names)
        return found

    async def _remove_others(self, links: Mapping[str, Link], wanted: set[str]) -> None:
        for name, link in links.items():
            alias = link.get("ifalias", "")
            if alias.startswith(self._mark) and alias.removeprefix(self._mark) not in wanted:
                with suppress(Unavailable):  # another program removed it
                    await run("ip", "link", "delete", name)
                await self._forget_forwarded(name)

    async def _apply_rules(self, parts: Sequence[tuple[NetworkPart, Names]]) -> None:
        text = rules(self.table, parts) if parts else ""
        exists = self.table in await run("nft", "list", "tables", "inet")
        if text == self._rules and exists == bool(parts):
            return
        if parts:
            await run("nft", "-f", "-", text=text)
        elif exists:
            await run("nft", "-f", "-", text=f"delete table inet {self.table}\n")
        self._rules = text

    async def _links(self) -> dict[str, Link]:
        return {each["ifname"]: each for each in await _json("ip", "-details", "address", "show")}

    async def _accept_forwarded(self, bridges: Sequence[str]) -> None:
        """Accept packets of the networks where another program, such as Docker, drops forwarded packets by default."""
        for program in ("iptables", "ip6tables"):
            if not bridges or which(program) is None:
                continue
            try:
                present = await run(program, "-w", "-S", "FORWARD")
                for rule in (each for bridge in bridges for each in _forwarding(bridge)):
                    if "-P FORWARD DROP" in present and f"-A FORWARD {' '.join(rule)}" not in present:
                        await run(program, "-w", "-I", "FORWARD", "1", *rule)
            except MandorError as error:
                log.warning("forwarded packets of networks can be dropped: %s", error)

    async def _forget_forwarded(self, bridge: str) -> None:
        for program in ("iptables", "ip6tables"):
            for rule in _forwarding(bridge) if which(program) is not None else ():
                with suppress(Unavailable):  # there is no such rule
                    await run(program, "-w", "-D", "FORWARD", *rule)


def _forwarding(bridge: str) -> tuple[tuple[str, ...], ...]:
    return ("-i", bridge, "-j", "ACCEPT"), ("-o", bridge, "-j", "ACCEPT")


def _addresses(link: Link) -> set[str]:
    return {each.get("local", "") for each in link.get("addr_info", ())}


def _way(route: Link, names: Names) -> str:
    """Return a route as `desired` writes it."""
    source = f"src {route.get('prefsrc', '')}"
    if route.get("dev") == names.vxlan:
        return f"via {route.get('gateway', '')} dev {names.vxlan} onlink {source}"
    if "via" in route:
        return f"via {route['via']['family']} {route['via']['host']} {source}"
    return f"via {route.get('gateway', '')} {source}"


async def _json(program: str, *arguments: str) -> list[Link]:
    text = await run(program, "-json", *arguments)
    found: list[Link] = msgspec.json.decode(text) if text.strip() else []
    return [each for each in found if each]


def _allow_forwarding() -> None:
    """Let the kernel forward packets; interfaces with router advertisements keep them."""
    _write(_SYSTEM / "ipv4/ip_forward", "1")
    forwarding = _SYSTEM / "ipv6/conf/all/forwarding"
    if not forwarding.exists() or forwarding.read_text().strip() == "1":
        return
    for each in (_SYSTEM / "ipv6/conf").glob("*/accept_ra"):
        if each.read_text().strip() == "1":
            _write(each, "2")  # forwarding would turn them off
    _write(forwarding, "1")


def _write(path: Path, text: str) -> None:
    try:
        if path.read_text().strip() != text:
            path.write_text(text)
    except OSError as error:
        log.warning("cannot write %s to %s: %s", text, path, error)
