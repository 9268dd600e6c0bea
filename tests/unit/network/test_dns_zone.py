"""The name server answers from its table, for any query, and reads any bytes."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import suppress

import dns.flags
import dns.message
import dns.rcode
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.network.base import NameRecord, NameTable, ServiceTarget
from mandor.network.dns.message import (
    FORMAT_ERROR,
    NAME_BYTES_MOST,
    NOT_IMPLEMENTED,
    REFUSED,
    Malformed,
    Query,
    is_answer_to,
    parse_query,
    read_addresses,
    read_name,
)
from mandor.network.dns.responder import PACKED_MOST, Responder
from mandor.network.dns.upstream import Upstream, read_servers
from mandor.network.dns.zone import ALIASES_MOST

CLIENT = "172.17.0.2"


def responder(records: Mapping[str, NameRecord], **clients: str) -> Responder:
    made = Responder(Upstream())
    made.use(NameTable(records, {address.replace("_", "."): name for address, name in clients.items()}), "192.0.2.53")
    return made


def ask(made: Responder, name: str, kind: str = "A", client: str = CLIENT, *, tcp: bool = False) -> dns.message.Message:
    data = dns.message.make_query(name, kind).to_wire()
    found = made.answer(data, client, tcp=tcp)
    assert isinstance(found, bytes), f"{name} is relayed"
    return dns.message.from_wire(found)


labels = st.text("abz09-_", min_size=1, max_size=10)
names = st.lists(labels, min_size=1, max_size=3).map(".".join)
addresses = st.integers(1, 2**32 - 1).map(lambda each: ".".join(str(byte) for byte in struct.pack("!I", each)))
records = st.lists(addresses, max_size=40, unique=True).map(lambda found: NameRecord(tuple(found)))


@given(st.dictionaries(names, records, max_size=10), st.sampled_from(["default", "team"]), st.data())
def test_answers_are_exactly_the_addresses_of_the_table(
    table: dict[str, NameRecord], namespace: str, data: st.DataObject
) -> None:
    full = {f"{name}.{namespace}": record for name, record in table.items()}
    made = responder(full, **{CLIENT.replace(".", "_"): namespace})
    for name in [*full, data.draw(names)]:
        answer = ask(made, f"{name}.mandor", tcp=True)
        found = {item.to_text() for each in answer.answer for item in each}
        assert found == set(full.get(name, NameRecord()).addresses)
        known = name in full or any(other.endswith(f".{name}") for other in full)
        assert (answer.rcode() == dns.rcode.NXDOMAIN) != known
        if name in full:
            short = name.removesuffix(f".{namespace}")
            assert {item.to_text() for each in ask(made, short, tcp=True).answer for item in each} == found
            small = ask(made, f"{name}.mandor")
            cut = {item.to_text() for each in small.answer for item in each}
            assert cut <= found
            assert (cut == found) != bool(small.flags & dns.flags.TC)


@given(st.binary(max_size=600) | st.binary(max_size=100).map(lambda body: b"\0\0\1\0\0\1\0\0\0\0\0\1" + body))
def test_no_bytes_make_the_server_fail(data: bytes) -> None:
    made = responder({"shop.default": NameRecord(("10.0.0.1",))})
    for tcp in (False, True):
        found = made.answer(data, CLIENT, tcp=tcp)
        if isinstance(found, bytes):
            assert len(found) <= (65_535 if tcp else 1_232)
            assert found[:2] == data[:2]
            assert found[2] & 0x80
        elif found is None:
            assert len(data) < 12 or data[2] & 0x80
        else:
            assert isinstance(found, Query)
    is_answer_to(data, data)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_names_in_answers_of_others_end_whatever_their_pointers_are(body: bytes, place: int) -> None:
    data = b"\0\0\x81\x80\0\1\0\1\0\0\0\0" + body
    with suppress(Malformed):
        assert len(read_name(data, place)[0]) <= NAME_BYTES_MOST
    with suppress(Malformed):
        assert all(each.kind in {1, 5, 28} for each in read_addresses(data))


def test_loops_of_pointers_are_refused() -> None:
    header = b"\0\0\x81\x80\0\1\0\1\0\0\0\0"
    for body in (b"\xc0\x0c", b"\xc0\x0e\xc0\x0c", b"\1a\xc0\x0c", b"\xff\xff"):
        with pytest.raises(Malformed):
            read_name(header + body, 12)
    long = b"".join(b"\x3f" + b"a" * 63 for _ in range(4)) + b"\0"
    with pytest.raises(Malformed, match=str(NAME_BYTES_MOST)):
        read_name(header + long, 12)
    assert read_name(header + b"\1A\0\1B\xc0\x0c", 15)[0] == b"\1b\1a\0"


def test_other_kinds_of_messages_get_an_error_code() -> None:
    query = dns.message.make_query("shop", "A").to_wire()
    assert parse_query(query[:2] + b"\x28\0" + query[4:]) == NOT_IMPLEMENTED
    assert parse_query(query[:-2] + b"\0\3") == REFUSED, "a class other than IN"
    assert parse_query(query[:4] + b"\0\2" + query[6:]) == FORMAT_ERROR
    assert parse_query(query[:10] + b"\xff\xff" + query[12:]) == FORMAT_ERROR
    assert parse_query(query[:2] + b"\x80\0" + query[4:]) is None, "an answer"
    edns = dns.message.make_query("shop", "A", use_edns=0).to_wire()
    found = responder({"shop.default": NameRecord(("10.0.0.1",))}).answer(edns[:-5] + b"\1\0\0" + edns[-2:], CLIENT)
    assert isinstance(found, bytes)
    assert dns.message.from_wire(found).rcode() == dns.rcode.BADVERS


def test_a_client_on_a_public_address_is_refused_unless_it_is_an_instance() -> None:
    table = {"shop.default": NameRecord(("10.0.0.1",))}
    outside = "8.8.8.8"
    assert ask(responder(table), "shop.default.mandor", client=outside).rcode() == dns.rcode.REFUSED
    assert ask(responder(table, **{"8_8_8_8": "default"}), "shop", client=outside).answer


def test_packed_answers_are_the_same_and_follow_a_new_table() -> None:
    made = responder({"shop.default": NameRecord(("10.0.0.1", "10.0.0.2"))})
    data = dns.message.make_query("shop", "A").to_wire()
    assert made.packed(data, CLIENT) is None
    answer = made.answer(data, CLIENT)
    assert made.packed(data, CLIENT) == answer
    assert made.packed(data, "172.17.0.3") is None, "the namespace of the client is not known yet"
    made.use(NameTable({}), "192.0.2.53")
    assert made.packed(data, CLIENT) is None


def test_packed_answers_of_a_flood_of_names_are_bounded() -> None:
    made = responder({})
    for number in range(PACKED_MOST + 100):
        made.answer(dns.message.make_query(f"n{number}.mandor", "A").to_wire(), CLIENT)
    assert len(made._packed) <= PACKED_MOST


def test_a_chain_of_aliases_is_bounded() -> None:
    chain = {f"a{number}.default": NameRecord(alias=f"a{number + 1}.default.mandor") for number in range(20)}
    made = responder(chain | {f"a{ALIASES_MOST - 1}.default": NameRecord(("10.0.0.1",))})
    assert ask(made, "a0").rcode() == dns.rcode.NOERROR
    assert ask(responder(chain), "a0").rcode() == dns.rcode.SERVFAIL


def test_a_target_whose_name_is_too_long_is_a_failure_and_nothing_else() -> None:
    made = responder({"shop.default": NameRecord(services=(ServiceTarget("x" * 70, 80),))})
    assert ask(made, "shop", "SRV").rcode() == dns.rcode.SERVFAIL


def test_the_servers_of_a_resolver_configuration_are_read() -> None:
    text = "# nameserver 1.1.1.1\nnameserver 10.0.0.53\nsearch a b\nnameserver fd00::53 # comment\nnameserver\n"
    assert read_servers(text) == (("10.0.0.53", 53), ("fd00::53", 53))
