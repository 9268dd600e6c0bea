"""Answers DNS messages of clients: from packed answers, from the table, or from other servers."""

from collections.abc import Sequence
from ipaddress import ip_address

from mandor.network.base import NameTable
from mandor.network.dns.message import (
    CNAME,
    NO_ERROR,
    NO_NAME,
    REFUSED,
    SERVER_FAILURE,
    TCP_BYTES_MOST,
    Malformed,
    Query,
    Record,
    code_of,
    make_query,
    pack_answer,
    parse_query,
    read_addresses,
    refuse,
)
from mandor.network.dns.upstream import Upstream
from mandor.network.dns.zone import Outcome, Zone

PACKED_MOST = 16_384  # packed answers; the next one empties the cache
PACKED_QUERY_BYTES_MOST = 300
TURNS_MOST = 16  # orders of the addresses in packed answers
SOURCES_MOST = 4_096  # remembered namespaces of clients
OUTSIDE = ""
"""Namespace of clients on public addresses that are no instance: they get no answers."""


class Responder:
    """Answers for one table at a time."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._address = ""
        self._zone = Zone(NameTable({}))
        self._packed: dict[tuple[str | None, bytes], Sequence[bytes]] = {}
        """Answers over UDP without their id, in several orders, by namespace and query without its id."""
        self._namespaces: dict[str, str] = {}

    def use(self, table: NameTable, address: str) -> None:
        """Answer from this table from now on. `address`: the address of the server."""
        self._zone = Zone(table, address)
        self._packed, self._namespaces = {}, {}

    def packed(self, data: bytes, client: str) -> bytes | None:
        """Return an answer over UDP that was packed before; the id of the query chooses the order of addresses."""
        found = self._packed.get((self._namespaces.get(client), data[2:]))
        return None if found is None else data[:2] + found[data[1] % len(found)]

    def answer(self, data: bytes, client: str, *, tcp: bool = False) -> bytes | Query | None:
        """Answer a message. A query is returned if other servers are needed: `finish` answers it. None: no answer."""
        query = parse_query(data)
        if query is None:
            return None
        if isinstance(query, int):
            return refuse(data, query)
        namespace = self._namespace(client)
        if namespace == OUTSIDE:
            return refuse(data, REFUSED)
        outcome = self._look_up(query, namespace)
        if outcome.relay or outcome.follow:
            return query
        limit = TCP_BYTES_MOST if tcp else query.payload
        turns = 1 if tcp else min(TURNS_MOST, max(1, len(outcome.answers)))
        answers = [_pack(query, _turned(outcome, turn), limit) for turn in range(turns)]
        if not tcp and len(data) <= PACKED_QUERY_BYTES_MOST:
            if len(self._packed) >= PACKED_MOST:
                self._packed.clear()
            self._packed[namespace, data[2:]] = answers
        return data[:2] + answers[data[1] % turns]

    async def finish(self, query: Query, data: bytes, client: str, *, tcp: bool = False) -> bytes:
        """Answer a query with the help of other servers."""
        outcome = self._look_up(query, self._namespace(client))
        limit = TCP_BYTES_MOST if tcp else query.payload
        if outcome.relay:
            answer = await self._upstream.ask(data[2:], client, tcp=tcp)
            if answer is None:
                return data[:2] + pack_answer(query, SERVER_FAILURE, authoritative=False, limit=limit)
            return data[:2] + answer
        answer = await self._upstream.ask_completely(make_query(outcome.follow, query.kind), client)
        try:
            found = [] if answer is None else read_addresses(b"\0\0" + answer)
        except Malformed:
            answer = None
        if answer is None:
            return data[:2] + pack_answer(query, SERVER_FAILURE, authoritative=False, limit=limit)
        code = code_of(b"\0\0" + answer)
        chain = [Record(each.name, each.kind, min(each.ttl, 60), each.data) for each in _chain(outcome.follow, found)]
        code = code if code in {NO_ERROR, NO_NAME} else SERVER_FAILURE
        return data[:2] + pack_answer(query, code, [*outcome.answers, *chain], limit=limit)

    def _look_up(self, query: Query, namespace: str) -> Outcome:
        try:
            return self._zone.answer(query, namespace)
        except (Malformed, UnicodeError, ValueError):
            return Outcome(SERVER_FAILURE)

    def _namespace(self, client: str) -> str:
        found = self._namespaces.get(client)
        if found is None:
            found = self._zone.namespace(client, inside=_is_inside(client))
            if len(self._namespaces) >= SOURCES_MOST:
                self._namespaces.clear()
            self._namespaces[client] = found
        return found


def _is_inside(client: str) -> bool:
    """Return whether an address cannot belong to a machine on the Internet."""
    try:
        return not ip_address(client).is_global
    except ValueError:
        return False


def _turned(outcome: Outcome, turn: int) -> Outcome:
    """Return the outcome with its answers in another order; an alias stays before its addresses."""
    if not turn:
        return outcome
    aliases = [each for each in outcome.answers if each.kind == CNAME]
    rest = [each for each in outcome.answers if each.kind != CNAME]
    shift = turn % max(1, len(rest))
    return outcome._replace(answers=[*aliases, *rest[shift:], *rest[:shift]])


def _pack(query: Query, outcome: Outcome, limit: int) -> bytes:
    return pack_answer(
        query,
        outcome.code,
        outcome.answers,
        outcome.authority,
        outcome.additional,
        limit=limit,
    )


def _chain(name: bytes, records: Sequence[Record]) -> list[Record]:
    """Return the records that belong to a name, through its aliases."""
    names, found = {name}, []
    for each in records:
        if each.name in names:
            found.append(each)
            if each.kind == CNAME:
                names.add(each.data)
    return found


async def answer_completely(responder: Responder, data: bytes, client: str, *, tcp: bool = False) -> bytes | None:
    """Answer one message, with other servers if they are needed; None: it gets no answer."""
    found = responder.answer(data, client, tcp=tcp)
    if isinstance(found, Query):
        return await responder.finish(found, data, client, tcp=tcp)
    return found
