"""Answers sessions that ask for the state of a service in the data path of this node."""

from collections.abc import Callable

import msgspec

from mandor.agent.link import Duplex
from mandor.agent.stream import END, wait_for_hang_up
from mandor.agent.traffic import TrafficKeeper
from mandor.model.meta import Key
from mandor.model.record import SessionSpec
from mandor.model.service import Service
from mandor.network.base import Traffic
from mandor.network.traffic_report import PortTraffic, ReportedEndpoint, TrafficReport


class TrafficReporter:
    """Serves sessions about services; `keeper` returns None on a node that balances none."""

    def __init__(self, node: str, keeper: Callable[[], TrafficKeeper | None]) -> None:
        self._node, self._keeper = node, keeper

    async def serve(self, spec: SessionSpec, line: Duplex) -> None:
        """Send the report about one service."""
        namespace, _, name = spec.service.partition("/")
        found = await self.report(Key(Service.kind, namespace, name))
        await line.send(bytes([END]) + msgspec.json.encode(found))
        await wait_for_hang_up(line)

    async def report(self, key: Key) -> TrafficReport:
        """Return the report about one service."""
        keeper = self._keeper()
        if keeper is None:
            return TrafficReport(self._node, "the node has no data path for services")
        chosen = [each for each in keeper.frontends if (each.key.namespace, each.key.service) == key[1:]]
        if not chosen:
            return TrafficReport(self._node, "the data path of the node does not contain the service")
        counted = await keeper.traffic()
        ports = []
        for each in chosen:
            count = counted.get(each.key, Traffic())
            endpoints = tuple(ReportedEndpoint(*endpoint) for endpoint in each.endpoints)
            port = PortTraffic(each.key.port, each.port, each.protocol, each.addresses, endpoints, *count)
            ports.append(port)
        return TrafficReport(self._node, "", tuple(ports), keeper.checks.excluded().get(key, {}))
