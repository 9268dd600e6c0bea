"""Reads capacity, facts, engines and address of this machine."""

import logging
import platform
import socket
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psutil

from mandor import __version__
from mandor.engines.base import Engine
from mandor.errors import MandorError, NotFound
from mandor.lib.bounded import bounded
from mandor.lib.loopback import is_loopback
from mandor.lib.quantity import Size
from mandor.lib.tasks import side_by_side
from mandor.model.log_sink import SinkHealth
from mandor.model.node import Capabilities, NodeStatus, PortRange
from mandor.model.resources import Resources, page_bytes

log = logging.getLogger(__name__)

_ARCH = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_PROC = Path("/proc")
_HUGE_PAGES = Path("/sys/kernel/mm/hugepages")
PROBE_SECONDS = 15.0
IMAGES_MOST = 50
"""Largest number of images in the node's status."""


def capacity(data: Path, pages: Path = _HUGE_PAGES) -> Resources:
    """Return the processors, memory and huge pages of the machine, and the size of the disk of `data`.

    Huge pages are devices such as `hugepages-2mi`, counted in pages; their memory is not counted as memory.
    """
    huge = huge_pages(pages)
    taken = sum(count * (page_bytes(name) or 0) for name, count in huge.items())
    return Resources(
        cpu_milli=1000 * (psutil.cpu_count() or 1),
        memory_bytes=max(0, psutil.virtual_memory().total - taken),
        disk_bytes=psutil.disk_usage(str(data)).total,
        devices=huge,
    )


def huge_pages(folder: Path = _HUGE_PAGES) -> dict[str, int]:
    """Return the number of reserved huge pages by the name of their size; sizes without pages are left out."""
    found: dict[str, int] = {}
    for each in sorted(folder.glob("hugepages-*kB")):
        try:
            count = int((each / "nr_hugepages").read_text(encoding="ascii"))
            size = Size(1024 * int(each.name.removeprefix("hugepages-").removesuffix("kB")))
        except (OSError, ValueError):
            continue
        if count > 0:
            found[f"hugepages-{size}".lower()] = count
    return found


@cache
def boot_id() -> str:
    """Return the kernel's boot id; empty: the kernel has none."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def facts() -> dict[str, str]:
    machine = platform.machine()
    found = {
        "os": platform.system().lower(),
        "arch": _ARCH.get(machine, machine),
        "kernel.version": platform.release(),
        "hostname": socket.gethostname(),
        "cpu.count": str(psutil.cpu_count() or 1),
        "cpu.model": _cpu_model(),
        "boot": boot_id(),
        **_distribution(),
    }
    return {name: value for name, value in found.items() if value}


@cache
def _cpu_model() -> str:
    try:
        lines = (_PROC / "cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model", "Hardware")))
    return next((name for name in names if name), "")


def _distribution() -> dict[str, str]:
    try:
        found = platform.freedesktop_os_release()
    except OSError:
        return {}
    return {"os.name": found.get("ID", ""), "os.version": found.get("VERSION_ID", "")}


def local_address(server: str) -> str:
    """Return the address that this machine uses to reach the server; nothing is sent."""
    target = urlsplit(server if "//" in server else f"//{server}")
    host = target.hostname or "127.0.0.1"
    try:
        kind = socket.getaddrinfo(host, target.port or 80, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind[0], socket.SOCK_DGRAM) as probe:
            probe.connect(kind[4])
            return str(probe.getsockname()[0])
    except OSError:
        return ""


ELSEWHERE = "192.0.2.1"
"""An address of no machine, reserved for documentation; the route to it leads out of this machine."""


def machine_address() -> str:
    """Return an address of this machine that containers on it can reach; nothing is sent.

    Without a route to other machines, it is the address of another interface, such as the bridge of a container engine.
    Empty: there is only the loopback interface.
    """
    found = local_address(ELSEWHERE)
    if found and not is_loopback(found):
        return found
    addresses = (each for interface in psutil.net_if_addrs().values() for each in interface)
    outward = (each.address for each in addresses if each.family == socket.AF_INET and not is_loopback(each.address))
    return next(outward, "")


async def capabilities(engines: Mapping[str, Engine], known: Collection[str] = ()) -> dict[str, Capabilities]:
    """Return the capabilities of each engine; an engine that does not answer is not `up`.

    An engine that raises `NotFound` is not installed and is left out, unless it is in `known`.
    """
    found = await side_by_side([_probe(name, engine, name in known) for name, engine in engines.items()])
    return {name: each for name, each in zip(engines, found, strict=True) if each is not None}


async def _probe(name: str, engine: Engine, known: bool) -> Capabilities | None:
    try:
        return await bounded(PROBE_SECONDS, engine.probe())
    except NotFound as error:
        return Capabilities(up=False, message=str(error)) if known else None
    except TimeoutError:
        return Capabilities(up=False, message=f"no answer within {PROBE_SECONDS:.0f}s")
    except (MandorError, OSError) as error:
        return Capabilities(up=False, message=str(error) or type(error).__name__)
    except Exception as error:  # A third-party engine may raise anything.
        log.exception("probing the engine %s raised an exception", name)
        return Capabilities(up=False, message=f"{type(error).__name__}: {error}")


async def images(engines: Iterable[Engine]) -> dict[str, int]:
    """Return the largest images of the engines and their sizes in bytes; the scheduler prefers nodes that have them."""
    found: dict[str, int] = {}
    for each in await side_by_side([_images(engine) for engine in engines]):
        for name, size in each.items():
            found[name] = max(size, found.get(name, 0))
    largest = sorted(found.items(), key=lambda item: (-item[1], item[0]))[:IMAGES_MOST]
    return dict(sorted(largest))


async def _images(engine: Engine) -> Mapping[str, int]:
    try:
        return await bounded(PROBE_SECONDS, engine.images())
    except Exception as error:  # A third-party engine may raise anything.
        log.warning("engine %s cannot list its images: %s", engine.name, str(error) or type(error).__name__)
        return {}


def node_status(
    before: NodeStatus,
    *,
    address: str,
    has: Resources,
    engines: Mapping[str, Capabilities],
    images: Mapping[str, int],
    ports: PortRange,
    usage: Resources | None,
    pressure: tuple[str, ...],
    facts: Mapping[str, str],
    log_sinks: Mapping[str, SinkHealth],
) -> NodeStatus:
    """Return the status with the agent's fields replaced; fields of the node controller are kept.

    An engine that is down keeps its last capabilities: it may still run units.
    """
    shown = {name: _shown(each, before.engines.get(name)) for name, each in engines.items()}
    return msgspec.structs.replace(
        before,
        address=address,
        capacity=has,
        engines=shown,
        images=dict(images),
        ports=ports,
        usage=before.usage if usage is None else usage,
        pressure=pressure,
        facts=dict(facts),
        log_sinks=dict(log_sinks),
        agent_version=__version__,
    )


def _shown(now: Capabilities, before: Capabilities | None) -> Capabilities:
    if now.up or before is None:
        return now
    return msgspec.structs.replace(before, up=False, message=now.message)
