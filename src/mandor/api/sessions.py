"""Sessions for logs, exec and images: connects a waiting caller with the agent that dials back."""

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
"""Frame types: the first byte of a frame."""


@dataclass(slots=True, eq=False)
class Waiting:
    """A session whose caller waits for the agent's connection."""

    session: Session
    identity: str
    """Identity of the caller."""
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
        """Request that the node dials back, and yield the agent's connection; leaving the block ends the session."""
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
            raise Unavailable("the session reached its time limit") from error
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
                hint=f"`mandor get node {node}` shows whether it is ready",
                node=node,
            ) from error

    async def _remove(self, session: Session, revision: int) -> None:
        try:
            await self._store.commit(Delete(session.key, revision))
        except MandorError as error:
            log.info("cannot delete the session %s; garbage collection will: %s", session.meta.name, error)

    def check(self, caller: Caller, name: str, secret: str) -> Waiting:
        """Return the session that this agent may serve; raise `NotFound` or `Forbidden`."""
        waiting = self._waiting.get(name)
        if waiting is None or waiting.dialled.done():
            raise NotFound(
                f"no caller waits for the session {name}", hint="the caller disconnected, or an agent already serves it"
            )
        spec = waiting.session.spec
        if caller.node != spec.node or not hmac.compare_digest(spec.secret, secret):
            raise Forbidden(f"the session {name} is not for {caller.identity}")
        return waiting


async def hand_over(waiting: Waiting, websocket: WebSocket) -> None:
    """Pass the agent's connection to the caller, and wait for the end of the session."""
    if waiting.dialled.done():
        await close(websocket)
        return
    waiting.dialled.set_result(websocket)
    await waiting.over.wait()
    await close(websocket)


HANG_UP_SECONDS = 5.0
"""Time that a caller has to close its connection after the end of a session; its frames are read meanwhile."""


async def splice(
    caller: WebSocket, agent: WebSocket, idle_seconds: float, *, check: Callable[[bytes], None] = lambda frame: None
) -> None:
    """Relay frames both ways until the agent sends the end, either side closes, or the session is idle for too long.

    One frame per direction is buffered. `check` receives the caller's frames, and raises to end the session.
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
            # Closing a connection with unread data resets it, and the last frame would be lost.
            await asyncio.wait({up}, timeout=HANG_UP_SECONDS)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        if isinstance(error := task.exception(), MandorError):
            raise error


async def receive_frame(websocket: WebSocket) -> bytes | None:
    """Return the next frame; None: the peer has closed. Text frames are not part of the protocol."""
    try:
        message = await websocket.receive()
    except (RuntimeError, WebSocketDisconnect):
        return None
    if message["type"] == "websocket.disconnect":
        return None
    return message.get("bytes") or b""


async def end_with(websocket: WebSocket, error: MandorError) -> None:
    """Send the error that ends a session, without waiting long for a caller that does not read."""
    with suppress(TimeoutError, RuntimeError, WebSocketDisconnect):
        async with asyncio.timeout(HANG_UP_SECONDS):
            await websocket.send_bytes(bytes([END]) + encode_problem(error))


async def close(websocket: WebSocket, code: int = 1000, reason: str = "") -> None:
    if websocket.application_state is WebSocketState.CONNECTED and (websocket.client_state is WebSocketState.CONNECTED):
        try:
            await websocket.close(code, reason)
        except (RuntimeError, WebSocketDisconnect):
            # The peer disconnected at the same moment.
            return
