"""`mandor drain`: empties nodes, and tells how far that is."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.commands.node import get_nodes, node_argument
from mandor.cli.options import connected, seconds
from mandor.cli.progress import Progress
from mandor.errors import Invalid, MandorError, Unavailable

if TYPE_CHECKING:
    from mandor.client.sync import Client

PAUSE_SECONDS = 0.5


@click.command("drain")
@node_argument
@click.option("--deadline", metavar="TIME", help="So long batches may run on to their end; then they begin elsewhere.")
@click.option("--force", is_flag=True, help="At the deadline (at once without one) stop what is left; ask no budget.")
@click.option("--cancel", is_flag=True, help="End the drain: what is there stays, and new work comes.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when the nodes are empty.")
@click.option("--timeout", metavar="TIME", help="Wait so long at most; the drain goes on.")
@connected
def drain_command(
    client: "Client",
    names: tuple[str, ...],
    deadline: str | None,
    force: bool,
    cancel: bool,
    wait: bool,
    timeout: str | None,
) -> None:
    """Empty nodes: everything there goes elsewhere.

    Nothing new goes to the nodes. Another instance starts elsewhere before the one there stops, and never more of a
    workload are missing than its `disruption` budget allows. Batches run on to their end. Data does not move: what has
    a volume there stays, unless it is forced.

    The nodes stay empty until `mandor uncordon`, or --cancel. `mandor plan drain NODE` rehearses it.
    """
    if cancel and (deadline or force):
        raise click.UsageError("--cancel takes neither --deadline nor --force")
    limit = None if deadline is None else seconds(deadline, "--deadline")
    patience = None if timeout is None else seconds(timeout)
    found = [node["meta"]["name"] for node in get_nodes(client, names)]
    if cancel:
        _cancel(client, found)
        return
    order: dict[str, Any] = {"deadline": None if limit is None else str(deadline), "force": force}
    for name in found:
        client.patch("nodes", name, {"spec": {"drain": order}})
        click.echo(f"node {name} is drained: nothing new goes there", err=wait)
    if wait:
        try:
            _wait(client, found, patience)
        except KeyboardInterrupt:
            click.echo(f"the drain goes on; `mandor drain {' '.join(found)} --cancel` ends it", err=True)
            raise


def _cancel(client: "Client", names: Sequence[str]) -> None:
    for node in get_nodes(client, names):
        name, spec = node["meta"]["name"], node["spec"]
        if "drain" not in spec:
            click.echo(f"node {name} is not drained")
            continue
        client.patch("nodes", name, {"spec": {"drain": None}})
        click.echo(
            f"node {name}: its drain has ended; it {'stays cordoned' if spec.get('cordoned') else 'takes new work'}"
        )


def _wait(client: "Client", names: Sequence[str], patience: float | None) -> None:
    """Until all are empty; what changes on the way is told."""
    end = None if patience is None else time.monotonic() + patience
    said: dict[str, str] = {}
    with Progress("waiting") as progress:
        for name in names:
            while True:
                node = client.get("nodes", name)
                if "drain" not in node["spec"]:
                    raise Invalid(f"the drain of {name} was cancelled")
                status = _status(node)
                text = f"{name}: {shown(status)}"
                if said.get(name) != text:
                    click.echo(text, err=True)
                    said[name] = progress.text = text
                if status and status["phase"] == "Drained":
                    break
                if status and status["phase"] == "Late" and not _still_moves(node):
                    raise MandorError(
                        f"{text}, and its deadline has passed",
                        hint="it goes on as soon as it can; `--force` asks nobody, `--cancel` ends it",
                    )
                if end is not None and time.monotonic() > end:
                    raise Unavailable(f"gave up waiting: {text}", hint="the drain goes on; `--cancel` ends it")
                time.sleep(PAUSE_SECONDS)


def _status(node: dict[str, Any]) -> dict[str, Any] | None:
    """Of this order, not of one before it."""
    found: dict[str, Any] | None = node["status"].get("drain")
    return found if found and found["since"] == node["spec"]["drain"].get("since", found["since"]) else None


def _still_moves(node: dict[str, Any]) -> bool:
    return bool(node["status"]["drain"].get("moving")) or node["spec"]["drain"].get("force", False)


def shown(status: dict[str, Any] | None) -> str:
    """`3 of 20 have left, 2 on their way; 15 of default/web: …`"""
    if status is None:
        return "not begun yet"
    total, left, moving = (status.get(key, 0) for key in ("total", "left", "moving"))
    if status["phase"] == "Drained":
        return f"empty, {total} have left" if total else "empty"
    words = f"{total - left} of {total} have left" + (f", {moving} on their way" if moving else "")
    return "; ".join([words, *status.get("waiting", ())])
