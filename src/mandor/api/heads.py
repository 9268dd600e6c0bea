"""Heads: a reply as one piece of bytes, the very bytes that uvicorn would have sent in several."""

import re

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from mandor.api.request import ALWAYS, Pairs, Reply

KEPT_MOST = 200
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_CLOSE: Pairs = ((b"connection", b"close"),)


class Heads:
    """Remembers what stands before the length of a body: it is nearly always the same, until the date changes."""

    def __init__(self) -> None:
        self._usual: list[tuple[bytes, bytes]] = []
        self._kept: dict[tuple[int, Pairs], bytes] = {}
        self._ends = {keeps: b"\r\n%b\r\n" % _lines(ALWAYS if keeps else ALWAYS + _CLOSE) for keeps in (True, False)}

    def whole(self, reply: Reply, usual: list[tuple[bytes, bytes]], *, keep_alive: bool) -> bytes:
        """`usual`: the headers that every answer of the server has; another list when they are others."""
        if usual is not self._usual or len(self._kept) > KEPT_MOST:
            self._usual = usual
            self._kept.clear()
        begin = self._kept.get((reply.status, reply.headers))
        if begin is None:
            begin = b"%b%bcontent-length: " % (STATUS_LINE[reply.status], _lines((*usual, *reply.headers)))
            self._kept[reply.status, reply.headers] = begin
        return b"%b%d%b%b" % (begin, len(reply.body), self._ends[keep_alive], reply.body)


def _lines(headers: Pairs) -> bytes:
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} cannot be sent")
    return b"".join(b"%b: %b\r\n" % (name.lower(), value) for name, value in headers)
