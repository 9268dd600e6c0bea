"""The body of a request: whether it is taken, read within bounds, and decoded."""

import asyncio
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive

from mandor.api.operation import Operation
from mandor.api.problems import misfit
from mandor.api.request import Headers, header
from mandor.api.settings import ApiSettings
from mandor.errors import Invalid, TooLarge, Unsupported
from mandor.model.codec import decode_as

T = TypeVar("T")


class Gone(Exception):
    """The caller went away before the request was complete."""


class WrongContent(Unsupported):
    """Answered with 415."""


class TooSlow(Invalid):
    """Answered with 408."""


def check_body(operation: Operation, headers: Headers, settings: ApiSettings) -> str:
    """The content type; raises what can be said before there is a body."""
    most = settings.body_bytes_most
    content_type = (header(headers, b"content-type") or "").partition(";")[0].strip().lower()
    announced = header(headers, b"content-length")
    if announced is not None and announced.isdecimal() and int(announced) > most:
        raise TooLarge(f"the body has {announced} bytes; at most {most} are allowed", most=most)
    bare = not content_type and operation.body_optional
    # A web page cannot send these types to another origin without asking first.
    if content_type not in operation.takes and not bare:
        raise WrongContent(
            f"the content type {content_type or '(none)'!r} is not taken here",
            hint=f"send {' or '.join(operation.takes)}",
        )
    return content_type


async def read_body(receive: Receive, settings: ApiSettings) -> bytes:
    try:
        async with asyncio.timeout(settings.body_seconds_most):
            return await read_all(receive, settings.body_bytes_most)
    except TimeoutError as error:
        raise TooSlow(f"the body did not come within {settings.body_seconds_most:g} s") from error


async def read_all(receive: Receive, most: int) -> bytes:
    """The whole body, which has at most so many bytes."""
    pieces, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        piece = message.get("body", b"")
        size += len(piece)
        if size > most:
            raise TooLarge(f"the body has more than {most} bytes", most=most)
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


def decoded(operation: Operation, data: bytes) -> Any:
    if operation.body is bytes:
        return data
    if not data and operation.body_optional:
        return None
    return decode_body(data, operation.body)


def decode_body(data: bytes, wanted: type[T]) -> T:
    try:
        return decode_as(data, wanted)
    except Invalid as error:
        if isinstance(error.__cause__, msgspec.DecodeError):
            raise misfit(error.__cause__, wanted) from error
        raise
    except (RecursionError, UnicodeDecodeError) as error:
        raise Invalid(f"the body is not JSON that can be read: {error}") from error
