"""ResponseEncoder: encodes a reply as one byte string, identical to what uvicorn would send in several writes."""

import re

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from mandor.api.http.request import ALWAYS, Pairs, Reply

CACHED_HEADS_MOST = 200  # encoded heads
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
_CLOSE: Pairs = ((b"connection", b"close"),)


class ResponseEncoder:
    """Caches the head of a response up to the content length; the cache is cleared when the date header changes."""

    def __init__(self) -> None:
        self._default_headers: list[tuple[bytes, bytes]] = []
        self._heads: dict[tuple[int, Pairs], bytes] = {}
        self._ends = {keeps: b"\r\n%b\r\n" % _lines(ALWAYS if keeps else ALWAYS + _CLOSE) for keeps in (True, False)}

    def encode(self, reply: Reply, default_headers: list[tuple[bytes, bytes]], *, keep_alive: bool) -> bytes:
        """Return the whole response.

        `default_headers`: headers of every response of the server; a new list object whenever one of them changes.
        """
        if default_headers is not self._default_headers or len(self._heads) > CACHED_HEADS_MOST:
            self._default_headers = default_headers
            self._heads.clear()
        head = self._heads.get((reply.status, reply.headers))
        if head is None:
            head = b"%b%bcontent-length: " % (STATUS_LINE[reply.status], _lines((*default_headers, *reply.headers)))
            self._heads[reply.status, reply.headers] = head
        return b"%b%d%b%b" % (head, len(reply.body), self._ends[keep_alive], reply.body)


def _lines(headers: Pairs) -> bytes:
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ValueError(f"the header {name!r} contains characters that HTTP does not allow")
    return b"".join(b"%b: %b\r\n" % (name.lower(), value) for name, value in headers)
