"""DNS messages (RFC 1035, EDNS0): parses queries, packs answers, and reads the answers of other servers. Pure."""

import struct
from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import NamedTuple

A, NS, CNAME, SOA, PTR, AAAA, SRV, OPT, ANY = 1, 2, 5, 6, 12, 28, 33, 41, 255
IN = 1
NO_ERROR, FORMAT_ERROR, SERVER_FAILURE, NO_NAME, NOT_IMPLEMENTED, REFUSED, BAD_VERSION = 0, 1, 2, 3, 4, 5, 16
HEADER_BYTES = 12
NAME_BYTES_MOST = 255
LABEL_BYTES_MOST = 63
PLAIN_BYTES_MOST = 512  # bytes of an answer over UDP without EDNS
UDP_BYTES_MOST = 1232  # bytes of an answer over UDP with EDNS: fits into one packet on every network
TCP_BYTES_MOST = 65_535
ADDITIONAL_MOST = 8  # additional records of a query
ANSWERS_MOST = 256  # records that are read from the answer of another server
TTL_SECONDS = 1
_RESPONSE, _AUTHORITATIVE, _TRUNCATED, _WANTED, _AVAILABLE = 0x8000, 0x0400, 0x0200, 0x0100, 0x0080
_OPCODE = 0x7800
_ASKED = b"\xc0\x0c"  # a pointer to the name of the question
_SHORT = struct.Struct("!H")
_RECORD = struct.Struct("!HHIH")
_HEADER = struct.Struct("!HHHHHH")


class Malformed(ValueError):
    """A message that does not follow the format."""


class Query(NamedTuple):
    """A query with one question."""

    flags: int
    question: bytes
    """The question as sent: name, type and class."""
    name: bytes
    """Name of the question in wire form and lower case."""
    kind: int
    payload: int
    """Bytes of the largest answer over UDP."""
    edns: bool
    version: int = 0
    """Version of EDNS."""

    @property
    def text(self) -> str:
        """Name of the question without the final dot; empty: the root, or a name with dots inside of labels."""
        return to_text(self.name)


class Record(NamedTuple):
    """One resource record, with names in wire form and without compression."""

    name: bytes
    kind: int
    ttl: int
    data: bytes

    def pack(self, asked: bytes = b"") -> bytes:
        """Return the record. `asked`: the name of the question, which a pointer replaces."""
        owner = _ASKED if self.name == asked else self.name
        return owner + _RECORD.pack(self.kind, IN, self.ttl, len(self.data)) + self.data


def parse_query(data: bytes) -> Query | int | None:
    """Return the query, or the response code for a message that is none; None: it gets no answer."""
    if len(data) < HEADER_BYTES:
        return None
    _, flags, questions, answers, authorities, additional = _HEADER.unpack_from(data)
    if flags & _RESPONSE:
        return None
    if flags & _OPCODE:
        return NOT_IMPLEMENTED
    if questions != 1 or answers or authorities or additional > ADDITIONAL_MOST:
        return FORMAT_ERROR
    try:
        name, place = _read_plain_name(data, HEADER_BYTES)
        kind, group = struct.unpack_from("!HH", data, place)
        place += 4
        question = data[HEADER_BYTES:place]
        payload, edns, version = PLAIN_BYTES_MOST, False, 0
        for _ in range(additional):
            _, place = _read_plain_name(data, place)
            each, size, ttl, length = _RECORD.unpack_from(data, place)
            place += _RECORD.size + length
            if place > len(data) or (each == OPT and edns):
                return FORMAT_ERROR
            if each == OPT:
                payload, edns, version = max(PLAIN_BYTES_MOST, min(size, UDP_BYTES_MOST)), True, ttl >> 16 & 0xFF
    except (Malformed, struct.error):
        return FORMAT_ERROR
    if group != IN:
        return REFUSED
    return Query(flags, question, name.lower(), kind, payload, edns, version)


def refuse(data: bytes, code: int) -> bytes:
    """Return an answer without a question, for a message that cannot be parsed or is not served."""
    (flags,) = _SHORT.unpack_from(data, 2)
    return data[:2] + struct.pack("!HHHHH", _RESPONSE | flags & (_OPCODE | _WANTED) | code & 0xF, 0, 0, 0, 0)


def pack_answer(
    query: Query,
    code: int,
    answers: Sequence[Record] = (),
    authority: Iterable[Record] = (),
    additional: Iterable[Record] = (),
    *,
    authoritative: bool = True,
    limit: int,
) -> bytes:
    """Return an answer without its id. Records that do not fit are left out, and a flag reports missing answers."""
    tail = _opt(code) if query.edns else b""
    room = limit - HEADER_BYTES - len(query.question) - len(tail)
    flags = _RESPONSE | query.flags & (_OPCODE | _WANTED) | _AVAILABLE | code & 0xF
    flags |= _AUTHORITATIVE if authoritative else 0
    parts, counts, full = [], [0, 0, 0], False
    for section, records in enumerate((answers, authority, additional)):
        for each in records:
            packed = each.pack(query.name)
            if len(packed) > room:
                flags |= _TRUNCATED if section < 2 else 0
                full = True
                break
            room -= len(packed)
            counts[section] += 1
            parts.append(packed)
        if full:
            break
    counts[2] += 1 if tail else 0
    return struct.pack("!HHHHH", flags, 1, *counts) + query.question + b"".join(parts) + tail


def make_query(name: bytes, kind: int) -> bytes:
    """Return a query without its id, for another server."""
    header = struct.pack("!HHHHH", _WANTED, 1, 0, 0, 1)
    return header + name + struct.pack("!HH", kind, IN) + _opt(NO_ERROR)


