"""Keeps the networks of this node in effect, and hands out the addresses of its instances."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import msgspec

from mandor.agent.feed import Source
from mandor.agent.journal import Blocking, replace_file
from mandor.agent.order import Order
from mandor.engines.base import Attachment
from mandor.errors import MandorError, TooMany, Unavailable
from mandor.lib.backoff import Backoff
from mandor.lib.clock import Clock, wait_event
from mandor.model.meta import Object
from mandor.model.network import OVERLAY, Network, network_extra
from mandor.model.node import Capabilities
from mandor.network.base import Bridge, NetworkPart, Overlay, Peer
from mandor.network.leases import LeaseTable, address_at, room_of, with_lease, with_seen
from mandor.store.base import Change

log = logging.getLogger(__name__)

AGAIN_SECONDS = 30.0
"""Seconds between checks of what the node has, should another program have changed it."""
PAUSE_SECONDS = 0.2
"""Seconds within which changes are combined into one update."""
BACKOFF = Backoff(0.5, 30, jitter=0.2)


class SavedNetworks(msgspec.Struct, frozen=True):
    """The file on disk: the networks as last known, and the leases by network."""

    parts: dict[str, NetworkPart] = {}
    leases: dict[str, LeaseTable] = {}


@dataclass(frozen=True, slots=True)
class LocalUnits:
    """Reads the instances of the node: which ones are live, and their addresses."""

    live: Callable[[], set[str]]
    """Returns the uids of the instances that have an order or a unit."""
    addresses: Callable[[], Iterable[tuple[str, str]]]
    """Returns uids and addresses of running instances."""


class NetworkKeeper:
    """Applies the networks in which this node has a part, after each change and again every half a minute.

    The last networks and all leases are on disk, so that instances can start without a control plane, and no address is
    given to a second instance after a restart of the agent.
    """

    def __init__(
        self,
        node: str,
        file: Path,
        overlay: Overlay,
        clock: Clock,
        blocking: Blocking,
        units: LocalUnits,
        changed: Callable[[], None],
    ) -> None:
        """`changed`: called when other networks are in effect."""
        self._node, self._file, self._overlay, self._clock = node, file, overlay, clock
        self._blocking, self._units, self._changed = blocking, units, changed
        self._saved = self._read()
        self._networks: dict[str, Network] | None = None
        """Networks as the control plane lists them; None: not listed yet."""
        self._bridges: Mapping[str, Bridge] = {}
        self._usable = False
        self._news = asyncio.Event()
        self._lock = asyncio.Lock()

    @property
    def names(self) -> frozenset[str]:
        """Networks in effect on this node."""
        return frozenset(self._bridges)

    def with_networks(self, engines: Mapping[str, Capabilities]) -> dict[str, Capabilities]:
        """Return the engines with the networks that their units can be attached to."""
        extras = frozenset({OVERLAY, *(network_extra(each) for each in self._bridges)}) if self._usable else frozenset()
        return {name: with_extras(each, extras) for name, each in engines.items()}

    async def begin(self) -> None:
        """Check whether this machine can have networks, and apply those that were known last."""
        try:
            await self._overlay.probe()
            self._usable = True
            await self._update()
        except (MandorError, OSError) as error:
            log.warning("this node has no networks: %s", error)

    async def run(self) -> None:
        """Keep the networks in effect until cancelled; they stay in effect afterwards."""
        failures = 0
        while self._usable:
            self._news.clear()
            try:
                await self._update()
                failures = 0
            except (MandorError, OSError) as error:
                failures += 1
                log.warning("cannot update the networks of this node: %s", error)
                await self._clock.sleep(BACKOFF.pause(failures))
                continue
            await wait_event(self._clock, AGAIN_SECONDS, self._news)
            await self._clock.sleep(PAUSE_SECONDS)

    async def _update(self) -> None:
        if self._networks is not None:
            async with self._lock:
                wanted = self._wanted()
                if wanted != self._saved:
                    await self._save(wanted)
        before = self._bridges
        self._bridges = await self._overlay.apply(list(self._saved.parts.values()))
        if self._bridges != before:
            self._changed()

    def _wanted(self) -> SavedNetworks:
        """Return the networks to keep in effect: those with a part of this node, and those that instances still use."""
        if self._networks is None:
            return self._saved
        live, saved = self._units.live(), self._saved
        used = {name for name, each in saved.leases.items() if any(one.uid in live for one in each.leases.values())}
        listed = self._networks.values()
        parts = {name: each for name, each in saved.parts.items() if name in used}
        parts |= {each.meta.name: part for each in listed if (part := part_of(each, self._node)) is not None}
        return SavedNetworks(parts, {name: each for name, each in saved.leases.items() if name in parts})

    def leased(self, order: Order) -> Attachment | None:
        """Return the attachment of an instance that has an address; None: it has none."""
        template = order.template
        name = template.overlay if template is not None else ""
        table, part, bridge = self._saved.leases.get(name), self._saved.parts.get(name), self._bridges.get(name)
        place = table.position(order.uid) if table is not None else None
        if part is None or bridge is None or table is None or place is None or table.slice4 != part.slice4:
            return None
        return Attachment(
            network=name,
            bridge=bridge.interface,
            mtu=bridge.mtu,
            subnet=part.slice4,
            gateway=address_at(part.slice4, 1),
            address=address_at(part.slice4, place),
            subnet6=part.slice6,
            gateway6=address_at(part.slice6, 1) if part.slice6 else "",
            address6=address_at(part.slice6, place) if part.slice6 else "",
        )

    async def lease(self, order: Order) -> Attachment:
        """Give the instance an address and return its attachment.

        Raise `Unavailable` while its network is not in effect here, `TooMany` if all addresses are in use.
        """
        assert order.template is not None, "an order is launched after its release was read"
        name = order.template.overlay
        async with self._lock:
            part = self._saved.parts.get(name)
            if part is None or name not in self._bridges:
                why = self._overlay.problems.get(name, "the node has no part of its range yet")
                raise Unavailable(f"the network {name} is not in effect on the node {self._node}: {why}")
            table = self._saved.leases.get(name)
            if table is None or table.slice4 != part.slice4:
                table = LeaseTable(part.slice4)
            table = with_seen(table, self._units.addresses())
            meta = order.instance.meta
            found = with_lease(table, order.uid, f"{meta.namespace}/{meta.name}", self._units.live())
            if found is None:
                room = room_of(part.slice4)
                raise TooMany(
                    f"all {room} addresses of the node {self._node} in the network {name} ({part.slice4}) are in use"
                )
            if found is not self._saved.leases.get(name):
                await self._save(SavedNetworks(self._saved.parts, {**self._saved.leases, name: found}))
        attachment = self.leased(order)
        if attachment is None:
            raise Unavailable(f"the network {name} of the node {self._node} has just changed")
        return attachment

    async def _save(self, saved: SavedNetworks) -> None:
        await self._blocking(_write, self._file, msgspec.json.encode(saved))
        self._saved = saved

    def _read(self) -> SavedNetworks:
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=SavedNetworks)
        except FileNotFoundError:
            return SavedNetworks()
        except (OSError, msgspec.DecodeError) as error:
            log.error("cannot read %s, continuing with the addresses of running instances: %s", self._file, error)
            return SavedNetworks()

    # Reader of the feed.

    def listed(self, items: Sequence[Object], source: Source) -> None:
        self._networks = {each.meta.name: each for each in items if isinstance(each, Network)}
        self._news.set()

    def changed(self, change: Change, source: Source) -> None:
        networks = self._networks = self._networks or {}
        networks.pop(change.value.meta.name, None)
        if isinstance(change.after, Network):
            networks[change.after.meta.name] = change.after
        self._news.set()

    def lost(self, error: MandorError, failures: int) -> None:
        """Keep the networks that were known last."""
        log.debug("cannot watch the networks: %s", error)


def _write(file: Path, data: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    replace_file(file, data)


class Attached(NamedTuple):
    """The attachment of an instance, or why it has none."""

    attachment: Attachment | None = None
    refusal: str = ""
    """Why the instance cannot run on this node."""
    missing: str = ""
    """Why the instance cannot start yet."""


async def attach(keeper: NetworkKeeper | None, order: Order, *, leasing: bool) -> Attached:
    """Return the attachment of an instance to its network. `leasing`: give it an address if it has none."""
    if order.template is None or not order.template.overlay:
        return Attached()
    if keeper is None:
        return Attached(missing=f"this node has no networks, and the instance needs {order.template.overlay}")
    found = keeper.leased(order)
    if found is not None or not leasing:
        return Attached(found)
    try:
        return Attached(await keeper.lease(order))
    except TooMany as error:
        return Attached(refusal=str(error))
    except (MandorError, OSError) as error:
        return Attached(missing=str(error))


def without_networks(engines: Mapping[str, Capabilities]) -> dict[str, Capabilities]:
    """Return the engines of a node that has no networks."""
    return {name: with_extras(each, frozenset()) for name, each in engines.items()}


def with_extras(engine: Capabilities, extras: frozenset[str]) -> Capabilities:
    """Return an engine with the networks of its node, if its units can be attached to networks."""
    if OVERLAY not in engine.extras:
        return engine
    return msgspec.structs.replace(engine, extras=engine.extras - {OVERLAY} | extras)


def part_of(network: Network, node: str) -> NetworkPart | None:
    """Return the part of a network on a node; None: the node has none, or no address that packets can be sent to."""
    own, spec = network.live_slices.get(node), network.spec
    if own is None or not network.status.number or not _is_address(own.address):
        return None
    return NetworkPart(
        name=network.meta.name,
        number=network.status.number,
        backend=spec.backend,
        index=own.index,
        address=own.address,
        range4=str(spec.range4),
        slice4=str(spec.slice4(own.index)),
        range6=str(spec.range6 or ""),
        slice6=str(spec.slice6(own.index) or ""),
        peers=tuple(
            Peer(each.index, each.address, str(spec.slice4(each.index)), str(spec.slice6(each.index) or ""))
            for name, each in sorted(network.live_slices.items())
            if name != node and _is_address(each.address)
        ),
    )


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
