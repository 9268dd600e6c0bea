"""Conformance suite for name servers: subclass `NamesSuite` and define how drivers are made. Needs dnspython."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress

import dns.asyncquery
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import pytest

from mandor.network.base import NameRecord, Names, NameTable, ServiceTarget

PATIENCE_SECONDS = 30.0
SHOP = NameRecord(("10.93.0.64", "fd93::40"), (ServiceTarget("shop.default", 80),))
RECORDS: Mapping[str, NameRecord] = {
    "shop.default": SHOP,
    "_http._tcp.shop.default": NameRecord(services=SHOP.services),
    "web-0.default": NameRecord(("172.17.0.2",)),
    "web-0.shop.default": NameRecord(("172.17.0.2",)),
    "main.web.default": NameRecord(("172.17.0.2", "172.17.0.3")),
    "db.other": NameRecord(("10.93.0.65",)),
    "shop.other": NameRecord(("10.93.0.66",)),
    "legacy.default": NameRecord(alias="known.test"),
    "near.default": NameRecord(alias="shop.default.svc.cluster.local"),
    "ring.default": NameRecord(alias="round.default.mandor"),
    "round.default": NameRecord(alias="ring.default.mandor"),
    "crowd.default": NameRecord(tuple(f"10.1.{number // 250}.{number % 250}" for number in range(400))),
}
TABLE = NameTable(RECORDS, reverse={"10.93.0.64": "shop.default", "fd93::40": "shop.default"})


class FakeServer(asyncio.DatagramProtocol):
    """Another name server, over UDP and TCP: it knows `known.test`, and answers `long.test` in full over TCP only."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.silent = False
        self.port = 0
        self._transport: asyncio.DatagramTransport | None = None
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Bind a port of the loopback interface."""
        self._server = await asyncio.start_server(self._converse, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        place = ("127.0.0.1", self.port)
        self._transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: self, local_addr=place)

    def close(self) -> None:
        """Close the sockets."""
        if self._server is not None and self._transport is not None:
            self._server.close()
            self._transport.close()

    def datagram_received(self, data: bytes, place: tuple[str, int]) -> None:
        """Answer over UDP."""
        if not self.silent and self._transport is not None:
            self._transport.sendto(self._answer(data, udp=True), place)

    async def _converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(EOFError, OSError):
            (length,) = struct.unpack("!H", await reader.readexactly(2))
            answer = self._answer(await reader.readexactly(length), udp=False)
            writer.write(struct.pack("!H", len(answer)) + answer)
            await writer.drain()
        writer.close()

    def _answer(self, data: bytes, *, udp: bool) -> bytes:
        query = dns.message.from_wire(data)
        answer = dns.message.make_response(query)
        name = query.question[0].name.to_text()
        self.asked.append(name)
        kind = query.question[0].rdtype
        if name == "known.test." and kind == dns.rdatatype.A:
            answer.answer.append(dns.rrset.from_text(name, 300, "IN", "CNAME", "real.test."))
            answer.answer.append(dns.rrset.from_text("real.test.", 300, "IN", "A", "192.0.2.80"))
        elif name == "long.test." and udp:
            answer.flags |= dns.flags.TC
        elif name == "long.test.":
            addresses = [f"192.0.2.{number}" for number in range(100)]
            answer.answer.append(dns.rrset.from_text(name, 300, "IN", "A", *addresses))
        elif name != "known.test.":
            answer.set_rcode(dns.rcode.NXDOMAIN)
        return answer.to_wire()


class NamesSuite:
    """Tests of every name server. The clients of the tests are on the loopback interface."""

    def make(self, upstream: tuple[str, int]) -> Names:
        """Return a new driver object over the same state each time. `upstream`: the server for other names."""
        raise NotImplementedError

    def port(self, names: Names) -> int:
        """Return the port of an open server."""
        return 53

    @pytest.fixture
    async def other(self) -> AsyncIterator[FakeServer]:
        """The server for other names."""
        server = FakeServer()
        await server.open()
        yield server
        server.close()

    @pytest.fixture
    async def names(self, other: FakeServer) -> AsyncIterator[Names]:
        """The driver under test with `TABLE`."""
        driver = self.make(("127.0.0.1", other.port))
        self.address = await driver.open()
        self.number = self.port(driver)
        await driver.apply(TABLE)
        yield driver
        await driver.remove()

    async def ask(self, name: str, kind: str = "A", *, tcp: bool = False, payload: int = -1) -> dns.message.Message:
        """Return the answer to a query. `payload`: the size that EDNS announces; -1: no EDNS."""
        edns = {"use_edns": 0, "payload": payload} if payload >= 0 else {}
        query = dns.message.make_query(name, kind, **edns)  # type: ignore[arg-type]
        call = dns.asyncquery.tcp if tcp else dns.asyncquery.udp
        return await call(query, self.address, timeout=PATIENCE_SECONDS, port=self.number)

    async def found(self, name: str, kind: str = "A", *, tcp: bool = False) -> list[str]:
        """Return the records of an answer as text, without their owners."""
        answer = await self.ask(name, kind, tcp=tcp)
        assert answer.rcode() == dns.rcode.NOERROR, answer
        return sorted(item.to_text() for each in answer.answer for item in each)

    @pytest.mark.req("S2-30")
    async def test_each_form_of_a_name_leads_to_the_service(self, names: Names) -> None:
        forms = ("shop", "SHOP.Default", "shop.default.mandor", "shop.default.svc.cluster.local", "shop.default.svc")
        for name in (*forms, "shop.service.consul"):
            for tcp in (False, True):
                assert await self.found(name, tcp=tcp) == ["10.93.0.64"], name
                assert await self.found(name, "AAAA", tcp=tcp) == ["fd93::40"], name
        assert await self.found("web-0.shop") == await self.found("web-0") == ["172.17.0.2"]
        assert await self.found("main.web") == ["172.17.0.2", "172.17.0.3"]
        assert await self.found("db.other") == ["10.93.0.65"]

    @pytest.mark.req("S2-30")
    async def test_ports_and_reverse_names_are_found(self, names: Names) -> None:
        answer = await self.ask("_http._tcp.shop", "SRV")
        assert [each.to_text() for each in answer.answer[0]] == ["0 1 80 shop.default.mandor."]
        assert {item.to_text() for each in answer.additional for item in each} == {"10.93.0.64", "fd93::40"}
        assert await self.found("64.0.93.10.in-addr.arpa", "PTR") == ["shop.default.mandor."]
        address = "0.4.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.3.9.d.f.ip6.arpa"
        assert await self.found(address, "PTR") == ["shop.default.mandor."]

    async def test_the_address_of_a_client_chooses_its_namespace(self, names: Names) -> None:
        clients = {self.client: "other"}
        await names.apply(NameTable(RECORDS, clients))
        assert await self.found("shop") == await self.found("shop.service.consul") == ["10.93.0.66"]
        assert await self.found("shop.default") == ["10.93.0.64"]
        assert await self.found("db") == ["10.93.0.65"]

    client = "127.0.0.1"
    """Source address of the queries of this suite."""

    async def test_a_missing_name_and_a_missing_type_have_different_answers(self, names: Names) -> None:
        for name in ("nope.default.mandor", "nope.svc.cluster.local", "nope.service.consul", "x.y.z.mandor"):
            answer = await self.ask(name)
            assert answer.rcode() == dns.rcode.NXDOMAIN, name
            assert [each.rdtype for each in answer.authority] == [dns.rdatatype.SOA], name
        for name, kind in (
            ("web-0", "AAAA"),
            ("shop.default.mandor", "TXT"),
            ("default.mandor", "A"),
            ("mandor", "A"),
            ("_tcp.shop.default.mandor", "SRV"),
        ):
            answer = await self.ask(name, kind)
            assert (answer.rcode(), answer.answer) == (dns.rcode.NOERROR, []), name
            assert [each.rdtype for each in answer.authority] == [dns.rdatatype.SOA], name

    async def test_other_names_are_asked_elsewhere(self, names: Names, other: FakeServer) -> None:
        assert await self.found("known.test") == ["192.0.2.80", "real.test."]
        assert (await self.ask("missing.test")).rcode() == dns.rcode.NXDOMAIN
        assert (await self.ask("nope")).rcode() == dns.rcode.NXDOMAIN
        assert (await self.ask("long.test")).flags & dns.flags.TC
        assert len(await self.found("long.test", tcp=True)) == 100
        asked = len(other.asked)
        await self.ask("shop.default.mandor")
        await self.ask("nope.default.mandor")
        assert len(other.asked) == asked, "names of the cluster are not sent to other servers"

    async def test_a_name_outside_of_the_cluster_is_followed(self, names: Names) -> None:
        assert await self.found("legacy") == ["192.0.2.80", "known.test.", "real.test."]
        assert await self.found("legacy", "CNAME") == ["known.test."]
        assert await self.found("near") == ["10.93.0.64", "shop.default.svc.cluster.local."]
        assert (await self.ask("ring")).rcode() == dns.rcode.SERVFAIL

    async def test_a_long_answer_is_cut_over_udp_and_complete_over_tcp(self, names: Names) -> None:
        for payload, most in ((-1, 512), (1232, 1232), (65_535, 1232)):
            answer = await self.ask("crowd", payload=payload)
            assert answer.flags & dns.flags.TC
            assert 0 < sum(map(len, answer.answer)) < 400
            assert len(answer.to_wire()) <= most
        assert len(await self.found("crowd", tcp=True)) == 400

    async def test_the_order_of_addresses_changes(self, names: Names) -> None:
        firsts = set()
        for _ in range(64):
            answer = await self.ask("main.web")
            firsts.add(next(item.to_text() for each in answer.answer for item in each))
        assert firsts == {"172.17.0.2", "172.17.0.3"}

    async def test_a_new_table_replaces_the_old_one(self, names: Names) -> None:
        assert await self.found("shop") == ["10.93.0.64"]
        await names.apply(NameTable({"fresh.default": NameRecord(("10.9.9.9",))}))
        assert await self.found("fresh") == ["10.9.9.9"]
        assert (await self.ask("shop.default.mandor")).rcode() == dns.rcode.NXDOMAIN

    async def test_the_server_answers_after_its_driver_has_gone(self, names: Names, other: FakeServer) -> None:
        await names.close()
        assert await self.found("shop") == ["10.93.0.64"]
        again = self.make(("127.0.0.1", other.port))
        assert await again.open() == self.address
        assert await self.found("shop") == ["10.93.0.64"], "a new driver object keeps the table"
        await again.close()

    async def test_broken_messages_get_an_error_or_no_answer(self, names: Names) -> None:
        loop = asyncio.get_running_loop()
        query = dns.message.make_query("shop", "A").to_wire()
        pointer = query[:12] + b"\xc0\x0c\0\1\0\1"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            line.setblocking(False)
            line.connect((self.address, self.number))
            for message in (b"", b"\0" * 11, query[:12], query[:-1], pointer, query[:4] + b"\0\5" + query[6:]):
                line.send(message)
            line.send(query[:2] + b"\x80\0" + query[4:])  # an answer: it is not answered
            line.send(query)
            codes: list[int] = []
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not codes or codes[-1] != dns.rcode.NOERROR:
                    codes.append((await loop.sock_recv(line, 4096))[3] & 0xF)
        assert codes == [dns.rcode.FORMERR] * 4 + [dns.rcode.NOERROR]

    async def test_half_a_request_does_not_hold_up_others(self, names: Names) -> None:
        held = []
        try:
            for part in (b"", b"\0", b"\0\x40", b"\0\x40half"):
                _, writer = await asyncio.open_connection(self.address, self.number)
                writer.write(part)
                held.append(writer)
            assert await self.found("shop", tcp=True) == ["10.93.0.64"]
        finally:
            for each in held:
                each.close()

    async def test_a_flood_of_missing_names_leaves_others_answered(self, names: Names, other: FakeServer) -> None:
        other.silent = True
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as line:
            line.setblocking(False)
            line.connect((self.address, self.number))
            for number in range(3_000):
                with suppress(BlockingIOError):
                    line.send(dns.message.make_query(f"missing-{number}.test", "A").to_wire())
                if number % 100 == 0:
                    await asyncio.sleep(0)
            assert await self.found("shop", tcp=True) == ["10.93.0.64"]
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                with suppress(dns.exception.Timeout):
                    query = dns.message.make_query("shop", "A")
                    answer = await dns.asyncquery.udp(query, self.address, timeout=1, port=self.number)
                    assert answer.answer
                    return
