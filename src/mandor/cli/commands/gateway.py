"""`mandor gateway`: the two tasks of a gateway."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mandor.cli.options import DEFAULT_SERVER

F = TypeVar("F", bound=Callable[..., Any])


@click.group("gateway")
def gateway_command() -> None:
    """Run a gateway, which serves routes."""


def _proxy_options(command: F) -> F:
    options = [
        click.option(
            "--dir",
            "directory",
            metavar="DIR",
            envvar="MANDOR_VOLUME_STATE",
            required=True,
            help="Folder of the configuration and the sockets, shared by both tasks.",
        ),
        click.option(
            "--haproxy", default="haproxy", show_default=True, metavar="PROGRAM", help="HAProxy 2.6 or newer."
        ),
        click.option("--listen", default="", metavar="ADDRESS", help="Address of all ports.  [default: all addresses]"),
        click.option(
            "--http", type=click.IntRange(1, 65535), default=80, show_default=True, metavar="PORT", help="Port of HTTP."
        ),
        click.option(
            "--https",
            type=click.IntRange(0, 65535),
            default=443,
            show_default=True,
            metavar="PORT",
            help="Port of HTTPS; 0: none.",
        ),
        click.option(
            "--https-public",
            type=click.IntRange(0, 65535),
            default=0,
            metavar="PORT",
            help="Port of HTTPS in redirects, if clients use another one.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


@gateway_command.command("proxy")
@_proxy_options
def proxy(**given: Any) -> None:
    """Start HAProxy with the last configuration.

    `mandor gateway run` changes the configuration while HAProxy runs; both need the same options.
    """
    from mandor.roots.gateway import GatewaySettings, run_proxy

    run_proxy(GatewaySettings(**given))


@gateway_command.command("run")
@_proxy_options
@click.option("--server", "own_server", metavar="URL[,URL…]", help="URLs of the API servers.")
@click.option("--ca", "own_ca", metavar="FILE", help="CA certificates for https, in PEM format.")
def run(own_server: str | None, own_ca: str | None, **given: Any) -> None:
    """Keep HAProxy up to date with routes, services and instances.

    The token in MANDOR_TOKEN needs the role `gateway`.
    """
    from mandor.roots import gateway

    shared: dict[str, str | None] = click.get_current_context().find_root().obj or {}
    servers = tuple(each for each in (own_server or shared.get("server") or DEFAULT_SERVER).split(",") if each.strip())
    ca_file = own_ca or shared.get("ca") or ""
    gateway.run(gateway.GatewaySettings(**given), servers, shared.get("token") or "", ca_file)
