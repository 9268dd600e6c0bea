"""Logs, exec and images: a caller waits here, the node's agent dials back, and the two ends are joined."""

import asyncio
import hmac
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from mandor.api.caller import Caller
from mandor.api.http.problems import encode_problem
from mandor.api.revocation import Revocation
from mandor.api.settings import ApiSettings
from mandor.errors import Forbidden, MandorError, NotFound, TooMany, Unavailable
from mandor.lib.clock import Clock
from mandor.model.manifest import DEFAULT_NAMESPACE
from mandor.model.meta import Meta
from mandor.model.record import Session, SessionSpec
from mandor.store.base import Delete, Put, Store

log = logging.getLogger("mandor.sessions")

STDIN, STDOUT, STDERR, END, RESIZE = range(5)
"""The first byte of a frame."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A caller, and the place where its agent's connection arrives."""

    session: Session
    identity: str
    """The caller's."""
    dialled: asyncio.Future[WebSocket]
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Sessions:
    """The sessions whose callers are connected to this server."""

    def __init__(self, store: Store, clock: Clock, settings: ApiSettings, revocation: Revocation) -> None:
        self._revocation = revocation
        self._store = store
        self._clock = clock
        self._settings = settings
        self._waiting: dict[str, Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def dial(
        self, spec: SessionSpec, caller: Caller, namespace: str = DEFAULT_NAMESPACE
    ) -> AsyncIterator[WebSocket]:
        """Ask the node to dial back; the block has the agent's connection, leaving it ends both."""
        self._check_room(caller.identity)
        spec = msgspec.structs.replace(spec, server=self._settings.address, secret=secrets.token_hex(32))
        session = Session(meta=Meta(name=secrets.token_hex(8), namespace=namespace), spec=spec)
        waiting = Waiting(session, caller.identity, asyncio.get_running_loop().create_future())
        name = session.meta.name
        self._waiting[name] = waiting
        revision = 0
        try:
            revision = await self._store.commit(Put(session))
            async with self._revocation.guard(caller), asyncio.timeout(self._settings.session_seconds_most):
                yield await self._arrived(waiting, spec.node)
        except TimeoutError as error:
            raise Unavailable("the session has lasted too long") from error
        finally:
            del self._waiting[name]
            waiting.over.set()
            waiting.dialled.cancel()
            if revision:
                await asyncio.shield(self._remove(session, revision))

    def _check_room(self, identity: str) -> None:
        settings, hint = self._settings, "close one, then try again"
        if len(self._waiting) >= settings.sessions_most:
            raise TooMany(f"{settings.sessions_most} sessions are open", hint=hint)
        own = sum(each.identity == identity for each in self._waiting.values())
        if own >= settings.sessions_each:
            raise TooMany(f"{identity} has {own} sessions open", hint=hint)

    async def _arrived(self, waiting: Waiting, node: str) -> WebSocket:
        try:
            async with asyncio.timeout(self._settings.dial_seconds):
                return await waiting.dialled
        except TimeoutError as error:
            raise Unavailable(
                f"the node {node} did not answer within {self._settings.dial_seconds:g} s",
                hint=f"`mandor get node {node}` shows whether it is heard",
                node=node,
            ) from error

    async def _remove(self, session: Session, revision: int) -> None:
        try:
            await self._store.commit(Delete(session.key, revision))
        except MandorError as error:
            log.info("the session %s is left to the garbage: %s", session.meta.name, error)

    def check(self, caller: Caller, name: str, secret: str) -> Waiting:
        """The session this agent may take; `NotFound` or `Forbidden`."""
        waiting = self._waiting.get(name)
        if waiting is None or waiting.dialled.done():
            raise NotFound(f"nobody waits for the session {name}", hint="its caller has gone, or it was taken already")
        spec = waiting.session.spec
        if caller.node != spec.node or not hmac.compare_digest(spec.secret, secret):
            raise Forbidden(f"the session {name} is not for {caller.identity}")
        return waiting


async def hand_over(waiting: Waiting, websocket: WebSocket) -> None:
    """Give the agent's connection to the caller, and stay until the session is over."""
    if waiting.dialled.done():
        await close(websocket)
        return
    waiting.dialled.set_result(websocket)
    await waiting.over.wait()
    await close(websocket)


HANG_UP_SECONDS = 5.0
"""So long a caller who was told the end may take to hang up; what it still sends is read meanwhile."""


async def splice(
    caller: WebSocket, agent: WebSocket, idle_seconds: float, *, check: Callable[[bytes], None] = lambda frame: None
) -> None:
    """Carry frames both ways until the agent tells the end, either end closes, or nothing moved for long.

    One frame each way is in hand.

    `check` sees what the caller sends, and raises to end it.
    """
    moved = asyncio.Event()

    async def carry(source: WebSocket, target: WebSocket) -> None:
        while True:
            frame = await receive_frame(source)
            if frame is None:
                return
            if source is caller:
                check(frame)
            moved.set()
            await target.send_bytes(frame)
            if source is agent and frame[:1] == bytes([END]):
                return

    async def watch_idle() -> None:
        while True:
            moved.clear()
            try:
                async with asyncio.timeout(idle_seconds):
                    await moved.wait()
            except TimeoutError:
                return

    down = asyncio.ensure_future(carry(agent, caller))
    up = asyncio.ensure_future(carry(caller, agent))
    idle = asyncio.ensure_future(watch_idle())
    tasks = {down, up, idle}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if down in done and not down.exception():
            # A connection that is closed with something unread in it breaks, and the last word with it.
            await asyncio.wait({up}, timeout=HANG_UP_SECONDS)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        if isinstance(error := task.exception(), MandorError):
            raise error


async def receive_frame(websocket: WebSocket) -> bytes | None:
    """The next frame; None: the other end has closed. Text frames are not part of the protocol."""
    try:
        message = await websocket.receive()
    except (RuntimeError, WebSocketDisconnect):
        return None
    if message["type"] == "websocket.disconnect":
        return None
    return message.get("bytes") or b""


async def end_with(websocket: WebSocket, error: MandorError) -> None:
    """Send why a session ends, to a caller that reads it, and close the connection in any case."""
    with suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
        async with asyncio.timeout(HANG_UP_SECONDS):
            await websocket.send_bytes(bytes([END]) + encode_problem(error))


async def close(websocket: WebSocket, code: int = 1000, reason: str = "") -> None:
    if websocket.application_state is WebSocketState.CONNECTED and (websocket.client_state is WebSocketState.CONNECTED):
        try:
            await websocket.close(code, reason)
        except (RuntimeError, WebSocketDisconnect):
            # It went away in the same moment.
            return
