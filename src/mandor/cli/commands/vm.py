"""`mandor vm`: machines for virtual machines."""

import time
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.options import connected, output_option, seconds
from mandor.cli.output import show_data
from mandor.errors import Invalid, Unavailable

if TYPE_CHECKING:
    from mandor.client.sync import Client

PAUSE_SECONDS = 0.2


@click.group("vm")
def vm_command() -> None:
    """Find machines for virtual machines; confirm, call off.

    A virtual machine that somebody else makes needs a machine with room for it. `place` finds one and holds the room;
    `confirm` says that the virtual machine is there; `cancel` gives the room back. `mandor get tasks` shows them all.
    """


@vm_command.command("place")
@click.option("--cpu", type=int, required=True, metavar="CORES", help="How many cores it needs.")
@click.option("--memory", type=int, required=True, metavar="MIB", help="How much memory, in MiB.")
@click.option("--pool", default="default", show_default=True, help="The pool of machines.")
@click.option("--dedicated", is_flag=True, help="The machine is to be its own alone.")
@click.option("--where", multiple=True, metavar="RULE", help="Only where this holds: `zone == a`, several times.")
@click.option("--name", default="", help="What the virtual machine will be called.")
@click.option("--hold", metavar="TIME", default="1h", show_default=True, help="Hold the room so long unconfirmed.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Return when there is a machine.")
@click.option("--timeout", metavar="TIME", default="5m", show_default=True, help="Look for one so long at most.")
@output_option("table", "json", "yaml")
@connected
def place_command(
    client: "Client",
    cpu: int,
    memory: int,
    pool: str,
    dedicated: bool,
    where: tuple[str, ...],
    name: str,
    hold: str,
    wait: bool,
    timeout: str,
    output: str,
) -> None:
    """Find a machine for a virtual machine, and hold room there."""
    patience = seconds(timeout)
    body = {
        "requested_cpu": cpu,
        "requested_memory": memory,
        "requested_pool": pool,
        "dedicated": dedicated,
        "where": list(where),
        "vm": name,
        "timeout_seconds": patience,
        "hold_seconds": seconds(hold),
    }
    task = client.post("/schedule", body)["task_id"]
    if not wait:
        click.echo(task)
        return
    _show(_wait(client, task, patience), output)


@vm_command.command("confirm")
@click.argument("task")
@output_option("table", "json", "yaml")
@connected
def confirm_command(client: "Client", task: str, output: str) -> None:
    """Say that the virtual machine of TASK is there: its room is kept."""
    _show(client.call("POST", f"/schedule/{task}/confirm"), output)


@vm_command.command("cancel")
@click.argument("task")
@output_option("table", "json", "yaml")
@connected
def cancel_command(client: "Client", task: str, output: str) -> None:
    """Call TASK off, or give back the room of a virtual machine that is gone."""
    _show(client.call("POST", f"/schedule/{task}/cancel"), output)


def _wait(client: "Client", task: str, patience: float) -> dict[str, Any]:
    until = time.monotonic() + patience + 10
    while time.monotonic() < until:
        story: dict[str, Any] = client.read(f"/schedule/{task}")
        if story["status"] == "failed":
            raise Invalid(
                f"task {task}: {story.get('error', 'failed')}",
                hint=story["history"][-1].get("why", ""),
                task=task,
            )
        if story["status"] == "completed":
            return story
        time.sleep(PAUSE_SECONDS)
    raise Unavailable(f"task {task} is still being processed", hint=f"`mandor get task {task}` tells how it goes on")


def _show(story: dict[str, Any], output: str) -> None:
    if output != "table":
        show_data(story, output)
        return
    machine = story.get("result")
    where = f" on {machine['name']}" + (f" ({machine['ip']})" if machine["ip"] else "") if machine else ""
    click.echo(f"{story['task_id']} {story['state']}{where}")
