"""`mandor port-forward`: local ports that lead to instances."""

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

import click

from mandor.cli.options import connected, namespace_option
from mandor.errors import MandorError

if TYPE_CHECKING:
    from mandor.client.forward import Choose
    from mandor.client.sync import Client


class PortPair(NamedTuple):
    local: int
    """0: a free port."""
    remote: str


@click.command("port-forward")
@click.option("--address", default="127.0.0.1", show_default=True, help="Local address to listen on.")
@namespace_option
@click.argument("target")
@click.argument("ports", metavar="[LOCAL:]REMOTE...", nargs=-1, required=True)
@connected
def port_forward_command(client: "Client", target: str, ports: tuple[str, ...], address: str, namespace: str) -> None:
    """Forward local ports to an instance or a service until interrupted.

    TARGET is an instance, a workload or service/NAME; REMOTE is the name or number of a TCP port. With a workload or a
    service each connection goes to a ready instance. `:REMOTE` chooses a free local port.

    \b
    mandor port-forward web-0 8080:80
    mandor port-forward service/shop 8080:http
    mandor port-forward db :5432
    """
    pairs = [parse_pair(each) for each in ports]
    asyncio.run(_run(client, target, pairs, address, namespace))


def parse_pair(text: str) -> PortPair:
    """Parse `8080:http`, `:http`, `8080` or `http`."""
    local, colon, remote = text.rpartition(":")
    if not colon:
        local = remote if remote.isdecimal() else ""
    if not remote or (local and not (local.isdecimal() and 0 < int(local) < 65536)):
        raise click.BadParameter(f"{text!r} is not [LOCAL:]REMOTE, for example 8080:http", param_hint="ports")
    return PortPair(int(local or 0), remote)


async def _run(client: "Client", target: str, pairs: list[PortPair], address: str, namespace: str) -> None:
    from mandor.cli.reaching import chooser
    from mandor.client import aio
    from mandor.client.forward import PortForward

    servers = [str(server) for server in client.servers]
    async with AsyncExitStack() as stack:
        caller = aio.Client(servers, token=client.token, ca_file=client.ca_file, pinned=client.authority())
        await stack.enter_async_context(caller)
        for pair in pairs:
            choose: Choose = chooser(client, target, pair.remote, namespace)
            first = await choose()
            forward = PortForward(
                caller, choose, namespace=namespace, address=address, port=pair.local, failed=_show_failure
            )
            await stack.enter_async_context(forward)
            shown = f"[{address}]" if ":" in address else address
            click.echo(f"{shown}:{forward.port} -> {first.instance} port {first.port}", err=True)
        await asyncio.Event().wait()


def _show_failure(error: MandorError) -> None:
    click.echo(f"{error.message}{f' ({error.hint})' if error.hint else ''}", err=True)
