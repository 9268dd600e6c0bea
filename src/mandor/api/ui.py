"""Static files of the web panel; its pages load nothing from other origins."""

from functools import cache
from importlib.resources import files

from starlette.types import Receive, Scope, Send

from mandor.api.http.request import Reply, send_problem, send_reply
from mandor.errors import NotFound

POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    b"connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}


class Panel:
    """Serves the files under `/ui/`."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = scope["path_params"].get("rest", "") or "index.html"
        content = panel_files().get(name) if scope["method"] in {"GET", "HEAD"} else None
        if content is None:
            await send_problem(send, NotFound(f"the panel has no file {name[:200]}", hint="the panel starts at /ui/"))
            return
        headers = (
            (b"content-type", content_type(name).encode()),
            (b"content-security-policy", POLICY),
            (b"referrer-policy", b"no-referrer"),
            (b"cache-control", b"no-cache"),
        )
        await send_reply(send, Reply(200, headers, content))


class ToPanel:
    """Redirects `/` and `/ui` to the panel."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send_reply(send, Reply(307, ((b"location", b"/ui/"),), b""))


@cache
def panel_files() -> dict[str, bytes]:
    """Return all files of the panel by path."""
    root = files("mandor.ui") / "static"
    found = {each.name: each.read_bytes() for each in root.iterdir() if each.is_file()}
    pages = root / "pages"
    return found | {f"pages/{each.name}": each.read_bytes() for each in pages.iterdir() if each.is_file()}


def content_type(name: str) -> str:
    suffix = name[name.rfind(".") :]
    return f"{_TYPES[suffix]}; charset=utf-8"
