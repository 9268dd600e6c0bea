"""`mandor rebalance`: moves the few instances that would stand best elsewhere."""

import time
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.options import connected, output_option, seconds
from mandor.cli.output import show_data, show_table
from mandor.cli.progress import Progress
from mandor.cli.tables import amount, cores
from mandor.errors import Invalid, NotFound, Unavailable

if TYPE_CHECKING:
    from mandor.client.sync import Client

NAME = "now"
PAUSE_SECONDS = 0.5
_OVER = frozenset({"Done", "Resting"})


@click.command("rebalance")
@click.option("--plan", is_flag=True, help="Only tell what would move, for what gain and at what cost.")
@click.option("--moves", type=click.IntRange(1, 100), default=10, show_default=True, help="Move so many at most.")
@click.option(
    "--min-gain", type=click.IntRange(1, 100_000), default=20, show_default=True, help="Points a move must gain."
)
@click.option("--at-once", type=click.IntRange(1, 10), default=1, show_default=True, help="So many at the same time.")
@click.option("--cancel", is_flag=True, help="End the one under way: what has not moved yet stays.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when everything has moved.")
@click.option("--timeout", metavar="TIME", help="Wait so long at most; the rebalance goes on.")
@output_option("table", "json", "yaml")
@connected
def rebalance_command(
    client: "Client",
    plan: bool,
    moves: int,
    min_gain: int,
    at_once: int,
    cancel: bool,
    wait: bool,
    timeout: str | None,
    output: str,
) -> None:
    """Move the few instances that would stand best elsewhere.

    How well an instance stands is the score that the scheduler would give its node now, by its own profile: `mandor
    explain` shows it. The moves that gain most are made, one after another: another instance starts on the better
    node, and when it serves the old one stops, if the workload's `disruption` budget allows it at that moment.
    Batches, daemons, gangs, whatever has a volume, and groups with `restore: false` stay where they are.

    --plan shows the moves and changes nothing. To have it done by itself, apply a `kind: rebalance` with `every`.
    """
    if cancel and plan:
        raise click.UsageError("--cancel and --plan do not go together")
    patience = None if timeout is None else seconds(timeout)
    if cancel:
        _cancel(client)
    elif plan:
        answer = client.read("/v1/plan/rebalance", {"moves": moves, "min_gain": min_gain})
        show_data(answer, output) if output != "table" else _show(answer)
    else:
        _begin(client, {"moves": moves, "min_gain": min_gain, "at_once": at_once})
        if wait:
            try:
                _wait(client, patience)
            except KeyboardInterrupt:
                click.echo("the rebalance goes on; `mandor rebalance --cancel` ends it", err=True)
                raise


def _found(client: "Client") -> dict[str, Any] | None:
    try:
        return client.get("rebalances", NAME)
    except NotFound:
        return None


def _begin(client: "Client", spec: dict[str, Any]) -> None:
    before = _found(client)
    if before is not None:
        if _phase(before) not in _OVER:
            raise Invalid("a rebalance is under way", hint="`mandor rebalance --cancel` ends it")
        client.delete("rebalances", NAME)
    client.call("PUT", f"/v1/rebalances/{NAME}", body={"kind": "rebalance", "meta": {"name": NAME}, "spec": spec})


def _phase(order: dict[str, Any]) -> str:
    return str(order.get("status", {}).get("phase", "Planning"))


def _cancel(client: "Client") -> None:
    before = _found(client)
    if before is None or _phase(before) in _OVER:
        click.echo("no rebalance is under way")
        return
    client.delete("rebalances", NAME)
    click.echo("the rebalance has ended: what has not moved yet stays")


def _wait(client: "Client", patience: float | None) -> None:
    end = None if patience is None else time.monotonic() + patience
    said: dict[str, str] = {}
    with Progress("looking for moves") as progress:
        while True:
            order = _found(client)
            if order is None:
                raise Invalid("the rebalance was cancelled")
            status = order.get("status", {})
            for move in status.get("moves", ()):
                text = _told(move)
                if text and said.get(move["uid"]) != text:
                    click.echo(text, err=True)
                    said[move["uid"]] = progress.text = text
            if _phase(order) in _OVER:
                click.echo(status.get("message", ""))
                return
            if end is not None and time.monotonic() > end:
                raise Unavailable("gave up waiting", hint="the rebalance goes on; `--cancel` ends it")
            time.sleep(PAUSE_SECONDS)


def _told(move: dict[str, Any]) -> str:
    """Nothing of one that waits."""
    name, state = f"{move['namespace']}/{move['instance']}", move.get("state", "Waiting")
    if state == "Waiting":
        return ""
    if state == "CalledOff":
        return f"{name}: called off: {move.get('why', '')}"
    verb = "moves" if state == "Moving" else "has moved"
    return f"{name} {verb} from {move['source']} to {move['to']}, for {move['gain']} points"


def _show(answer: dict[str, Any]) -> None:
    moves = answer.get("moves", ())
    if moves:
        show_table(("INSTANCE", "FROM", "TO", "GAIN", "OWN", "BECAUSE", "COSTS"), [_row(each) for each in moves])
        click.echo()
    total = sum(each["gain"] for each in moves)
    click.echo(
        f"{len(moves)} would move, for {total} points; nothing is changed" if moves else "nothing would gain enough"
    )
    if answer.get("hidden"):
        click.echo(f"{answer['hidden']} more of namespaces you do not see")
    if answer.get("resting"):
        click.echo(f"{answer['resting']} were moved not long ago and stay for now")
    if answer.get("staying"):
        click.echo(
            f"{answer['staying']} stay: no services, with volumes, not to be moved, or in the middle of a change"
        )
    if not answer.get("complete", True):
        click.echo("it takes too long to look at everybody: these were found", err=True)


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    return (
        f"{each['namespace']}/{each['instance']}",
        each["source"],
        each["to"],
        f"{each['gain']:+d}",
        f"{each['own']:+d}",
        each.get("because", "-"),
        _cost(each),
    )


def _cost(each: dict[str, Any]) -> str:
    """What it takes until the other one serves."""
    room = f"{cores(each.get('cpu_milli', 0))} CPU and {amount(each.get('memory_bytes', 0))} twice"
    fetches = each.get("fetches", ())
    return f"{room}; fetches {', '.join(fetches)}" if fetches else room
