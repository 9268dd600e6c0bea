"""Runs a gateway: the program that keeps its proxy up to date, and the proxy itself."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from pathlib import Path

import uvloop
from msgspec import Struct

from mandor.agent.gateway import GatewayKeeper, HttpGatewayLink
from mandor.client.aio import Client
from mandor.errors import Invalid
from mandor.lib import logs
from mandor.lib.clock import SystemClock
from mandor.network.endpoints import Viewpoint
from mandor.network.gateway.haproxy import HaproxyGateway
from mandor.network.gateway.haproxy.configuration import HaproxySettings, Listen
from mandor.network.gateway.haproxy.program import start
from mandor.store.remote import RemoteStore

log = logging.getLogger(__name__)


class GatewaySettings(Struct, frozen=True, kw_only=True):
    """Options of a gateway."""

    directory: str
    haproxy: str = "haproxy"
    listen: str = ""
    """Address of the ports; empty: all addresses."""
    http: int = 80
    https: int = 443
    """0: no HTTPS."""
    https_public: int = 0
    """Port of HTTPS in redirects; 0: the same as `https`."""

    def proxy(self) -> HaproxySettings:
        address = self.listen or ("::" if socket.has_dualstack_ipv6() else "0.0.0.0")
        try:
            https = (Listen(address, self.https),) if self.https else ()
            found = HaproxySettings(
                folder=Path(self.directory).absolute(),
                http=(Listen(address, self.http),),
                https=https,
                tcp_address=address,
                https_port=self.https_public or self.https,
            )
            assert found.http[0].text
        except ValueError as error:
            raise Invalid(f"{address!r} is not an IP address", path="--listen") from error
        return found


def run_proxy(settings: GatewaySettings) -> None:
    """Replace this process by the proxy."""
    start(settings.proxy(), settings.haproxy)


def run(settings: GatewaySettings, servers: tuple[str, ...], token: str, ca_file: str) -> None:
    """Keep the proxy up to date until a signal; it keeps running afterwards."""
    logs.set_up("console", "info")
    uvloop.run(_serve(settings, servers, token, ca_file))


async def _serve(settings: GatewaySettings, servers: tuple[str, ...], token: str, ca_file: str) -> None:
    name = os.environ.get("MANDOR_INSTANCE") or socket.gethostname()
    view = Viewpoint(os.environ.get("MANDOR_NODE", ""), os.environ.get("MANDOR_NODE_ADDRESS", "127.0.0.1"))
    gateway = HaproxyGateway(settings.proxy(), settings.haproxy)
    async with Client(servers, token=token, ca_file=ca_file) as client:
        keeper = GatewayKeeper(RemoteStore(client), HttpGatewayLink(client, name), gateway, SystemClock(), view)
        working = asyncio.ensure_future(keeper.run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, working.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await working
        await gateway.close()
