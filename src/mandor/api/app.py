"""The ASGI application: every operation under its path, and what they share."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial

import msgspec
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from mandor.api.endpoint import Endpoint
from mandor.api.openapi import document, page
from mandor.api.operation import Call, Operation, Text
from mandor.api.parts import ApiParts
from mandor.api.paths import Paths
from mandor.api.request import send_problem
from mandor.api.routes import (
    access,
    apply,
    authority,
    backup,
    credentials,
    debug,
    explain,
    identity,
    images,
    meta,
    nodes,
    objects,
    plan,
    rebalance,
    receivers,
    rollout,
    secret_keys,
    sessions,
    simulate,
    spares,
    tasks,
    tokens,
    watch,
)
from mandor.api.ui import Panel, ToPanel
from mandor.errors import NotFound
from mandor.lib.words import did_you_mean
from mandor.model.codec import KINDS

# Where several paths fit, the first of them answers.
OPERATIONS: list[Operation] = [
    *nodes.OPERATIONS,
    *credentials.OPERATIONS,
    *authority.OPERATIONS,
    *watch.OPERATIONS,
    *backup.OPERATIONS,
    *debug.OPERATIONS,
    *meta.OPERATIONS,
    *access.OPERATIONS,
    *identity.OPERATIONS,
    *apply.OPERATIONS,
    *plan.OPERATIONS,
    *simulate.OPERATIONS,
    *rebalance.OPERATIONS,
    *tasks.OPERATIONS,
    *spares.OPERATIONS,
    *explain.OPERATIONS,
    *rollout.OPERATIONS,
    *receivers.OPERATIONS,
    *secret_keys.OPERATIONS,
    *tokens.OPERATIONS,
    *sessions.OPERATIONS,
    *objects.OPERATIONS,
]


POLICY = b"default-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'"
"""For the page of documentation: nothing comes from elsewhere."""


def build_app(parts: ApiParts) -> "App":
    """The whole API over these parts; `app.state.closing.set()` ends its streams, for a server that stops."""
    grouped: dict[str, list[Operation]] = {}
    for each in [*OPERATIONS, *_documentation()]:
        grouped.setdefault(each.path, []).append(each)
    endpoints = {path: Endpoint(parts, group) for path, group in grouped.items()}
    routes: list[BaseRoute] = [Route(path, endpoint) for path, endpoint in endpoints.items()]
    sockets = sessions.WEBSOCKETS | images.WEBSOCKETS
    routes += [WebSocketRoute(path, _Socket(partial(run, parts))) for path, run in sockets.items()]
    routes += [Route("/", ToPanel()), Route("/ui", ToPanel()), Route("/ui/{rest:path}", Panel())]
    routes.append(Route("/{rest:path}", _nothing_here))

    app = App(Paths(endpoints), routes)
    app.router.redirect_slashes = False
    app.state.closing = parts.streams
    return app


class App(Starlette):
    """Operations are looked up; only what is none is tried one after another."""

    def __init__(self, paths: Paths[Endpoint], routes: Sequence[BaseRoute]) -> None:
        super().__init__(routes=routes)
        self.find = paths.find

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self.find(scope["path"]) if scope["type"] == "http" else None
        if found is not None:
            endpoint, scope["path_params"] = found
            await endpoint(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class _Socket:
    """Starlette takes classes and instances for ASGI applications, functions for handlers."""

    def __init__(self, run: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._run(scope, receive, send)


class _NothingHere:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        word = path.removeprefix("/v1/").partition("/")[0]
        plurals = [kind.plural for kind in KINDS.values()]
        hint = did_you_mean(word, plurals) if path.startswith("/v1/") else "GET /docs shows what there is"
        await send_problem(send, NotFound(f"there is nothing at {path[:200]}", hint=hint))


_nothing_here = _NothingHere()


def _documentation() -> list[Operation]:
    async def openapi(call: Call[None, None]) -> Text:
        return Text(await asyncio.to_thread(openapi_json))

    async def docs(call: Call[None, None]) -> Text:
        return Text(await asyncio.to_thread(page), "text/html; charset=utf-8", ((b"content-security-policy", POLICY),))

    return [
        Operation(
            method="GET",
            path="/openapi.json",
            name="openapi",
            summary="The OpenAPI document",
            tag="server",
            handler=openapi,
            open=True,
        ),
        Operation(
            method="GET", path="/docs", name="docs", summary="The documentation", tag="server", handler=docs, open=True
        ),
    ]


@cache
def openapi_json() -> bytes:
    """The document as it is served."""
    return msgspec.json.encode(document(OPERATIONS))
