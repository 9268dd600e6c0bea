"""The network of confined tasks: a bridge of the agent, an address for each instance, and its ports on the node.

The supervisor of a task makes the network namespace (`shim.network`). This module makes the bridge, hands out addresses
and forwards ports of the node, so that all of that stays in place while the agent is down.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, structs

from mandor.engines.base import Attachment, Launch
from mandor.engines.process.spawn import network_possible
from mandor.engines.shim.light import replace, write_kernel
from mandor.errors import EngineDown, Invalid, PortTaken

RANGE = IPv4Network("10.94.0.0/16")
"""Default range from which each agent takes a subnet."""
SUBNET_BITS = 22
LOCK = Path("/run/mandor-network.lock")
"""Lock that agents of one machine hold while they choose a subnet."""
COMMAND_SECONDS_MOST = 30.0
RESOLVERS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))
"""Resolver configuration of the node, and the one to use if the first names loopback addresses only."""

Port = tuple[str, int]
"""Protocol and number."""


class Lease(Struct, frozen=True):
    """Address of an instance on the bridge, and the ports of the node that lead there."""

    address: IPv4Address
    ports: frozenset[Port] = frozenset()
    bridge: str = ""
    """Bridge of a network of the cluster that the address belongs to; empty: it is of this engine's own bridge."""


class Leases(Struct, frozen=True):
    """State on disk: the subnet of the bridge and the leases by uid."""

    subnet: IPv4Network
    leases: dict[str, Lease] = {}


