"""Request bodies: checks of type and size before reading, reading within limits, and decoding."""

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from starlette.types import Receive

from mandor.api.http.problems import misfit
from mandor.api.http.request import Headers, header
from mandor.api.settings import ApiSettings
from mandor.errors import Invalid, TooLarge, Unsupported
from mandor.model.codec import decode_as

T = TypeVar("T")


class ClientDisconnected(Exception):
    """The client closed the connection before its request was complete."""


class WrongContent(Unsupported):
    """The content type is not accepted; HTTP status 415."""


class TooSlow(Invalid):
    """The body did not arrive in time; HTTP status 408."""


def check_body(accepted: Sequence[str], headers: Headers, settings: ApiSettings, *, optional: bool) -> str:
    """Return the content type; raise for a type or an announced size that is not accepted.

    `optional`: a request without a body, and so without a content type, is accepted, too.
    """
    most = settings.body_bytes_most
    content_type = (header(headers, b"content-type") or "").partition(";")[0].strip().lower()
    announced = header(headers, b"content-length")
    if announced is not None and announced.isdecimal() and int(announced) > most:
        raise TooLarge(f"the body has {announced} bytes; at most {most} are allowed", most=most)
    absent = not content_type and optional
    # A web page cannot send these types to another origin without a CORS preflight request.
    if content_type not in accepted and not absent:
        raise WrongContent(
            f"the content type {content_type or '(none)'!r} is not accepted here",
            hint=f"send {' or '.join(accepted)}",
        )
    return content_type


async def read_body(receive: Receive, settings: ApiSettings) -> bytes:
    try:
        async with asyncio.timeout(settings.body_seconds_most):
            return await read_all(receive, settings.body_bytes_most)
    except TimeoutError as error:
        raise TooSlow(f"the body did not arrive within {settings.body_seconds_most:g} s") from error


async def read_all(receive: Receive, most: int) -> bytes:
    """Return the whole body; raise `TooLarge` if it has more than `most` bytes."""
    pieces, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        piece = message.get("body", b"")
        size += len(piece)
        if size > most:
            raise TooLarge(f"the body has more than {most} bytes", most=most)
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


def decode_body(data: bytes, wanted: type[T]) -> T:
    try:
        return decode_as(data, wanted)
    except Invalid as error:
        if isinstance(error.__cause__, msgspec.DecodeError):
            raise misfit(error.__cause__, wanted) from error
        raise
    except (RecursionError, UnicodeDecodeError) as error:
        raise Invalid(f"the body is not valid JSON: {error}") from error