def is_answer_to(query: bytes, answer: bytes) -> bool:
    """Return whether a message answers a query that was sent (both with their ids)."""
    if len(answer) < HEADER_BYTES or answer[:2] != query[:2] or not answer[2] & 0x80:
        return False
    try:
        _, end = _read_plain_name(query, HEADER_BYTES)
    except Malformed:
        return False
    if answer[4:6] == b"\0\0":
        return answer[3] & 0xF != NO_ERROR  # some servers refuse without the question
    question = slice(HEADER_BYTES, end + 4)
    return answer[4:6] == b"\0\1" and answer[question].lower() == query[question].lower()


def code_of(answer: bytes) -> int:
    """Return the response code of an answer."""
    return answer[3] & 0xF


def is_truncated(answer: bytes) -> bool:
    """Return whether an answer says that records are missing."""
    return bool(answer[2] & 0x02)


def read_addresses(data: bytes) -> list[Record]:
    """Return the address and alias records in the answer of another server; raise `Malformed` for anything else."""
    try:
        _, _, questions, answers, _, _ = _HEADER.unpack_from(data)
        place = HEADER_BYTES
        for _ in range(questions):
            _, place = read_name(data, place)
            place += 4
        found = []
        for _ in range(min(answers, ANSWERS_MOST)):
            name, place = read_name(data, place)
            kind, group, ttl, length = _RECORD.unpack_from(data, place)
            place += _RECORD.size
            content = data[place : place + length]
            if len(content) != length:
                raise Malformed("a record is cut off")
            if group == IN and (kind, length) in {(A, 4), (AAAA, 16)}:
                found.append(Record(name, kind, ttl, content))
            elif group == IN and kind == CNAME:
                found.append(Record(name, kind, ttl, read_name(data, place)[0]))
            place += length
    except struct.error as error:
        raise Malformed(str(error)) from None
    return found


def read_name(data: bytes, place: int) -> tuple[bytes, int]:
    """Return the name at a place in lower case, and the place behind it. A pointer leads only to earlier places, so
    every name ends.
    """
    parts, length, end, limit = [], 1, -1, place
    while True:
        if place >= len(data):
            raise Malformed("a name is cut off")
        size = data[place]
        if size >= 0xC0:
            if place + 2 > len(data):
                raise Malformed("a pointer is cut off")
            target = (size & 0x3F) << 8 | data[place + 1]
            end = place + 2 if end < 0 else end
            if not HEADER_BYTES <= target < limit:
                raise Malformed("a pointer does not lead to an earlier name")
            place = limit = target
            continue
        if size > LABEL_BYTES_MOST:
            raise Malformed("a label has an unknown form")
        label = data[place : place + 1 + size]
        if len(label) != 1 + size:
            raise Malformed("a label is cut off")
        parts.append(label)
        place += 1 + size
        if not size:
            return b"".join(parts).lower(), place if end < 0 else end
        length += 1 + size
        if length > NAME_BYTES_MOST:
            raise Malformed(f"a name has more than {NAME_BYTES_MOST} bytes")


def _read_plain_name(data: bytes, place: int) -> tuple[bytes, int]:
    """Return the name at a place, which has no pointers, and the place behind it."""
    start = place
    while True:
        if place >= len(data):
            raise Malformed("a name is cut off")
        size = data[place]
        if size > LABEL_BYTES_MOST:
            raise Malformed("a name in a query has a pointer")
        place += 1 + size
        if place - start > NAME_BYTES_MOST:
            raise Malformed(f"a name has more than {NAME_BYTES_MOST} bytes")
        if not size:
            return data[start:place], place


def to_wire(text: str) -> bytes:
    """Return a dotted name in wire form; raise `Malformed` if it is too long or has empty labels."""
    parts = [label.encode("idna" if not label.isascii() else "ascii") for label in text.split(".")] if text else []
    if any(not 0 < len(each) <= LABEL_BYTES_MOST for each in parts):
        raise Malformed(f"{text[:80]!r} is not a name")
    wire = b"".join(bytes((len(each),)) + each for each in parts) + b"\0"
    if len(wire) > NAME_BYTES_MOST:
        raise Malformed(f"{text[:80]!r} has more than {NAME_BYTES_MOST} bytes")
    return wire


def to_text(wire: bytes) -> str:
    """Return the dotted form of a name; empty: the root, or a name with bytes that no host name has."""
    labels, place = [], 0
    while size := wire[place]:
        labels.append(wire[place + 1 : place + 1 + size])
        place += 1 + size
    joined = b".".join(labels)
    if joined.count(b".") != max(0, len(labels) - 1) or not joined.isascii():
        return ""
    return joined.decode("ascii")


def address_record(name: bytes, address: str) -> Record:
    """Return the A or AAAA record of a name."""
    parsed = ip_address(address)
    return Record(name, A if parsed.version == 4 else AAAA, TTL_SECONDS, parsed.packed)


def service_record(name: bytes, port: int, weight: int, target: bytes) -> Record:
    """Return an SRV record."""
    return Record(name, SRV, TTL_SECONDS, struct.pack("!HHH", 0, weight, port) + target)


def authority_record(zone: bytes, server: bytes) -> Record:
    """Return the SOA record of a zone, which also limits how long negative answers are cached."""
    times = struct.pack("!IIIII", 1, 60, 60, 60, TTL_SECONDS)
    return Record(zone, SOA, TTL_SECONDS, server + server + times)


def _opt(code: int) -> bytes:
    return b"\0" + _RECORD.pack(OPT, UDP_BYTES_MOST, (code >> 4) << 24, 0)
