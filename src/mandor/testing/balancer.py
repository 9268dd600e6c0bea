"""Conformance suite for balancers: subclass `BalancerSuite`, define how drivers are made and how sockets are opened."""

import asyncio
import socket
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from mandor.network.base import Balancer, Endpoint, Frontend, FrontendKey


class BalancerSuite:
    """Tests of every balancer, over TCP and UDP endpoints that answer with their own port."""

    virtual = "127.64.1.1"
    """Virtual address of the service under test."""
    endpoint = "127.0.0.1"
    """Address on which the suite's endpoints listen."""

    def make(self) -> Balancer:
        """Return a new driver object over the same state each time."""
        raise NotImplementedError

    def client_socket(self, kind: socket.SocketKind) -> socket.socket:
        """Return a socket of a client."""
        return socket.socket(socket.AF_INET, kind)

    def endpoint_socket(self, kind: socket.SocketKind) -> socket.socket:
        """Return a socket of an endpoint."""
        return socket.socket(socket.AF_INET, kind)

    @pytest.fixture
    async def balancer(self) -> AsyncIterator[Balancer]:
        """The driver under test; the data path is removed after the test."""
        driver = self.make()
        await driver.probe()
        yield driver
        await driver.remove()

    @pytest.fixture
    async def ports(self) -> AsyncIterator[list[int]]:
        """Ports of three TCP endpoints and of UDP endpoints with the same numbers."""
        loop, servers, udp = asyncio.get_running_loop(), [], []
        for _ in range(3):
            line = self.endpoint_socket(socket.SOCK_STREAM)
            line.bind((self.endpoint, 0))
            port = line.getsockname()[1]
            servers.append(await asyncio.start_server(_echo(port), sock=line))
            line = self.endpoint_socket(socket.SOCK_DGRAM)
            line.bind((self.endpoint, port))
            line.setblocking(False)
            loop.add_reader(line, _answer_datagram, line, port)
            udp.append((line, port))
        yield [port for _, port in udp]
        for line, _ in udp:
            loop.remove_reader(line)
            line.close()
        for each in servers:
            each.close()

    def frontend(self, ports: dict[int, int], **parts: object) -> Frontend:
        """Return a frontend with weights by port."""
        endpoints = tuple(Endpoint(self.endpoint, port, weight=weight) for port, weight in sorted(ports.items()))
        values = {"protocol": "tcp", "addresses": (self.virtual,), "port": 8080} | parts
        return Frontend(key=FrontendKey("default", "shop", "http"), endpoints=endpoints, **values)  # type: ignore[arg-type]

    async def connect(self) -> tuple[socket.socket, int]:
        """Open a connection to the service and return it with the port of its endpoint."""
        line = self.client_socket(socket.SOCK_STREAM)
        line.setblocking(False)
        try:
            return line, await self._ask(line)
        except BaseException:
            line.close()
            raise

    async def _ask(self, line: socket.socket) -> int:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            try:
                line.getpeername()
            except OSError:
                await loop.sock_connect(line, (self.virtual, 8080))
            await loop.sock_sendall(line, b"?")
            answer = await loop.sock_recv(line, 100)
        if not answer:
            raise ConnectionResetError("closed without an answer")
        return int(answer)

    async def spread(self, count: int) -> Counter[int]:
        """Return the number of connections by endpoint."""
        found: Counter[int] = Counter()
        for _ in range(count):
            line, port = await self.connect()
            line.close()
            found[port] += 1
        return found

    @pytest.mark.req("S2-29")
    async def test_connections_are_spread_by_weight(self, balancer: Balancer, ports: list[int]) -> None:
        await balancer.apply([self.frontend(dict(zip(ports, (10, 30, 60), strict=True)))])
        found = await self.spread(100)
        assert 3 <= found[ports[0]] <= 25, found
        assert 15 <= found[ports[1]] <= 45, found
        assert found[ports[2]] > found[ports[1]] > found[ports[0]], found

    async def test_a_drained_endpoint_keeps_its_connections_and_gets_no_new_ones(
        self, balancer: Balancer, ports: list[int]
    ) -> None:
        first, second, _ = ports
        await balancer.apply([self.frontend({first: 100})])
        line, port = await self.connect()
        assert port == first
        for left in ({first: 0, second: 100}, {second: 100}):
            await balancer.apply([self.frontend(left)])
            assert await self._ask(line) == first
            assert await self.spread(6) == {second: 6}
        line.close()

    async def test_a_service_without_endpoints_refuses_connections(self, balancer: Balancer, ports: list[int]) -> None:
        for endpoints in ({}, {ports[0]: 100}, {}):
            await balancer.apply([self.frontend(endpoints)])
            if endpoints:
                assert await self.spread(2) == {ports[0]: 2}
                continue
            with pytest.raises(ConnectionError):
                await self.connect()

    async def test_a_client_with_affinity_keeps_its_endpoint(self, balancer: Balancer, ports: list[int]) -> None:
        await balancer.apply([self.frontend(dict.fromkeys(ports, 100), affinity_seconds=600.0)])
        assert len(await self.spread(9)) == 1

    async def test_hash_sends_a_client_to_one_endpoint(self, balancer: Balancer, ports: list[int]) -> None:
        await balancer.apply([self.frontend(dict.fromkeys(ports, 100), balance="hash")])
        assert len(await self.spread(9)) == 1

    async def test_udp_clients_leave_an_endpoint_that_is_removed(self, balancer: Balancer, ports: list[int]) -> None:
        line = self.client_socket(socket.SOCK_DGRAM)
        line.setblocking(False)
        for port in ports[:2]:
            await balancer.apply([self.frontend({port: 100}, protocol="udp")])
            async with asyncio.timeout(30):
                line.connect((self.virtual, 8080))
                line.send(b"?")
                assert int(await asyncio.get_running_loop().sock_recv(line, 100)) == port
        line.close()

    async def test_a_new_driver_object_keeps_connections(self, balancer: Balancer, ports: list[int]) -> None:
        state = [self.frontend({ports[0]: 100})]
        await balancer.apply(state)
        line, _ = await self.connect()
        await balancer.close()
        again = self.make()
        await again.apply(state)
        assert await self._ask(line) == ports[0]
        await again.apply([self.frontend({ports[1]: 100})])
        assert await self.spread(2) == {ports[1]: 2}
        assert await self._ask(line) == ports[0]
        line.close()
        await again.close()

    async def test_counters_count_connections_and_bytes(self, balancer: Balancer, ports: list[int]) -> None:
        await balancer.apply([self.frontend({ports[0]: 100})])
        await self.spread(3)
        found = (await balancer.traffic())[FrontendKey("default", "shop", "http")]
        assert found.connections == 3
        assert found.sent_bytes > 0
        assert found.received_bytes > 0


def _echo(port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.read(100):
                writer.write(str(port).encode())
        except ConnectionError:
            pass
        finally:
            writer.close()

    return serve


def _answer_datagram(line: socket.socket, port: int) -> None:
    try:
        _, client = line.recvfrom(100)
        line.sendto(str(port).encode(), client)
    except OSError:
        return
