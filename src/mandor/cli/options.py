"""Options shared by several commands, and the connection to the cluster."""

import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from mandor.client.sync import Asking, Client

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_SERVER = "http://127.0.0.1:8080"
TRACED = ("MANDOR_OTLP_TRACES", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Environment variables that enable tracing; without them, no tracing code is loaded."""
DEV_URL = Path(".mandor/url")
"""File in which `mandor dev` stores its URL."""


def connected(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the connection options to a command and pass the client as its first argument."""

    @click.option("--server", "own_server", metavar="URL[,URL…]", help="URLs of the API servers.")
    @click.option("--token", "own_token", help="API token; prefer the variable MANDOR_TOKEN.")
    @click.option("--ca", "own_ca", metavar="FILE", help="CA certificates for https, in PEM format.")
    @wraps(command)
    def with_client(
        *args: Any, own_server: str | None, own_token: str | None, own_ca: str | None, **kwargs: Any
    ) -> Any:
        shared: dict[str, str | None] = click.get_current_context().find_root().obj or {}
        client = connect(
            own_server or shared.get("server"), own_token or shared.get("token"), own_ca or shared.get("ca")
        )
        return command(client, *args, **kwargs)

    return with_client


def connect(server: str | None, token: str | None, ca: str | None) -> "Client":
    from mandor.cli.progress import waits
    from mandor.client.sync import Client

    servers = [each for each in (server or _default_server()).split(",") if each.strip()]
    return Client(servers, token=token or _login_of(servers), ca_file=ca or "", waits=waits, asking=_traced())


def _login_of(servers: list[str]) -> str:
    """Return the ID token of `mandor login` for these servers, renewed if it expires soon; empty if there is none."""
    from mandor.client.logins import config_folder, read_login, write_login
    from mandor.client.sync import parse_server

    if click.get_current_context().command.name in {"login", "logout"} or not config_folder().is_dir():
        return ""
    server = str(parse_server(servers[0]))
    login = read_login(server)
    if login is None:
        return ""
    import time

    from mandor.client.login import fresh_token

    token, changed = fresh_token(login, time.time())
    if changed is not None:
        write_login(server, changed)
    return token


def _traced() -> "Asking | None":
    if not any(os.environ.get(name) for name in TRACED):
        return None
    from mandor.cli.tracing import command_trace

    here = click.get_current_context()
    trace = command_trace(here.command_path)
    if trace is None:
        return None
    here.find_root().call_on_close(trace.close)
    return trace.asking


def _default_server() -> str:
    try:
        return DEV_URL.read_text(encoding="utf-8").strip() or DEFAULT_SERVER
    except (OSError, UnicodeDecodeError):
        return DEFAULT_SERVER


def namespace_option(command: F) -> F:
    return click.option(
        "-n",
        "--namespace",
        default="default",
        envvar="MANDOR_NAMESPACE",
        show_default=True,
        help="Namespace of the objects.",
    )(command)


def all_namespaces_option(command: F) -> F:
    return click.option("-A", "--all-namespaces", is_flag=True, help="Include all namespaces.")(command)


def output_option(*formats: str) -> Callable[[F], F]:
    choices = formats or ("table", "wide", "json", "yaml", "name")
    return click.option(
        "-o", "--output", type=click.Choice(choices), default=choices[0], show_default=True, help="Output format."
    )


def timeout_option(command: F) -> F:
    return click.option("--timeout", default="5m", show_default=True, help="Maximum time for --wait.")(command)


def seconds(text: str, option: str = "--timeout") -> float:
    """Parse a duration such as `5m`."""
    from mandor.lib.quantity import Seconds

    try:
        return float(Seconds.parse(text))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def complete_kinds(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from mandor.cli.kinds import KINDS

    return [kind.plural for kind in KINDS if kind.plural.startswith(incomplete)]


def complete_kind_or_name(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    words = ctx.params.get(param.name or "") or ()
    if not words:
        return complete_kinds(ctx, param, incomplete)
    from mandor.cli.kinds import find_kind

    return _names(ctx, find_kind(words[0]).plural, incomplete)


def complete_names(plural: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    return lambda ctx, param, incomplete: _names(ctx, plural, incomplete)


def _names(ctx: click.Context, plural: str, incomplete: str) -> list[str]:
    """List names for shell completion; short timeouts and suppressed errors, so that the shell never hangs."""
    from mandor.client.sync import Client
    from mandor.errors import MandorError

    shared: dict[str, str | None] = ctx.find_root().params
    servers = (ctx.params.get("own_server") or shared.get("server") or _default_server()).split(",")
    try:
        client = Client(
            servers,
            token=shared.get("token") or "",
            ca_file=shared.get("ca") or "",
            connect_seconds=1,
            answer_seconds=2,
        )
        items, _ = client.list(plural, {"namespace": None if plural == "nodes" else ctx.params.get("namespace")})
    except (MandorError, OSError):
        return []
    return [name for item in items if (name := item["meta"]["name"]).startswith(incomplete)]
