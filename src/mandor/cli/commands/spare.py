"""`mandor spare`: spare machines for an upgrade."""

import time
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.commands.get import show
from mandor.cli.kinds import find_kind
from mandor.cli.options import connected, namespace_option, output_option, seconds
from mandor.cli.output import show_data
from mandor.errors import Unavailable

if TYPE_CHECKING:
    from mandor.client.sync import Client

PAUSE_SECONDS = 1.0
_OVER = frozenset({"Ready", "Released", "Failed"})


@click.group("spare")
def spare_command() -> None:
    """Prepare spare machines for an upgrade, list and release them."""


@spare_command.command("prepare")
@click.option("--count", type=click.IntRange(1, 50), default=1, show_default=True, help="Number of machines.")
@click.option("--cpu", type=click.IntRange(1), required=True, help="Cores of each machine.")
@click.option("--memory", type=click.IntRange(1), required=True, metavar="MIB", help="Memory of each machine, in MiB.")
@click.option("--pool", default="default", show_default=True, help="Pool of hosts.")
@click.option("--cluster", required=True, help="Cluster that the machines join as nodes.")
@click.option("--release-after", metavar="TIME", help="Remove the machines this long after they are ready.")
@click.option("--wait", is_flag=True, help="Wait until the machines are ready.")
@click.option("--timeout", metavar="TIME", default="1h", show_default=True, help="Maximum time to wait.")
@namespace_option
@output_option("text", "json", "yaml")
@connected
def prepare(
    client: "Client",
    count: int,
    cpu: int,
    memory: int,
    pool: str,
    cluster: str,
    release_after: str | None,
    wait: bool,
    timeout: str,
    namespace: str,
    output: str,
) -> None:
    """Prepare spare machines: finds hosts, holds resources there, and lets the cluster's pipeline create the
    machines.
    """
    body: dict[str, Any] = {"count": count, "size": {"cpu": cpu, "memory": memory}, "pool": pool, "cluster": cluster}
    if release_after is not None:
        body["release_after_seconds"] = seconds(release_after, "--release-after")
    made = client.post(f"/spare/prepare?namespace={namespace}", body)
    if wait:
        made = _wait(client, made["id"], namespace, seconds(timeout, "--timeout"))
    if output != "text":
        show_data(made, output)
    else:
        click.echo(made["id"])
    if made["status"] == "Failed":
        raise Unavailable(f"preparing spare machines failed: {made.get('message', '')}")


@spare_command.command("list")
@namespace_option
@output_option()
@connected
def show_all(client: "Client", namespace: str, output: str) -> None:
    """List spares, the newest first."""
    items, _ = client.list("spares", {"namespace": namespace})
    show(sorted(items, key=lambda item: -float(item["meta"].get("created_at", 0))), find_kind("spare"), output)


@spare_command.command("release")
@click.argument("identity", metavar="ID")
@click.option("--reason", default="the upgrade is done", show_default=True, help="Reason recorded in the history.")
@click.option("--gone", is_flag=True, help="The machines were removed by hand; only release their resources.")
@click.option("--wait", is_flag=True, help="Wait until the machines are removed.")
@click.option("--timeout", metavar="TIME", default="1h", show_default=True, help="Maximum time to wait.")
@namespace_option
@connected
def release(client: "Client", identity: str, reason: str, gone: bool, wait: bool, timeout: str, namespace: str) -> None:
    """Release spare machines after the upgrade: the cluster's pipeline removes them."""
    client.post(f"/spare/{identity}/release?namespace={namespace}", {"reason": reason, "gone": gone})
    if wait:
        _wait(client, identity, namespace, seconds(timeout, "--timeout"), until=frozenset({"Released", "Failed"}))
    click.echo(f"spare {identity} {'is released' if wait else 'is being released'}")


def _wait(
    client: "Client", identity: str, namespace: str, patience: float, until: frozenset[str] = _OVER
) -> dict[str, Any]:
    end, said = time.monotonic() + patience, ""
    while True:
        found: dict[str, Any] = client.read(f"/spare/{identity}", {"namespace": namespace})
        text = ", ".join(f"{vm['name']} {vm['state']}" for vm in found["machines"])
        if text != said:
            click.echo(text, err=True)
            said = text
        if found["status"] in until:
            return found
        if time.monotonic() > end:
            raise Unavailable(
                "timed out", hint=f"preparation continues; cancel it with `mandor spare release {identity}`"
            )
        time.sleep(PAUSE_SECONDS)
