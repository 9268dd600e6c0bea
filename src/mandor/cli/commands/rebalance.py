"""`mandor rebalance`: moves the instances that gain most on other nodes."""

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
@click.option("--plan", is_flag=True, help="Only show the moves, with gain and cost.")
@click.option("--moves", type=click.IntRange(1, 100), default=10, show_default=True, help="Maximum number of moves.")
@click.option(
    "--min-gain",
    type=click.IntRange(1, 100_000),
    default=20,
    show_default=True,
    help="Minimum gain of a move, in points.",
)
@click.option(
    "--at-once", type=click.IntRange(1, 10), default=1, show_default=True, help="Maximum number of moves in progress."
)
@click.option("--prefer", is_flag=True, help="Only move instances to nodes that their `prefer` rules prefer.")
@click.option("--cancel", is_flag=True, help="Cancel the active rebalance; remaining instances stay.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until all moves are done.")
@click.option("--timeout", metavar="TIME", help="Maximum time to wait; the rebalance continues afterwards.")
@output_option("table", "json", "yaml")
@connected
def rebalance_command(
    client: "Client",
    plan: bool,
    moves: int,
    min_gain: int,
    at_once: int,
    prefer: bool,
    cancel: bool,
    wait: bool,
    timeout: str | None,
    output: str,
) -> None:
    """Move the instances that gain most on other nodes.

    The gain is the difference of the scheduler's scores of both nodes, as shown by `mandor explain`. The moves with the
    highest gain are made one after another: a replacement starts on the better node, and when it is ready the old
    instance stops, if the workload's `disruption` budget allows it. Batches, daemons, gangs, instances with volumes and
    groups with `restore: false` are not moved.

    --prefer counts `prefer` rules only: it restores placements that were not possible when the instances started.

    --plan shows the moves and changes nothing. To rebalance periodically, apply a `kind: rebalance` with `every`.
    """
    if cancel and plan:
        raise click.UsageError("--cancel cannot be combined with --plan")
    patience = None if timeout is None else seconds(timeout)
    if cancel:
        _cancel(client)
    elif plan:
        answer = client.read("/v1/plan/rebalance", {"moves": moves, "min_gain": min_gain, "prefer": prefer})
        show_data(answer, output) if output != "table" else _show(answer)
    else:
        _begin(client, {"moves": moves, "min_gain": min_gain, "at_once": at_once, "prefer": prefer})
        if wait:
            try:
                _wait(client, patience)
            except KeyboardInterrupt:
                click.echo("the rebalance continues; cancel it with `mandor rebalance --cancel`", err=True)
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
            raise Invalid("a rebalance is already active", hint="cancel it with `mandor rebalance --cancel`")
        client.delete("rebalances", NAME)
    client.call("PUT", f"/v1/rebalances/{NAME}", body={"kind": "rebalance", "meta": {"name": NAME}, "spec": spec})


def _phase(order: dict[str, Any]) -> str:
    return str(order.get("status", {}).get("phase", "Planning"))


def _cancel(client: "Client") -> None:
    before = _found(client)
    if before is None or _phase(before) in _OVER:
        click.echo("no rebalance is active")
        return
    client.delete("rebalances", NAME)
    click.echo("rebalance cancelled; remaining instances stay")


def _wait(client: "Client", patience: float | None) -> None:
    end = None if patience is None else time.monotonic() + patience
    said: dict[str, str] = {}
    with Progress("searching for moves") as progress:
        while True:
            order = _found(client)
            if order is None:
                raise Invalid("the rebalance was cancelled")
            status = order.get("status", {})
            for move in status.get("moves", ()):
                text = _describe_move(move)
                if text and said.get(move["uid"]) != text:
                    click.echo(text, err=True)
                    said[move["uid"]] = progress.text = text
            if _phase(order) in _OVER:
                click.echo(status.get("message", ""))
                return
            if end is not None and time.monotonic() > end:
                raise Unavailable("timed out", hint="the rebalance continues; `--cancel` cancels it")
            time.sleep(PAUSE_SECONDS)


def _describe_move(move: dict[str, Any]) -> str:
    """Describe the state of a move; empty while it waits."""
    name, state = f"{move['namespace']}/{move['instance']}", move.get("state", "Waiting")
    if state == "Waiting":
        return ""
    if state == "CalledOff":
        return f"{name}: move cancelled: {move.get('why', '')}"
    verb = "is moving" if state == "Moving" else "moved"
    return f"{name} {verb} from {move['source']} to {move['to']}, gain {move['gain']} points"


def _show(answer: dict[str, Any]) -> None:
    moves = answer.get("moves", ())
    if moves:
        show_table(("INSTANCE", "FROM", "TO", "GAIN", "OWN GAIN", "REASON", "COST"), [_row(each) for each in moves])
        click.echo()
    total = sum(each["gain"] for each in moves)
    click.echo(
        f"{len(moves)} would move, gain {total} points; nothing was changed" if moves else "no move would gain enough"
    )
    if answer.get("hidden"):
        click.echo(f"{answer['hidden']} more in namespaces that you may not read")
    if answer.get("resting"):
        click.echo(f"{answer['resting']} were moved recently and stay for now")
    if answer.get("staying"):
        click.echo(f"{answer['staying']} are not movable: not a service, with volumes, `restore: false`, or changing")
    if not answer.get("complete", True):
        click.echo("the search was cut off because it took too long; these moves were found", err=True)


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
    """Describe the cost of a move until the replacement is ready."""
    room = f"{cores(each.get('cpu_milli', 0))} CPU and {amount(each.get('memory_bytes', 0))} in addition"
    fetches = each.get("fetches", ())
    return f"{room}; pulls {', '.join(fetches)}" if fetches else room
