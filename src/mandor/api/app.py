"""The ASGI application: all operations by path, the documentation and the web panel."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import cache, partial

import msgspec
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.types import Receive, Scope, Send

from mandor.api.endpoint import Endpoint
from mandor.api.http.path_router import PathRouter
from mandor.api.http.request import send_problem
from mandor.api.openapi import document, page
from mandor.api.operation import Call, Operation, Text
from mandor.api.parts import ApiParts
from mandor.api.routes import (
    access,
    apply,
    authority,
    backup,
    credentials,
    debug,
    explain,
    forward,
    gateways,
    identity,
    images,
    meta,
    nodes,
    objects,
    plan,
    pools,
    rebalance,
    receivers,
    rollout,
    secret_keys,
    sessions,
    simulate,
    spares,
    tasks,
    tokens,
    traffic,
    watch,
)
from mandor.api.ui import Panel, ToPanel
from mandor.errors import NotFound
from mandor.lib.words import did_you_mean
from mandor.model.codec import KINDS

# Where several paths match, the first one is used.
OPERATIONS: list[Operation] = [
    *nodes.OPERATIONS,
    *credentials.OPERATIONS,
    *pools.OPERATIONS,
    *authority.OPERATIONS,
    *watch.OPERATIONS,
    *backup.OPERATIONS,
    *debug.OPERATIONS,
    *meta.OPERATIONS,
    *access.OPERATIONS,
    *identity.OPERATIONS,
    *gateways.OPERATIONS,
    *apply.OPERATIONS,
    *plan.OPERATIONS,
    *simulate.OPERATIONS,
    *rebalance.OPERATIONS,
    *tasks.OPERATIONS,
    *spares.OPERATIONS,
    *traffic.OPERATIONS,
    *explain.OPERATIONS,
    *rollout.OPERATIONS,
    *receivers.OPERATIONS,
    *secret_keys.OPERATIONS,
    *tokens.OPERATIONS,
    *sessions.OPERATIONS,
    *objects.OPERATIONS,
]


POLICY = b"default-src 'self' 'unsafe-inline'; img-src 'self' data:; connect-src 'self'; frame-ancestors 'none'"
"""Content security policy of the documentation page: nothing is loaded from other origins."""


def build_app(parts: ApiParts) -> "App":
    """Return the ASGI application of the whole API."""
    grouped: dict[str, list[Operation]] = {}
    for each in [*OPERATIONS, *_documentation()]:
        grouped.setdefault(each.path, []).append(each)
    endpoints = {path: Endpoint(parts, group) for path, group in grouped.items()}
    routes: list[BaseRoute] = [Route(path, endpoint) for path, endpoint in endpoints.items()]
    sockets = sessions.WEBSOCKETS | images.WEBSOCKETS | forward.WEBSOCKETS
    routes += [WebSocketRoute(path, _Socket(partial(run, parts))) for path, run in sockets.items()]
    routes += [Route("/", ToPanel()), Route("/ui", ToPanel()), Route("/ui/{rest:path}", Panel())]
    routes.append(Route("/{rest:path}", _unknown_path))

    app = App(PathRouter(endpoints), routes)
    app.router.redirect_slashes = False
    return app


class App(Starlette):
    """Looks operations up by path; Starlette's routes are tried only for other paths."""

    def __init__(self, router: PathRouter[Endpoint], routes: Sequence[BaseRoute]) -> None:
        super().__init__(routes=routes)
        self.find = router.find

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = self.find(scope["path"]) if scope["type"] == "http" else None
        if found is not None:
            endpoint, scope["path_params"] = found
            await endpoint(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)


class _Socket:
    """Makes an ASGI application of a function: Starlette would take the function for a request handler."""

    def __init__(self, run: Callable[[Scope, Receive, Send], Awaitable[None]]) -> None:
        self._run = run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._run(scope, receive, send)


class _UnknownPath:
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        word = path.removeprefix("/v1/").partition("/")[0]
        plurals = [kind.plural for kind in KINDS.values()]
        hint = did_you_mean(word, plurals) if path.startswith("/v1/") else "GET /docs lists all paths"
        await send_problem(send, NotFound(f"the path {path[:200]} does not exist", hint=hint))


_unknown_path = _UnknownPath()


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
    """Return the OpenAPI document as it is served."""
    return msgspec.json.encode(document(OPERATIONS))
