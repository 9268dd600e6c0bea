"""HaproxyGateway: applies the state of a gateway to a HAProxy that runs in master-worker mode."""

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from mandor.errors import MandorError, Unavailable
from mandor.network.detached import write_file
from mandor.network.gateway.base import CertificateKey, Gateway, GatewayRoute, GatewayState, RouteKey, RouteTraffic
from mandor.network.gateway.haproxy.configuration import (
    BUFFER_BYTES,
    CERTIFICATE_LIST,
    CERTIFICATES,
    CONFIG,
    MASTER_SOCKET,
    RUNTIME_MAPS,
    SOCKET,
    Configuration,
    HaproxySettings,
    backend_of,
    certificate_file,
    certificate_path,
    render,
)
from mandor.network.gateway.haproxy.control import ask, send
from mandor.network.gateway.haproxy.program import check_configuration
from mandor.network.gateway.haproxy.runtime import (
    certificate_commands,
    changed,
    left_by,
    list_command,
    map_commands,
    read_info,
    read_list,
    read_map,
    read_servers,
    read_traffic,
    read_workers,
    server_commands,
)
from mandor.network.gateway.haproxy.slots import Slots, assign

log = logging.getLogger(__name__)

RELOAD_SECONDS_MOST = 30.0
POLL_SECONDS = 0.02
REFUSED_MOST = 100
"""Routes that HAProxy refuses, after which a configuration is given up."""


@dataclass(slots=True)
class _Running:
    """What the HAProxy process has in effect."""

    pid: str
    generation: str
    slots: Mapping[str, Slots]
    maps: Mapping[str, Mapping[str, str]]
    listed: Mapping[str, frozenset[str]]


