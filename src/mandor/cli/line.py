"""A line to an agent, through the server: frames both ways, and how it ends."""

import contextlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mandor.client.problem import error_of
from mandor.errors import MandorError, Unavailable

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from mandor.client.sync import Client

STDIN, STDOUT, STDERR, END, RESIZE = range(5)
"""The first byte of a frame."""
FRAME_MOST = 16 << 20


@contextlib.contextmanager
def connect_line(client: "Client", path: str, query: dict[str, Any]) -> Iterator["ClientConnection"]:
    from websockets.exceptions import InvalidHandshake, InvalidStatus
    from websockets.sync.client import ClientConnection, connect

    from mandor.cli.progress import waits

    url, headers, context = client.websocket(path, query)
    try:
        with waits(path):
            socket = connect(
                url, ssl=context, additional_headers=headers, max_size=FRAME_MOST, proxy=None, open_timeout=30
            )
    except InvalidStatus as error:
        raise _refusal(bytes(error.response.body or b""), error.response.status_code) from None
    except (OSError, InvalidHandshake, TimeoutError) as error:
        raise Unavailable(f"cannot reach {url.partition('?')[0]}: {error}") from error
    assert isinstance(socket, ClientConnection)
    with socket:
        yield socket


def _refusal(body: bytes, status: int) -> MandorError:
    try:
        return error_of(json.loads(body))
    except (ValueError, AttributeError):
        return Unavailable(f"the server answered {status}", hint="is this a mandor server?")


def told_at_end(data: bytes) -> dict[str, Any]:
    """What the last frame says; a problem is raised as the error it tells of."""
    try:
        told = json.loads(data or b"{}")
    except ValueError:
        told = {}
    if not isinstance(told, dict):
        return {}
    if isinstance(told.get("code"), str):
        raise error_of(told)
    return told
