"""`mandor rollout`: watches and controls the change from one release to the next."""

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.commands.describe import rollout_line
from mandor.cli.commands.get import get_one
from mandor.cli.kinds import find_kind
from mandor.cli.options import complete_names, connected, namespace_option, output_option, seconds
from mandor.cli.output import age, show_data, show_table
from mandor.cli.progress import Progress
from mandor.errors import Expired, MandorError, NotFound, Unavailable

if TYPE_CHECKING:
    from mandor.client.sync import Client

PAUSE_SECONDS = 0.5


@click.group("rollout")
def rollout_command() -> None:
    """Watch, pause, promote, abort or undo a rollout."""


def _about_one(command: Callable[..., Any]) -> Callable[..., Any]:
    command = namespace_option(connected(command))
    return click.argument("name", metavar="WORKLOAD", shell_complete=complete_names("workloads"))(command)


def _follow_options(command: Callable[..., Any]) -> Callable[..., Any]:
    command = click.option("--timeout", default="1h", show_default=True, help="Maximum time to wait.")(command)
    return click.option("--wait", is_flag=True, help="Wait until the rollout has ended.")(command)


@rollout_command.command("status")
@click.option(
    "--follow/--no-follow", default=True, help="Wait until the rollout has ended, or show the current state only."
)
@click.option("--timeout", default="1h", show_default=True, help="Maximum time to wait.")
@_about_one
def status(client: "Client", name: str, namespace: str, follow: bool, timeout: str) -> None:
    """Show the progress of a rollout until it has ended.

    The exit status is 0 if all instances have the new release and are healthy, and 1 if the rollout failed or was
    rolled back.
    """
    patience = seconds(timeout)
    if follow:
        _follow(client, namespace, name, patience)
        return
    workload = get_one(client, find_kind("workload"), name, namespace)
    click.echo(f"{name}: {rollout_line(workload) or 'no rollout'}")
    _check(workload)


@rollout_command.command("history")
@output_option("table", "json", "yaml")
@_about_one
def history(client: "Client", name: str, namespace: str, output: str) -> None:
    """Show the stored releases of a workload."""
    report = client.read(f"/v1/workloads/{name}/rollout", {"namespace": namespace})
    if output != "table":
        show_data(report, output)
        return
    rows = [
        (
            str(each["sequence"]),
            each["name"] + (" *" if each.get("current") else ""),
            age(each["created_at"], time.time()),
            "yes" if each.get("healthy") else "no",
            str(each.get("instances", 0)),
            each.get("cause") or "-",
        )
        for each in report.get("history", ())
    ]
    show_table(("NUMBER", "RELEASE", "AGE", "HEALTHY", "INSTANCES", "CAUSE"), rows)


@rollout_command.command("undo")
@click.option(
    "--to", type=click.IntRange(1), metavar="N", help="Number of the release.  [default: the last healthy one]"
)
@_follow_options
@_about_one
def undo(client: "Client", name: str, namespace: str, to: int | None, wait: bool, timeout: str) -> None:
    """Return to an earlier release: its template becomes the workload's template again."""
    where = f"release {to}" if to is not None else "the last healthy release"
    _order(client, name, namespace, "undo", f"is returning to {where}", to=to, wait=wait, timeout=timeout)


@rollout_command.command("pause")
@_about_one
def pause(client: "Client", name: str, namespace: str) -> None:
    """Pause this and later rollouts: no further instance is updated until they are resumed."""
    _order(client, name, namespace, "pause", "is paused")


@rollout_command.command("resume")
@_follow_options
@_about_one
def resume(client: "Client", name: str, namespace: str, wait: bool, timeout: str) -> None:
    """Resume a paused rollout."""
    _order(client, name, namespace, "resume", "is resumed", wait=wait, timeout=timeout)


@rollout_command.command("promote")
@_follow_options
@_about_one
def promote(client: "Client", name: str, namespace: str, wait: bool, timeout: str) -> None:
    """Promote the canaries, or the second set: the rollout continues with the other instances."""
    _order(client, name, namespace, "promote", "is promoted", wait=wait, timeout=timeout)


@rollout_command.command("abort")
@_about_one
def abort(client: "Client", name: str, namespace: str) -> None:
    """Abort a rollout: all instances return to the last healthy release.

    The manifest stays as it was applied; applying it again unchanged has no effect.
    """
    _order(client, name, namespace, "abort", "is aborted and returns to the last healthy release")


def _order(
    client: "Client",
    name: str,
    namespace: str,
    word: str,
    said: str,
    *,
    to: int | None = None,
    wait: bool = False,
    timeout: str = "1h",
) -> None:
    patience = seconds(timeout)
    get_one(client, find_kind("workload"), name, namespace)
    body: dict[str, Any] = {"order": word} if to is None else {"order": word, "to": to}
    client.post(f"/v1/workloads/{name}/rollout", body, {"namespace": namespace})
    click.echo(f"workload {namespace}/{name} {said}")
    if wait:
        _follow(client, namespace, name, patience)


def _follow(client: "Client", namespace: str, name: str, patience: float) -> None:
    """Print every step of a rollout until it has ended; raises an error if it failed."""
    from mandor.cli.waiting import is_processed

    until, last = time.monotonic() + patience, ""
    with Progress(f"following {name}") as progress:
        for workload in _versions(client, namespace, name):
            if time.monotonic() > until:
                raise Unavailable(f"timed out after {patience:g} s: {last or 'no progress'}")
            if not is_processed(client, workload):
                continue
            line = rollout_line(workload)
            message = workload["status"].get("rollout", {}).get("message", "")
            if message != last:
                last = message
                if message:
                    click.echo(f"{name}: {line}", err=True)
            progress.text = f"{name}: {line}"
            if _over(workload):
                break
    _check(workload)
    click.echo(f"{name}: all instances have release {workload['status']['release']} and are healthy")


def _over(workload: dict[str, Any]) -> bool:
    rollout = workload["status"].get("rollout") or {}
    return not rollout or rollout.get("phase", "Progressing") in {"Done", "RolledBack", "Failed"}


def _check(workload: dict[str, Any]) -> None:
    rollout, name = workload["status"].get("rollout") or {}, workload["meta"]["name"]
    if rollout.get("phase") in {"RollingBack", "RolledBack", "Failed"}:
        raise MandorError(
            f"the rollout of {name} failed: {rollout.get('message', '')}",
            hint=f"fix the manifest and apply it; `mandor rollout history {name}` lists the releases",
        )


def _versions(client: "Client", namespace: str, name: str) -> Iterator[dict[str, Any]]:
    """Yield the workload now and after every change, and periodically without changes."""
    since: int | None = None
    while True:
        try:
            if since is None:
                _, since = client.list("workloads", {"namespace": namespace})
            workload = get_one(client, find_kind("workload"), name, namespace)
            yield workload
            for change in client.watch("workload", since=since, query={"namespace": namespace}):
                since = change["revision"]
                after = change.get("after")
                if after is not None and after["meta"]["name"] == name:
                    workload = after
                elif (change.get("before") or {}).get("meta", {}).get("name") == name:
                    raise NotFound(f"the workload {name} was deleted")
                yield workload
        except Expired:
            since = None
        time.sleep(PAUSE_SECONDS)
