"""Runtime commands of HAProxy, and the reading of its answers. Pure."""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from mandor.network.gateway.base import RouteKey, RouteTraffic
from mandor.network.gateway.haproxy.configuration import certificate_path, list_line
from mandor.network.gateway.haproxy.slots import Slot, Slots
from mandor.network.gateway.haproxy.word import map_line

_IN_MAINTENANCE = 0x7B
"""Bits of `srv_admin_state` for maintenance and drain; 0x04 says only that the configuration began with it."""
FREE_ADDRESS = ("127.0.0.1", 1)


def server_commands(backend: str, before: Slots, after: Slots) -> list[str]:
    """Return the commands that change the slots of a backend; both have the same number of slots.

    New endpoints are added before old ones are removed, so that the backend is never empty in between.
    """
    added, removed = [], []
    for place, (old, new) in enumerate(zip(before, after, strict=True)):
        server = f"{backend}/s{place}"
        if old == new:
            continue
        if new is None:
            removed.append(f"set server {server} state maint")
            continue
        if old is None or (old.address, old.port) != (new.address, new.port):
            if old is not None:
                added.append(f"set server {server} state maint")
            added.append(f"set server {server} addr {new.address} port {new.port}")
        added += [f"set server {server} weight {new.weight}", f"set server {server} state ready"]
    return [*added, *removed]


def map_commands(path: str, before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the commands that change a map."""
    commands = [f"add map {path} {map_line(key, after[key]).rstrip()}" for key in after if key not in before]
    commands += [f"del map {path} {key}" for key in before if key not in after]
    commands += [
        f"set map {path} {map_line(key, after[key]).rstrip()}"
        for key in after
        if key in before and before[key] != after[key]
    ]
    return commands


def certificate_commands(folder: Path, file: str, pem: str, *, new: bool) -> list[str]:
    """Return the commands that load a certificate; `new`: HAProxy has none of this name."""
    path = certificate_path(folder, file)
    lines = "\n".join(line for line in pem.splitlines() if line.strip())
    return [*([f"new ssl cert {path}"] if new else []), f"set ssl cert {path} <<\n{lines}\n", f"commit ssl cert {path}"]


def list_command(folder: Path, listed: str, file: str, hosts: frozenset[str]) -> str:
    """Return the command that adds a certificate to the list of certificates for HTTPS."""
    if not hosts:
        return f"add ssl crt-list {listed} {certificate_path(folder, file)}"
    return f"add ssl crt-list {listed} <<\n{list_line(folder, file, hosts)}\n"


# Answers.


def read_info(text: str) -> dict[str, str]:
    """Return the answer of `show info` by name."""
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in text.splitlines())}


def read_servers(text: str) -> dict[str, Slots]:
    """Return the slots of all backends from the answer of `show servers state`."""
    lines = text.strip().splitlines()
    if len(lines) < 2 or not lines[1].startswith("#"):
        return {}
    columns = lines[1].lstrip("# ").split()
    found: dict[str, dict[int, Slot | None]] = {}
    for line in lines[2:]:
        row = dict(zip(columns, line.split(), strict=False))
        place = int(row["srv_name"].removeprefix("s"))
        slot = Slot(row["srv_addr"], int(row["srv_port"]), int(row["srv_uweight"]))
        free = int(row["srv_admin_state"]) & _IN_MAINTENANCE
        found.setdefault(row["be_name"], {})[place] = None if free else slot
    return {backend: tuple(places[each] for each in range(len(places))) for backend, places in found.items()}


def read_map(text: str) -> dict[str, str]:
    """Return the answer of `show map FILE`."""
    rows = (line.split(" ", 2) for line in text.splitlines() if line.startswith("0x"))
    return {row[1]: row[2] for row in rows if len(row) == 3}


def read_list(text: str) -> dict[str, frozenset[str]]:
    """Return the host names by file name from the answer of `show ssl crt-list -n FILE`."""
    found: dict[str, frozenset[str]] = {}
    for line in text.splitlines():
        path, _, rest = line.strip().partition(" ")
        if not path or path.startswith("#"):
            continue
        file = path.rpartition(":")[0].rpartition("/")[2]
        found[file] = found.get(file, frozenset()) | frozenset(rest.split())
    return found


def read_workers(text: str) -> list[int]:
    """Return the processes of earlier configurations from the answer of `show proc` of the master."""
    _, _, old = text.partition("# old workers")
    rows = (line.split() for line in old.partition("# programs")[0].splitlines())
    return [int(row[0]) for row in rows if len(row) > 2 and row[0].isdecimal() and row[1] == "worker"]


def read_traffic(text: str) -> dict[RouteKey, RouteTraffic]:
    """Return the counters by route from the answer of `show stat`."""
    found: dict[RouteKey, RouteTraffic] = {}
    for row in csv.DictReader(text.removeprefix("# ").strip().splitlines()):
        namespace, colon, route = (row.get("pxname") or "").partition(":")
        if row.get("svname") == "BACKEND" and colon and namespace != "rate":
            found[RouteKey(namespace, route)] = RouteTraffic(
                requests=_number(row, "req_tot") or _number(row, "stot"),
                errors=_number(row, "hrsp_5xx"),
                sent_bytes=_number(row, "bin"),
                received_bytes=_number(row, "bout"),
            )
    return found


def _number(row: Mapping[str, str | None], column: str) -> int:
    return int(row.get(column) or 0)


def changed(before: Mapping[str, Slots], after: Mapping[str, Slots]) -> Iterator[tuple[str, Slots, Slots]]:
    """Yield the backends whose slots differ."""
    for backend, slots in after.items():
        if before.get(backend) != slots:
            yield backend, before[backend], slots


def left_by(before: Iterable[tuple[str, Slots]], wanted: Mapping[str, Sequence[Slot | None]]) -> list[str]:
    """Return the commands that remove endpoints from a process of an earlier configuration, unless still wanted."""
    commands = []
    for backend, slots in before:
        kept = {(each.address, each.port) for each in wanted.get(backend, ()) if each is not None}
        commands += [
            f"set server {backend}/s{place} state maint"
            for place, slot in enumerate(slots)
            if slot is not None and (slot.address, slot.port) not in kept
        ]
    return commands