class TaskNetwork:
    """Bridge, addresses and forwarded ports of one engine. One agent process uses it at a time."""

    def __init__(self, directory: Path, span: IPv4Network = RANGE) -> None:
        """`span`: the range of all subnets on this machine."""
        own = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:8]
        self.bridge, self.table = f"mdr{own}", f"mandor_{own}"
        self._file, self._span, self._first = directory / "network.json", span, int(own, 16)
        self._lock = asyncio.Lock()
        self._state = self._read()
        self._applied = False
        """Whether the bridge and the rules match the state."""

    async def attach(self, uid: str, launch: Launch, running: Collection[str]) -> dict[str, Any]:
        """Lease an address, forward the ports, and return the part of the launch record about the network.

        `running`: uids of the instances that run; an instance that has ended keeps its address but not its ports."""
        ports = frozenset((launch.protocols.get(name, "tcp"), number) for name, number in launch.ports.items())
        async with self._lock, _machine_lock() if self._state is None else nullcontext():
            state = self._state or Leases(await self._choose_subnet())
            leases = {
                other: lease if other in {uid, *running} else structs.replace(lease, ports=lease.ports - ports)
                for other, lease in state.leases.items()
            }
            taken = {port for other, lease in leases.items() if other != uid for port in lease.ports}
            for protocol, number in sorted(ports):
                if (protocol, number) in taken:
                    raise PortTaken(f"{protocol} port {number} of this node belongs to another instance", port=number)
                _check_free(protocol, number)
            known = leases.get(uid)
            attachment = launch.attachment
            if attachment is not None:
                held = known.ports if known else frozenset()
                lease = Lease(IPv4Address(attachment.address), ports | held, attachment.bridge)
            elif known and not known.bridge:
                lease = structs.replace(known, ports=ports | known.ports)
            else:
                lease = Lease(_free_address(state), ports)
            leases[uid] = lease
            if leases != state.leases or not self._applied or not _exists(self.bridge):
                await self._apply(Leases(state.subnet, leases))
                await self._allow_forwarding()
            place = attachment or _own_place(self.bridge, lease, state.subnet)
            return self._record(place, ports)

    async def keep_only(self, uids: frozenset[str]) -> None:
        """Free the addresses and ports of other instances; the bridge goes with the last one."""
        if self._state is None or self._state.leases.keys() <= uids:
            return
        async with self._lock:
            if self._state is not None:
                left = {uid: lease for uid, lease in self._state.leases.items() if uid in uids}
                await self._apply(Leases(self._state.subnet, left))

    def _record(self, place: Attachment, ports: frozenset[Port]) -> dict[str, Any]:
        outer = f"v{os.urandom(6).hex()}"
        mtu = f"mtu {place.mtu} " if place.mtu else ""
        outside = (
            f"link add {outer} {mtu}type veth peer name eth0 {mtu}netns {{namespace}}",
            f"link set {outer} master {place.bridge} up",
            f"link set {outer} type bridge_slave hairpin on",  # a task reaches its own port by the node's address
        )
        # An IPv6 address is used at once: the node leases each address to one instance.
        inside = (
            "link set lo up",
            f"address add {place.address}/{place.subnet.partition('/')[2]} dev eth0",
            *(
                [f"address add {place.address6}/{place.subnet6.partition('/')[2]} dev eth0 nodad"]
                if place.subnet6
                else ()
            ),
            "link set eth0 up",
            f"route add default via {place.gateway}",
            *([f"route add default via {place.gateway6}"] if place.subnet6 else ()),
        )
        return {
            "address": place.address,
            "ports": sorted(ports),
            "join": 0,
            "supervisor": 0,
            "ip": _find("ip"),
            "outside": "\n".join(outside),
            "inside": "\n".join(inside),
        }

    async def _apply(self, state: Leases) -> None:
        """Save the state, then make the node match it. The next call repeats the steps of one that was interrupted."""
        complete, self._applied = self._applied, False
        if not state.leases:
            await self._remove()
            self._file.unlink(missing_ok=True)
            self._state = None
            return
        replace(str(self._file), msgspec.json.encode(state, enc_hook=str))
        self._state = state
        if not complete or not _exists(self.bridge):
            await self._add_bridge(state.subnet)
        for bridge in {each.bridge for each in state.leases.values() if each.bridge and _exists(each.bridge)}:
            write_kernel(f"/proc/sys/net/ipv4/conf/{bridge}/route_localnet", "1")
        await run(_find("nft"), "-f", "-", text=rules(self.table, self.bridge, state))
        self._applied = True

    async def _choose_subnet(self) -> IPv4Network:
        """Return a subnet that no route of the node overlaps."""
        text = await run(_find("ip"), "-json", "-4", "route", "show", "table", "all")
        used = [found for each in msgspec.json.decode(text) if (found := _network(each.get("dst", ""))) is not None]
        blocks = list(self._span.subnets(new_prefix=max(SUBNET_BITS, self._span.prefixlen)))
        turned = (blocks[(self._first + step) % len(blocks)] for step in range(len(blocks)))
        subnet = next((each for each in turned if not any(each.overlaps(other) for other in used)), None)
        if subnet is None:
            raise EngineDown(
                f"no free subnet for the network of tasks is left in {self._span}",
                hint="give the agent another range: --engine-option process.network=10.200.0.0/16",
            )
        return subnet

    async def _add_bridge(self, subnet: IPv4Network) -> None:
        commands = [f"address replace {subnet[1]}/{subnet.prefixlen} dev {self.bridge}", f"link set {self.bridge} up"]
        if not _exists(self.bridge):
            commands.insert(0, f"link add {self.bridge} type bridge")
        await run(_find("ip"), "-batch", "-", text="\n".join(commands))
        # Needed to reach tasks from the node's loopback; the rules drop packets from tasks to loopback addresses.
        write_kernel(f"/proc/sys/net/ipv4/conf/{self.bridge}/route_localnet", "1")
        write_kernel("/proc/sys/net/ipv4/ip_forward", "1")

    async def _allow_forwarding(self) -> None:
        """Accept packets of the bridge where another program, such as Docker, drops forwarded packets by default."""
        iptables = _which("iptables")
        if iptables is None or "-P FORWARD DROP" not in await run(iptables, "-w", "-S", "FORWARD"):
            return
        for rule in self._forwarding_rules():
            try:
                await run(iptables, "-w", "-C", "FORWARD", *rule)
            except EngineDown:
                await run(iptables, "-w", "-I", "FORWARD", "1", *rule)

    def _forwarding_rules(self) -> tuple[Sequence[str], ...]:
        return ("-i", self.bridge, "-j", "ACCEPT"), ("-o", self.bridge, "-j", "ACCEPT")

    async def _remove(self) -> None:
        with suppress(EngineDown):  # there is no table
            await run(_find("nft"), "delete", "table", "ip", self.table)
        if iptables := _which("iptables"):
            for rule in self._forwarding_rules():
                with suppress(EngineDown):  # there is no rule
                    await run(iptables, "-w", "-D", "FORWARD", *rule)
        if _exists(self.bridge):
            await run(_find("ip"), "link", "delete", self.bridge)

    def _read(self) -> Leases | None:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=Leases, dec_hook=lambda kind, text: kind(text))
        except (OSError, msgspec.DecodeError):
            return None


