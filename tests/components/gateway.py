"""A way into a server on this machine from another network: what comes by TLS is handed on as it is."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.components.etcd import Tls


@contextmanager
def gateway(listener: socket.socket, tls: Tls, port: int) -> Iterator[str]:
    """The URL under which the server on `port` is reached from where the listener is."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.server_cert_file, tls.server_key_file)
    host, here = listener.getsockname()
    loop = asyncio.new_event_loop()
    serving = loop.create_task(_serve(listener, context, port))
    thread = threading.Thread(target=_run, args=(loop, serving))
    thread.start()
    try:
        yield f"https://{host}:{here}"
    finally:
        loop.call_soon_threadsafe(serving.cancel)
        thread.join()


def _run(loop: asyncio.AbstractEventLoop, serving: asyncio.Task[None]) -> None:
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(serving)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


async def _serve(listener: socket.socket, context: ssl.SSLContext, port: int) -> None:
    calls: set[asyncio.Task[None]] = set()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        call = asyncio.ensure_future(_hand_on(reader, writer, port))
        calls.add(call)
        call.add_done_callback(calls.discard)

    server = await asyncio.start_server(take, sock=listener, ssl=context)
    try:
        await asyncio.Event().wait()
    finally:
        server.close()
        left = list(calls)
        for call in left:
            call.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _hand_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    try:
        back, forth = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        writer.close()
        return
    await asyncio.gather(_pump(reader, forth), _pump(back, writer))


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        with suppress(OSError):
            while content := await reader.read(65536):
                writer.write(content)
                await writer.drain()
    finally:
        writer.close()
