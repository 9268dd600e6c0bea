"""`mandor logs`: the output of an instance."""

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.options import complete_names, connected, namespace_option, output_option, seconds
from mandor.errors import Conflict, NotFound, Unavailable

if TYPE_CHECKING:
    from mandor.client.sync import Client

BLOCK = 64 << 10


@click.command("logs")
@click.argument("name", shell_complete=complete_names("instances"))
@click.option("-f", "--follow", is_flag=True, help="Continue and show new lines.")
@click.option("-t", "--task", help="Task, if the instance has several.")
@click.option("--tail", type=click.IntRange(0), metavar="N", help="Only the last N lines.")
@click.option("--since", metavar="DURATION", help="Only lines newer than this, for example 5m or 2h.")
@click.option("--timestamps", is_flag=True, help="Prefix each line with its time.")
@output_option("text", "json")
@namespace_option
@connected
def logs_command(
    client: "Client",
    name: str,
    follow: bool,
    task: str | None,
    tail: int | None,
    since: str | None,
    timestamps: bool,
    output: str,
    namespace: str,
) -> None:
    """Show the logs of an instance.

    NAME is an instance, or a workload with a single instance. `-o json` prints lines of {at, stream, text}.
    """
    start = time.time() - seconds(since, "--since") if since is not None else None
    name = find_instance(client, name.removeprefix("instance/"), namespace)
    query = {
        "namespace": namespace,
        "task": task,
        "follow": follow or None,
        "tail": tail,
        "since": start,
        "timestamps": timestamps or None,
    }
    _copy(client, name, query, "application/x-ndjson" if output == "json" else "text/plain", follow=follow)


def _copy(client: "Client", name: str, query: dict[str, Any], accept: str, *, follow: bool) -> None:
    from http.client import HTTPException

    out = sys.stdout.buffer
    quiet = None if follow else 60.0
    try:
        with client.stream(f"/v1/instances/{name}/logs", query=query, accept=accept, quiet_seconds=quiet) as answer:
            while block := answer.read1(BLOCK):
                out.write(block)
                out.flush()
    except BrokenPipeError:
        raise
    except (OSError, HTTPException) as error:
        raise Unavailable(f"the log stream was interrupted: {str(error) or type(error).__name__}") from error


def find_instance(client: "Client", name: str, namespace: str) -> str:
    """Return the instance with this name, or the only instance of the workload with this name."""
    try:
        client.get("instances", name, namespace)
    except NotFound as error:
        items, _ = client.list("instances", {"namespace": namespace})
        own = [item["meta"]["name"] for item in items if item["spec"]["workload"] == name]
        if len(own) == 1:
            return str(own[0])
        if own:
            shown = ", ".join(own[:8]) + (" …" if len(own) > 8 else "")
            raise Conflict(f"{name} has {len(own)} instances", hint=f"choose one: {shown}") from None
        from mandor.lib.words import did_you_mean

        near = did_you_mean(name, [item["meta"]["name"] for item in items])
        raise NotFound(error.message, hint=near if near.startswith("did") else error.hint) from None
    return name