def rules(table: str, bridge: str, state: Leases) -> str:
    """Return the nftables rules, as one transaction that replaces the earlier ones. Open connections go on."""
    forwards = ", ".join(
        f"{protocol} . {number} : {lease.address} . {number}"
        for _, lease in sorted(state.leases.items())
        for protocol, number in sorted(lease.ports)
    )
    elements = f"elements = {{ {forwards} }}" if forwards else ""
    others = sorted({each.bridge for each in state.leases.values() if each.bridge})
    guarded = "".join(f'iifname "{each}" ip daddr 127.0.0.0/8 drop\n        ' for each in others)
    returned = "".join(
        f'oifname "{each}" ip saddr 127.0.0.0/8 masquerade\n        '
        f'iifname "{each}" oifname "{each}" ct status dnat masquerade\n        '
        for each in others
    )
    forward = "fib daddr type local dnat ip to meta l4proto . th dport map @ports"
    return f"""\
table ip {table}
delete table ip {table}
table ip {table} {{
    map ports {{
        type inet_proto . inet_service : ipv4_addr . inet_service
        {elements}
    }}
    chain guard {{
        type filter hook prerouting priority raw; policy accept;
        {guarded}iifname "{bridge}" ip daddr 127.0.0.0/8 drop
        iifname "{bridge}" ip saddr != {state.subnet} drop
    }}
    chain arriving {{
        type nat hook prerouting priority dstnat; policy accept;
        {forward}
    }}
    chain local {{
        type nat hook output priority -100; policy accept;
        {forward}
    }}
    chain leaving {{
        type nat hook postrouting priority srcnat; policy accept;
        {returned}oifname "{bridge}" ip saddr 127.0.0.0/8 masquerade
        oifname "{bridge}" ip saddr {state.subnet} ct status dnat masquerade
        oifname != "{bridge}" ip saddr {state.subnet} masquerade
    }}
}}
"""


def resolver_steps(files: tuple[Path, Path] = RESOLVERS) -> Iterator[tuple[str, str, str]]:
    """Yield a step of the view if the node's resolver listens on its loopback, which tasks cannot reach."""
    first, other = files
    if first.exists() and not _outside_servers(first) and _outside_servers(other):
        yield "show", str(other), str(first.resolve())


def _outside_servers(file: Path) -> bool:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return False
    servers = [line.split()[1] for line in lines if line.startswith("nameserver") and len(line.split()) > 1]
    return any(not server.startswith("127.") and server != "::1" for server in servers)


def can_have_networks() -> bool:
    """Return whether the node has the programs and the kernel features, by an attempt."""
    ip, nft = _which("ip"), _which("nft")
    example = rules("mandor_try", "br0", Leases(RANGE, {"x": Lease(RANGE[2], frozenset({("tcp", 80)}))}))
    return ip is not None and nft is not None and network_possible(ip, nft, example)


def _which(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin")


def _find(name: str) -> str:
    found = _which(name)
    if found is None:
        raise EngineDown(f"the network of confined tasks needs the program `{name}`, which this node no longer has")
    return found


async def run(*command: str, text: str = "") -> str:
    """Run a command of the node and return its output; `EngineDown`: it failed."""
    running = asyncio.get_running_loop().run_in_executor(None, _run, command, text)
    try:
        done = await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])  # it must not change the node later
        raise
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineDown(f"`{' '.join(command)}` failed: {error}") from error
    if done.returncode:
        raise EngineDown(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


def _run(command: Sequence[str], text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, input=text, capture_output=True, text=True, errors="replace", timeout=COMMAND_SECONDS_MOST, check=False
    )


def _check_free(protocol: str, number: int) -> None:
    """Raise `PortTaken` if a program of the node uses the port. Supervisors share the ports that they hold."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM if protocol == "udp" else socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            probe.bind(("", number))
        except OSError as error:
            message = f"{protocol} port {number} of this node cannot be used: {error.strerror}"
            raise PortTaken(message, port=number) from None


def _own_place(bridge: str, lease: Lease, subnet: IPv4Network) -> Attachment:
    """Return the place of an instance on the engine's own bridge."""
    return Attachment(
        network="", bridge=bridge, mtu=0, subnet=str(subnet), gateway=str(subnet[1]), address=str(lease.address)
    )


def _free_address(state: Leases) -> IPv4Address:
    used = {lease.address for lease in state.leases.values() if not lease.bridge}
    hosts = iter(state.subnet.hosts())
    next(hosts)  # the bridge
    for address in hosts:
        if address not in used:
            return address
    raise EngineDown(f"the network {state.subnet} of this node has no free address")


def _network(text: str) -> IPv4Network | None:
    try:
        return IPv4Network(text)
    except ValueError:
        return None  # `default`, or a local name


def _exists(bridge: str) -> bool:
    try:
        socket.if_nametoindex(bridge)
    except OSError:
        return False
    return True


@asynccontextmanager
async def _machine_lock() -> AsyncIterator[None]:
    file = os.open(LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await asyncio.sleep(0.02)
        yield
    finally:
        os.close(file)


def read_range(text: str) -> IPv4Network | None:
    """Return the range of the engine option `network`: `auto`, `node` (None: no own networks) or a subnet."""
    if text == "node":
        return None
    if text == "auto":
        return RANGE
    try:
        found = IPv4Network(text)
    except ValueError:
        found = None
    if found is None or found.prefixlen > 28:
        raise Invalid(
            f"the engine option process.network has no meaning with the value {text!r}",
            hint="`auto`, `node` or an IPv4 range of at least 16 addresses, such as 10.94.0.0/16",
        )
    return found
