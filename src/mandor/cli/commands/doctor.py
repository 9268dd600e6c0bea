"""`mandor doctor`: checks the cluster for problems."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from mandor import __version__
from mandor.cli import checkup
from mandor.cli.checkup import Finding, Level
from mandor.cli.options import connected, output_option
from mandor.cli.output import show_data
from mandor.errors import Forbidden, MandorError, NotFound, Unavailable

if TYPE_CHECKING:
    from mandor.client.sync import Client, Server

LOOK_AGAIN_SECONDS = 0.5
MARKS = {Level.OK: ("ok     ", "green"), Level.WARNING: ("warning", "yellow"), Level.PROBLEM: ("problem", "red")}


@click.command("doctor")
@output_option("text", "json", "yaml")
@connected
def doctor_command(client: "Client", output: str) -> int:
    """Check the cluster for problems, each with the next step.

    Checks servers and their store, leaders, clocks, certificates (also those of routes), keys, versions, nodes,
    engines, node pools, tokens, pending instances, and instances that are held after a restore. It changes nothing. The
    exit status is 1 if there is a problem, 0 with warnings only. Objects that you may not read are not checked.
    """
    found = list(_examine(client))
    if output != "text":
        show_data([each._asdict() for each in found], output)
    else:
        _show(found)
    return int(any(each.level is Level.PROBLEM for each in found))


def _show(found: list[Finding]) -> None:
    for each in found:
        mark, colour = MARKS[each.level]
        click.echo(f"{click.style(mark, fg=colour)}  {each.about}: {each.says}")
        if each.do:
            click.echo(f"         {each.do}")
    warnings, problems = (sum(each.level is level for each in found) for level in (Level.WARNING, Level.PROBLEM))
    click.echo(f"{_count(problems, 'problem')}, {_count(warnings, 'warning')}", err=True)


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' if number != 1 else ''}"


def _examine(client: "Client") -> Iterator[Finding]:
    servers = [(server, list(_of_server(client, server))) for server in sorted(client.servers, key=str)]
    for _, findings in servers:
        yield from findings
    if all(any(each.level is Level.PROBLEM for each in findings) for _, findings in servers):
        return  # No server can answer the rest.
    version = str(client.read("/v1")["version"])
    looks: list[tuple[str, Callable[[list[dict[str, Any]]], Iterator[Finding]]]] = [
        ("servers", checkup.of_servers),
        ("leases", lambda items: checkup.of_leases(items, _renewed(client, items), [str(each) for each, _ in servers])),
        ("nodes", lambda items: checkup.of_nodes(items, version)),
        ("instances", lambda items: checkup.of_instances(items, time.time())),
        ("node-pools", lambda items: checkup.of_pools(items, time.time())),
        ("tokens", lambda items: checkup.of_tokens(items, time.time())),
        ("webhooks", lambda items: checkup.of_receivers("webhook", items)),
        ("event-buses", lambda items: checkup.of_receivers("event-bus", items)),
        ("inventories", checkup.of_inventories),
        ("routes", lambda items: checkup.of_routes(items, time.time())),
    ]
    with suppress(NotFound):  # Plain HTTP on loopback, or a server of an earlier version.
        yield from checkup.of_authority(client.read("/v1/ca")["certificates"], time.time())
    for plural, look in looks:
        try:
            items, _ = client.list(plural)
        except Forbidden:
            yield Finding(Level.OK, plural, "not checked: you may not read them")
            continue
        except NotFound:
            yield Finding(Level.OK, plural, f"not checked: a server with version {version} does not support them")
            continue
        yield from look(items)


def _of_server(client: "Client", server: "Server") -> Iterator[Finding]:
    try:
        health = client.examine(server, "/readyz")
        about = client.examine(server, "/v1").body
    except Unavailable as error:
        do = error.hint or "check that it and its store are running; see its log"
        yield Finding(Level.PROBLEM, f"server {server}", f"cannot serve: {error.message}", do)
    except MandorError as error:
        yield Finding(Level.PROBLEM, f"server {server}", error.message, error.hint or "")
    else:
        yield from checkup.of_server(str(server), health, str(about["version"]), __version__, time.time())


def _renewed(client: "Client", leases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the leases after every held lease was renewed, or had time to be."""
    was = {each["meta"]["name"]: each["spec"].get("renewals", 0) for each in leases}
    until = time.monotonic() + max((each["spec"].get("seconds", 0.0) for each in leases), default=0.0)
    while True:
        now, _ = client.list("leases")
        still = [each for each in now if was.get(each["meta"]["name"]) == each["spec"].get("renewals", 0)]
        if not any(each["meta"]["name"].startswith(("leader-", "server-")) for each in still):
            return now
        if time.monotonic() > until:
            return now
        time.sleep(LOOK_AGAIN_SECONDS)
