"""A WebSocket connection to an agent through the server: frames in both directions, and the final result."""

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
"""Types of frames: the first byte of each frame."""
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
        return Unavailable(
            f"the server responded with status {status}", hint="check that the URL is that of a mandor server"
        )


def read_result(data: bytes) -> dict[str, Any]:
    """Return the content of the last frame; raises the error that it contains."""
    try:
        result = json.loads(data or b"{}")
    except ValueError:
        result = {}
    if not isinstance(result, dict):
        return {}
    if isinstance(result.get("code"), str):
        raise error_of(result)
    return result
