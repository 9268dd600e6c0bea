"""`mandor vm`: hosts for virtual machines."""

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
    """Place virtual machines on hosts; confirm or cancel them.

    For a virtual machine that another system creates, `place` finds a host and holds resources there, `confirm` reports
    that the virtual machine exists, `cancel` releases the resources. `mandor get tasks` lists the requests.
    """


@vm_command.command("place")
@click.option("--cpu", type=int, required=True, metavar="CORES", help="Number of cores.")
@click.option("--memory", type=int, required=True, metavar="MIB", help="Memory in MiB.")
@click.option("--pool", default="default", show_default=True, help="Pool of hosts.")
@click.option("--dedicated", is_flag=True, help="Use a dedicated host (see `vm_dedicated`).")
@click.option(
    "--where", multiple=True, metavar="RULE", help="Node rule that the host must satisfy: `zone == a`; repeatable."
)
@click.option("--name", default="", help="Name of the virtual machine.")
@click.option(
    "--hold", metavar="TIME", default="1h", show_default=True, help="Time to hold resources without confirmation."
)
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until a host is found.")
@click.option("--timeout", metavar="TIME", default="5m", show_default=True, help="Time limit for finding a host.")
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
    """Find a host for a virtual machine, and hold resources there."""
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
    """Confirm that the virtual machine of TASK exists; its resources stay held."""
    _show(client.call("POST", f"/schedule/{task}/confirm"), output)


@vm_command.command("cancel")
@click.argument("task")
@output_option("table", "json", "yaml")
@connected
def cancel_command(client: "Client", task: str, output: str) -> None:
    """Cancel TASK, or release the resources of a virtual machine that no longer exists."""
    _show(client.call("POST", f"/schedule/{task}/cancel"), output)


def _wait(client: "Client", task: str, patience: float) -> dict[str, Any]:
    until = time.monotonic() + patience + 10
    while time.monotonic() < until:
        request: dict[str, Any] = client.read(f"/schedule/{task}")
        if request["status"] == "failed":
            raise Invalid(
                f"task {task}: {request.get('error', 'failed')}",
                hint=request["hirequest"][-1].get("why", ""),
                task=task,
            )
        if request["status"] == "completed":
            return request
        time.sleep(PAUSE_SECONDS)
    raise Unavailable(f"task {task} is still being processed", hint=f"see `mandor get task {task}`")


def _show(request: dict[str, Any], output: str) -> None:
    if output != "table":
        show_data(request, output)
        return
    machine = request.get("result")
    where = f" on {machine['name']}" + (f" ({machine['ip']})" if machine["ip"] else "") if machine else ""
    click.echo(f"{request['task_id']} {request['state']}{where}")
