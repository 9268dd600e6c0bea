"""Answers queries from a table of names: pure.

A name below `mandor`, `svc.cluster.local` or `service.consul` is answered from the table alone. A name without such an
ending is looked up in the namespace of the client, then as `<name>.<namespace>`; other servers are asked for the rest.
"""

from collections.abc import Iterable, Sequence
from ipaddress import ip_address
from typing import NamedTuple

from mandor.network.base import NameRecord, NameTable
from mandor.network.dns.message import (
    AAAA,
    ANY,
    BAD_VERSION,
    CNAME,
    NO_ERROR,
    NO_NAME,
    NS,
    PTR,
    SERVER_FAILURE,
    SOA,
    SRV,
    TTL_SECONDS,
    A,
    Malformed,
    Query,
    Record,
    address_record,
    authority_record,
    service_record,
    to_text,
    to_wire,
)

OWN, KUBERNETES, CONSUL = "mandor", "svc.cluster.local", "service.consul"
ALIASES_MOST = 8  # aliases that are followed for one question
GLUE_MOST = 16  # addresses of the targets of SRV records in one answer
SERVER = to_wire(f"dns.{OWN}")
LOCALHOST = NameRecord(addresses=("127.0.0.1", "::1"))


class Outcome(NamedTuple):
    """The answer of the table to one query."""

    code: int = NO_ERROR
    answers: Sequence[Record] = ()
    authority: Sequence[Record] = ()
    additional: Sequence[Record] = ()
    relay: bool = False
    """Whether another server answers the query."""
    follow: bytes = b""
    """Name outside of the cluster whose addresses complete the answer; empty: the answer is complete."""


RELAY = Outcome(relay=True)


class _Place(NamedTuple):
    """Key and zone of a name."""

    key: str
    """Key in the table; empty: the name is a zone itself."""
    zone: str
    """Zone that answers it; empty: the name alone is the zone."""


class Zone:
    """The table of names in the form that queries need."""

    def __init__(self, table: NameTable, address: str = "") -> None:
        """`address`: the address of the server."""
        self._table = table
        self._records = {**table.records, f"dns.{OWN}": NameRecord((address,) if address else ())}
        self._parents = {"", *_parents(table.records)}
        self._reverse = {_reverse_name(address): name for address, name in table.reverse.items()}

    def namespace(self, client: str, *, inside: bool) -> str:
        """Return the namespace of a client; empty: it gets no answers. `inside`: on an address of a private range."""
        return self._table.clients.get(client, self._table.default_namespace if inside else "")

    def answer(self, query: Query, namespace: str) -> Outcome:
        """Answer a query of a client in a namespace."""
        if query.version:
            return Outcome(BAD_VERSION)
        text = query.text
        if not text:
            return RELAY
        if text.endswith(".arpa"):
            name = self._reverse.get(text)
            if name is None:
                return RELAY
            return self._pointer(query, name)
        if text == "localhost" or text.endswith(".localhost"):
            return self._found(query, query.name, LOCALHOST, text, namespace)
        place = self._place(text, namespace)
        if place is None:
            return RELAY
        if not place.key:
            return self._apex(query, place.zone)
        record = self._records.get(place.key)
        if record is None:
            code = NO_ERROR if place.key in self._parents else NO_NAME
            return Outcome(code, authority=(_authority(place.zone, query.name),))
        return self._found(query, query.name, record, place.zone, namespace)

    def _place(self, text: str, namespace: str) -> _Place | None:
        """Return key and zone of a name; None: another server is asked."""
        if text == f"dns.{OWN}":
            return _Place(text, OWN)
        for zone in (OWN, KUBERNETES):
            if text == zone:
                return _Place("", zone)
            if text.endswith(f".{zone}"):
                return _Place(text[: -len(zone) - 1], zone)
        if text == CONSUL:
            return _Place("", CONSUL)
        if text.endswith(f".{CONSUL}"):
            return _Place(f"{text[: -len(CONSUL) - 1]}.{namespace}", CONSUL)
        short = text.removesuffix(".svc")
        for key in (f"{text}.{namespace}", short):
            if key in self._table.records:
                return _Place(key, "")
        return None

    def _found(self, query: Query, owner: bytes, record: NameRecord, zone: str, namespace: str) -> Outcome:
        """Answer from a record; aliases inside of the cluster are followed."""
        answers: list[Record] = []
        for _ in range(ALIASES_MOST):
            if not record.alias:
                break
            try:
                target = to_wire(record.alias.lower().rstrip("."))
            except (Malformed, UnicodeError):
                return Outcome(SERVER_FAILURE)
            answers.append(Record(owner, CNAME, TTL_SECONDS, target))
            if query.kind in {CNAME, ANY}:
                return Outcome(answers=answers)
            text = to_text(target)
            place = self._place(text, namespace)
            if place is None:
                return Outcome(answers=answers, follow=target)
            following = self._records.get(place.key)
            if following is None:
                return Outcome(NO_NAME, answers, (_authority(place.zone, target),))
            owner, record, zone = target, following, place.zone
        else:
            return Outcome(SERVER_FAILURE)  # a loop of aliases
        found = [] if query.kind in {SRV, CNAME} else _addresses(owner, record.addresses, query.kind)
        additional: list[Record] = []
        if query.kind in {SRV, ANY}:
            for each in record.services:
                target = to_wire(f"{each.host}.{OWN}")
                found.append(service_record(owner, each.port, each.weight, target))
                beside = self._records.get(each.host, NameRecord()).addresses
                if len(additional) < GLUE_MOST:
                    additional += _addresses(target, beside[: GLUE_MOST - len(additional)], ANY)
        if not found:
            return Outcome(answers=answers, authority=(_authority(zone, owner),))
        return Outcome(answers=[*answers, *found], additional=additional)

    def _pointer(self, query: Query, name: str) -> Outcome:
        if query.kind not in {PTR, ANY}:
            return Outcome(authority=(_authority("", query.name),))
        return Outcome(answers=(Record(query.name, PTR, TTL_SECONDS, to_wire(f"{name}.{OWN}")),))

    def _apex(self, query: Query, zone: str) -> Outcome:
        if query.kind == SOA:
            return Outcome(answers=(_authority(zone, query.name),))
        if query.kind == NS:
            return Outcome(answers=(Record(query.name, NS, TTL_SECONDS, SERVER),))
        return Outcome(authority=(_authority(zone, query.name),))


def _addresses(owner: bytes, addresses: Iterable[str], kind: int) -> list[Record]:
    records = (address_record(owner, each) for each in addresses)
    return [each for each in records if kind in {each.kind, ANY}] if kind in {A, AAAA, ANY} else []


def _authority(zone: str, name: bytes) -> Record:
    """Return the SOA record of a zone; a name without a zone is a zone of its own."""
    return authority_record(to_wire(zone) if zone else name, SERVER)


def _parents(names: Iterable[str]) -> Iterable[str]:
    """Yield the names above each name: they exist without records."""
    for name in names:
        while "." in name:
            name = name.partition(".")[2]
            yield name


def _reverse_name(address: str) -> str:
    return ip_address(address).reverse_pointer