class HaproxyGateway(Gateway):
    """HAProxy reads its configuration from the folder when it starts; this driver keeps the files equal to what is in
    effect, so that a HAProxy that was killed continues with the last state.
    """

    name: ClassVar[str] = "haproxy"

    def __init__(self, settings: HaproxySettings, program: str = "haproxy") -> None:
        self._settings, self._program = settings, program
        self._folder = settings.folder
        self._running: _Running | None = None
        self._applying = asyncio.Lock()

    async def probe(self) -> None:
        await self._info()

    async def _info(self) -> Mapping[str, str]:
        return read_info(await ask(self._folder / SOCKET, "show info"))

    async def apply(self, state: GatewayState) -> Mapping[RouteKey, str]:
        async with self._applying:
            try:
                return await self._apply(state)
            except BaseException:
                self._running = None  # unknown: read it again
                raise

    async def _apply(self, state: GatewayState) -> Mapping[RouteKey, str]:
        running = await self._read()
        state, pems = self._with_certificates(state)
        state, refused = self._expressible(state)
        slots = {
            backend_of(each): assign(running.slots.get(backend_of(each), ()), each.endpoints) for each in state.routes
        }
        wanted = render(state, slots, self._settings)
        if wanted.generation == running.generation and self._listed_is_part(running, wanted, pems):
            await self._change(running, wanted, slots, pems)
        else:
            state, refused = await self._reload(state, slots, pems, refused)
        return refused

    async def traffic(self) -> Mapping[RouteKey, RouteTraffic]:
        return read_traffic(await ask(self._folder / SOCKET, "show stat"))

    async def close(self) -> None:
        self._running = None

    # The state in effect.

    async def _read(self) -> _Running:
        info = await self._info()
        pid, generation = info.get("Pid", ""), info.get("description", "")
        known = self._running
        if known is not None and (known.pid, known.generation) == (pid, generation):
            return known
        line = self._folder / SOCKET
        slots = read_servers(await ask(line, "show servers state"))
        maps = {file: read_map(await ask(line, f"show map {self._folder / file}")) for file in RUNTIME_MAPS}
        listed = read_list(await ask(line, f"show ssl crt-list -n {self._folder / CERTIFICATE_LIST}"))
        self._running = _Running(pid, generation, slots, maps, listed)
        return self._running

    def _with_certificates(self, state: GatewayState) -> tuple[GatewayState, dict[str, str]]:
        """Return the state with the certificates that exist, and their text by file name."""
        found: dict[str, str] = {}
        certificates: dict[CertificateKey, str | None] = {}
        for key, pem in state.certificates.items():
            text = pem if pem is not None else self._stored(certificate_file(key))
            if text:
                found[certificate_file(key)] = certificates[key] = text
        return replace(state, certificates=certificates), found

    def _stored(self, file: str) -> str:
        with contextlib.suppress(OSError, ValueError):
            return Path(certificate_path(self._folder, file)).read_text()
        return ""

    def _expressible(self, state: GatewayState) -> tuple[GatewayState, dict[RouteKey, str]]:
        """Return the state without routes that cannot be expressed safely, and the reasons."""
        refused: dict[RouteKey, str] = {}
        with contextlib.suppress(ValueError):
            render(state, {backend_of(each): assign((), each.endpoints) for each in state.routes}, self._settings)
            return state, refused
        for route in state.routes:
            try:
                render(_alone(state, route), {backend_of(route): assign((), route.endpoints)}, self._settings)
            except ValueError as error:
                refused[route.key] = str(error)
        return _without(state, refused), refused

    def _listed_is_part(self, running: _Running, wanted: Configuration, pems: Mapping[str, str]) -> bool:
        """Return whether the runtime API can change the certificates: it adds and replaces them, and removes none."""
        return all(wanted.hosts.get(file) == hosts for file, hosts in running.listed.items()) and all(
            len(pem) < BUFFER_BYTES - 2048 for pem in pems.values()
        )

    # Changes without a reload.

    async def _change(
        self, running: _Running, wanted: Configuration, slots: Mapping[str, Slots], pems: Mapping[str, str]
    ) -> None:
        line, folder = self._folder / SOCKET, self._folder
        differences = list(changed(running.slots, slots))
        commands = [each for difference in differences for each in server_commands(*difference)]
        for file in RUNTIME_MAPS:
            commands += map_commands(str(folder / file), running.maps[file], wanted.maps[file])
        answers = await send(line, commands)
        if differences:
            seen = read_servers(await ask(line, "show servers state"))
            wrong = next((backend for backend, _, after in differences if seen.get(backend) != after), None)
            if wrong is not None:
                raise Unavailable(f"HAProxy has other endpoints of {wrong} than it was sent: {' '.join(answers)[:500]}")
            await self._change_earlier_workers(slots)
        for file, pem in pems.items():
            new = file in wanted.hosts and file not in running.listed
            if new or self._stored(file) != pem:
                await self._load(file, pem, wanted, new=new)
        self._running = _Running(running.pid, running.generation, slots, wanted.maps, wanted.hosts)
        if commands or wanted.hosts != running.listed:
            self._write(wanted)

    async def _load(self, file: str, pem: str, wanted: Configuration, *, new: bool) -> None:
        line, folder = self._folder / SOCKET, self._folder
        known = certificate_path(folder, file) in (await ask(line, "show ssl cert")).split()
        answer = ""
        for command in certificate_commands(folder, file, pem, new=not known):
            answer = await ask(line, command)
        if "Success" not in answer:
            raise Unavailable(f"HAProxy refuses the certificate {file}: {answer.strip()[:300]}")
        self._write_certificate(file, pem)
        if new:
            answer = await ask(line, list_command(folder, str(folder / CERTIFICATE_LIST), file, wanted.hosts[file]))
            if "Success" not in answer:
                raise Unavailable(f"HAProxy refuses the host names of the certificate {file}: {answer.strip()[:300]}")

    async def _change_earlier_workers(self, slots: Mapping[str, Slots]) -> None:
        """Remove endpoints from processes that still finish connections of an earlier configuration."""
        master = self._folder / MASTER_SOCKET
        with contextlib.suppress(MandorError):
            for pid in read_workers(await ask(master, "show proc")):
                seen = read_servers(await ask(master, f"@!{pid} show servers state"))
                commands = left_by(seen.items(), slots)
                await send(master, [f"@!{pid} {each}" for each in commands])

    # Changes with a reload.

    async def _reload(
        self, state: GatewayState, slots: Mapping[str, Slots], pems: Mapping[str, str], refused: dict[RouteKey, str]
    ) -> tuple[GatewayState, dict[RouteKey, str]]:
        """Load a new configuration, without the routes that HAProxy refuses; connections stay open."""
        await self._check_ports(state, refused)
        state = _without(state, refused)
        for file, pem in pems.items():
            self._write_certificate(file, pem)
        wanted = render(state, slots, self._settings)
        while True:
            problem = await check_configuration(self._program, self._folder, wanted)
            if problem is None:
                break
            culprit = next((each for each in state.routes if backend_of(each) == problem.backend), None)
            if culprit is None or len(refused) >= REFUSED_MOST:
                raise Unavailable(f"HAProxy refuses the configuration: {problem.message}")
            refused[culprit.key] = problem.message
            state = _without(state, refused)
            wanted = render(state, slots, self._settings)
        self._write(wanted)
        await self._load_configuration(wanted.generation, (await self._info()).get("Pid", ""))
        self._running = None
        await self._read()
        await self._change_earlier_workers(slots)
        self._remove_certificates(pems)
        return state, refused

    async def _load_configuration(self, generation: str, pid: str) -> None:
        with contextlib.suppress(Unavailable):
            await ask(self._folder / MASTER_SOCKET, "reload")  # the master closes the connection when it begins
        loop = asyncio.get_running_loop()
        deadline = loop.time() + RELOAD_SECONDS_MOST
        while loop.time() < deadline:
            await asyncio.sleep(POLL_SECONDS)
            with contextlib.suppress(Unavailable):
                info = await self._info()
                if info.get("description") == generation and info.get("Pid") != pid:
                    return
        raise Unavailable(
            f"HAProxy did not load its new configuration in {RELOAD_SECONDS_MOST:g} s; the former one stays in effect",
            hint="the log of the proxy has the reason",
        )

    async def _check_ports(self, state: GatewayState, refused: dict[RouteKey, str]) -> None:
        """Refuse TCP routes whose port is in use by another program: HAProxy would load nothing at all."""
        held = await ask(self._folder / SOCKET, "show stat")
        own = {each.port for each in (*self._settings.http, *self._settings.https)}
        for route in state.routes:
            port = route.spec.port
            if route.spec.protocol != "tcp" or port is None or f"\ntcp:{port}," in held:
                continue
            if port in own or not _is_free(self._settings.tcp_address, port):
                refused[route.key] = f"port {port} of the gateway is in use by another program"

    # Files.

    def _write(self, wanted: Configuration) -> None:
        for file in wanted.maps:
            write_file(self._folder / file, wanted.map_text(file).encode())
        write_file(self._folder / CERTIFICATE_LIST, wanted.list_text(self._folder).encode())
        write_file(self._folder / CONFIG, wanted.config.encode())

    def _write_certificate(self, file: str, pem: str) -> None:
        path = Path(certificate_path(self._folder, file))
        path.parent.mkdir(mode=0o700, exist_ok=True)
        if self._stored(file) != pem:
            write_file(path, pem.encode())

    def _remove_certificates(self, kept: Mapping[str, str]) -> None:
        with contextlib.suppress(OSError):
            for file in os.listdir(self._folder / CERTIFICATES):
                if file not in kept:
                    (self._folder / CERTIFICATES / file).unlink()


def _alone(state: GatewayState, route: GatewayRoute) -> GatewayState:
    return GatewayState((route,), {each: "" for each in state.certificates if each == route.certificate})


def _without(state: GatewayState, refused: Mapping[RouteKey, str]) -> GatewayState:
    return replace(state, routes=tuple(each for each in state.routes if each.key not in refused))


def _is_free(address: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            line.bind((address, port))
        except OSError:
            return False
    return True
