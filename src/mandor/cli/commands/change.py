"""Changes of one workload: `mandor scale`, `mandor restart`."""

from typing import TYPE_CHECKING

import click

from mandor.cli.commands.get import get_one
from mandor.cli.kinds import find_kind
from mandor.cli.options import complete_names, connected, namespace_option, seconds, timeout_option
from mandor.errors import Conflict, Invalid

if TYPE_CHECKING:
    from mandor.client.sync import Client

TRIES = 5


@click.command("scale")
@click.argument("name", shell_complete=complete_names("workloads"))
@click.argument("count", type=click.IntRange(0, 100_000))
@click.option("--group", help="Group to scale, if the workload has several.")
@namespace_option
@click.option("--wait", is_flag=True, help="Wait until all instances are ready.")
@timeout_option
@connected
def scale_command(
    client: "Client", name: str, count: int, group: str | None, namespace: str, wait: bool, timeout: str
) -> None:
    """Set the number of instances of a workload."""
    patience = seconds(timeout)
    workload = get_one(client, find_kind("workload"), name, namespace)
    if (workload["spec"].get("batch") or {}).get("per_node"):
        hint = "select its nodes with `placement` in its manifest, and apply it"
        raise Invalid(f"{name} is a batch with `per_node`: it runs once on every matching node", hint=hint)
    if workload["spec"].get("type") == "batch":
        hint = "change `batch: {completions, parallelism}` in its manifest, and apply it"
        raise Invalid(f"{name} is a batch and has no number of instances", hint=hint)
    if workload["spec"].get("type") == "daemon":
        hint = "select its nodes with `placement` in its manifest, and apply it"
        raise Invalid(f"{name} is a daemon: it runs one instance on every matching node", hint=hint)
    groups = workload["spec"]["groups"]
    if group is None:
        if len(groups) > 1:
            raise Invalid(f"{name} has several groups", hint=f"select one with --group: {', '.join(groups)}")
        (group,) = groups
    if group not in groups:
        from mandor.lib.words import did_you_mean

        raise Invalid(f"{name} has no group {group!r}", hint=did_you_mean(group, groups))
    scaling = groups[group].get("autoscale")
    if scaling:
        hint = "change `min` and `max` under `autoscale` in its manifest and apply it, or remove `autoscale`"
        between = f"between {scaling.get('min', 1)} and {scaling['max']}"
        raise Conflict(f"{name} is scaled automatically, {between} instances", hint=hint)
    before = groups[group].get("replicas", 1)
    client.patch("workloads", name, {"spec": {"groups": {group: {"replicas": count}}}}, namespace=namespace)
    what = name if len(groups) == 1 else f"{name}, group {group},"
    click.echo(f"workload {namespace}/{what} scaled from {before} to {count}")
    if wait:
        from mandor.cli.waiting import wait_until_ready

        wait_until_ready(client, [(namespace, name)], patience)


@click.command("restart")
@click.argument("name", shell_complete=complete_names("workloads"))
@namespace_option
@click.option("--wait", is_flag=True, help="Wait until the new instances are ready.")
@timeout_option
@connected
def restart_command(client: "Client", name: str, namespace: str, wait: bool, timeout: str) -> None:
    """Replace all instances of a workload; a workload with a schedule starts one run now."""
    patience = seconds(timeout)
    for attempt in range(TRIES):
        workload = get_one(client, find_kind("workload"), name, namespace)
        change = {"spec": {"restarted": workload["spec"].get("restarted", 0) + 1}}
        try:
            client.patch("workloads", name, change, namespace=namespace, version=workload["meta"]["version"])
            break
        except Conflict:
            if attempt == TRIES - 1:
                raise
    click.echo(
        f"workload {namespace}/{name} {'is starting a run' if 'schedule' in workload['spec'] else 'is restarting'}"
    )
    if wait:
        from mandor.cli.waiting import wait_until_ready

        wait_until_ready(client, [(namespace, name)], patience)
