"""`mandor drain`: moves all instances off nodes, and shows the progress."""

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
@click.option(
    "--deadline", metavar="TIME", help="Time that batches may continue; then they are restarted on other nodes."
)
@click.option(
    "--force",
    is_flag=True,
    help="Stop remaining instances at the deadline, or at once without one, ignoring disruption budgets.",
)
@click.option("--cancel", is_flag=True, help="Stop the drain; remaining instances stay, and the node is reopened.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until the nodes are empty.")
@click.option("--timeout", metavar="TIME", help="Maximum time to wait; the drain continues afterwards.")
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
    """Move all instances off nodes.

    No new instances are placed on the nodes. Each instance is replaced on another node before it stops, within the
    `disruption` budget of its workload. Batches run to their end. Volumes are not moved: instances with a local volume
    stay, unless --force is given.

    The nodes stay closed until `mandor uncordon`, or --cancel. `mandor plan drain NODE` previews a drain.
    """
    if cancel and (deadline or force):
        raise click.UsageError("--cancel cannot be combined with --deadline or --force")
    limit = None if deadline is None else seconds(deadline, "--deadline")
    patience = None if timeout is None else seconds(timeout)
    found = [node["meta"]["name"] for node in get_nodes(client, names)]
    if cancel:
        _cancel(client, found)
        return
    order: dict[str, Any] = {"deadline": None if limit is None else str(deadline), "force": force}
    for name in found:
        client.patch("nodes", name, {"spec": {"drain": order}})
        click.echo(f"node {name} is draining; no new instances are placed on it", err=wait)
    if wait:
        try:
            _wait(client, found, patience)
        except KeyboardInterrupt:
            click.echo(f"the drain continues; stop it with `mandor drain {' '.join(found)} --cancel`", err=True)
            raise


def _cancel(client: "Client", names: Sequence[str]) -> None:
    for node in get_nodes(client, names):
        name, spec = node["meta"]["name"], node["spec"]
        if "drain" not in spec:
            click.echo(f"node {name} is not being drained")
            continue
        client.patch("nodes", name, {"spec": {"drain": None}})
        click.echo(f"node {name}: drain cancelled; it {'stays cordoned' if spec.get('cordoned') else 'is reopened'}")


def _wait(client: "Client", names: Sequence[str], patience: float | None) -> None:
    """Wait until all nodes are empty, and print the progress."""
    end = None if patience is None else time.monotonic() + patience
    said: dict[str, str] = {}
    hinted: set[str] = set()
    with Progress("waiting") as progress:
        for name in names:
            while True:
                node = client.get("nodes", name)
                if "drain" not in node["spec"]:
                    raise Invalid(f"the drain of node {name} was cancelled")
                status = _status(node)
                text = f"{name}: {shown(status)}"
                if said.get(name) != text:
                    click.echo(text, err=True)
                    said[name] = progress.text = text
                if status and status["phase"] == "Drained":
                    break
                if status and status["phase"] == "Waiting" and name not in hinted:
                    hinted.add(name)
                    click.echo(f"hint: {_stays(name, status)}", err=True)
                if status and status["phase"] == "Late" and not _is_moving(node):
                    raise MandorError(
                        f"{text}, and its deadline has passed",
                        hint="the drain continues; `--force` ignores disruption budgets, `--cancel` stops it",
                    )
                if end is not None and time.monotonic() > end:
                    raise Unavailable(f"timed out: {text}", hint="the drain continues; `--cancel` stops it")
                time.sleep(PAUSE_SECONDS)


def _stays(name: str, status: dict[str, Any]) -> str:
    """Return what lets the remaining instances leave the node."""
    if any("its data (" in each for each in status.get("waiting", ())):
        return (
            f"volumes are not moved; `mandor drain {name} --force` stops these instances until the node is uncordoned"
        )
    return f"`mandor drain {name} --force` ignores disruption budgets; `mandor drain {name} --cancel` stops the drain"


def _status(node: dict[str, Any]) -> dict[str, Any] | None:
    """Return the status of this drain; None if it still describes an earlier one."""
    found: dict[str, Any] | None = node["status"].get("drain")
    return found if found and found["since"] == node["spec"]["drain"].get("since", found["since"]) else None


def _is_moving(node: dict[str, Any]) -> bool:
    return bool(node["status"]["drain"].get("moving")) or node["spec"]["drain"].get("force", False)


def shown(status: dict[str, Any] | None) -> str:
    """Summarize the progress: `3 of 20 moved, 2 moving; 15 of default/web: …`."""
    if status is None:
        return "not started yet"
    total, left, moving = (status.get(key, 0) for key in ("total", "left", "moving"))
    if status["phase"] == "Drained":
        return f"empty, {total} moved" if total else "empty"
    words = f"{total - left} of {total} moved" + (f", {moving} moving" if moving else "")
    return "; ".join([words, *status.get("waiting", ())])
