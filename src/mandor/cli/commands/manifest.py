"""`mandor apply`, `mandor diff` and `mandor delete`."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.importing import AS_MANIFESTS, Choice, as_manifests, import_options
from mandor.cli.kinds import split_names
from mandor.cli.options import (
    complete_kind_or_name,
    connected,
    namespace_option,
    output_option,
    seconds,
    timeout_option,
)
from mandor.cli.output import show_data
from mandor.errors import Conflict, Forbidden, Invalid, TooLarge

if TYPE_CHECKING:
    from mandor.client.sync import Client

SUFFIXES = {".yaml", ".yml", ".json", ".hcl", ".nomad"}
FOREIGN_MOST = 16 << 20
"""Bytes of a file; manifests have at most `MANIFEST_MOST` of `cli.importing`."""
KUSTOMIZATIONS = ("kustomization.yaml", "kustomization.yml", "Kustomization")
"""Files that describe how the other files of their folder are rendered."""
CHANGES_SHOWN = 20
PAUSE_SECONDS = 0.5

file_option = click.option(
    "-f",
    "--file",
    "files",
    metavar="FILE|DIR|-",
    multiple=True,
    help="Manifest, directory of manifests, or - for stdin.",
)


@click.command("apply")
@file_option
@namespace_option
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("--prune", is_flag=True, help="Delete workloads that match --labels and are not in the manifests.")
@click.option("-l", "--labels", metavar="SELECTOR", default="", help="With --prune: which workloads may be deleted.")
@click.option("--wait", is_flag=True, help="Wait until all instances are ready, or the batch has ended.")
@timeout_option
@import_options
@output_option("text", "json", "yaml")
@connected
def apply_command(
    client: "Client",
    files: tuple[str, ...],
    namespace: str,
    dry_run: bool,
    prune: bool,
    labels: str,
    wait: bool,
    timeout: str,
    output: str,
    choice: Choice,
) -> None:
    """Create or update objects from manifests.

    All manifests are checked before anything is changed; applying the same manifests again changes nothing. In a
    directory, all .yaml, .yml, .json, .hcl and .nomad files are applied in the order of their names. Files of other
    tools are converted: see `mandor import`.
    """
    patience = seconds(timeout)
    query = {"namespace": namespace, "dry_run": dry_run or None, "prune": prune or None, "labels": labels}
    query["format"] = AS_MANIFESTS
    answer = client.post("/v1/apply", {"files": as_manifests(read_files(files), choice)}, query)
    _show(answer, output, would=dry_run)
    if wait and not dry_run:
        from mandor.cli.waiting import wait_until_ready

        wait_until_ready(client, _workloads(answer), patience)


@click.command("diff")
@file_option
@namespace_option
@click.option(
    "--prune", is_flag=True, help="Include the deletion of workloads that match --labels and are not in the manifests."
)
@click.option("-l", "--labels", metavar="SELECTOR", default="", help="With --prune: which workloads may be deleted.")
@click.option("--exit-code", is_flag=True, help="Exit with 1 if there are differences.")
@import_options
@output_option("text", "json", "yaml")
@connected
def diff_command(
    client: "Client",
    files: tuple[str, ...],
    namespace: str,
    prune: bool,
    labels: str,
    exit_code: bool,
    output: str,
    choice: Choice,
) -> int:
    """Show the differences that an apply would make.

    The exit status is 0; with --exit-code it is 1 if there are differences.
    """
    query: dict[str, Any] = {"namespace": namespace, "dry_run": True, "prune": prune or None, "labels": labels}
    query["format"] = AS_MANIFESTS
    answer = client.post("/v1/apply", {"files": as_manifests(read_files(files), choice)}, query)
    _show(answer, output, would=True, all_changes=True)
    return 1 if exit_code and any(each["action"] != "unchanged" for each in answer["results"]) else 0


@click.command("delete")
@click.argument("words", metavar="[KIND NAME...]", nargs=-1, shell_complete=complete_kind_or_name)
@file_option
@namespace_option
@click.option("--volumes", is_flag=True, help="With -f: delete the files' volumes and their data, too.")
@click.option("--wait", is_flag=True, help="Wait until the instances have ended and the objects they used are deleted.")
@timeout_option
@import_options
@connected
def delete_command(
    client: "Client",
    words: tuple[str, ...],
    files: tuple[str, ...],
    namespace: str,
    volumes: bool,
    wait: bool,
    timeout: str,
    choice: Choice,
) -> None:
    """Delete objects, by name or by manifest.

    Deleting a workload stops its instances. Deleting an instance stops it; its workload replaces it. Volumes with
    `reclaim: keep` stay, with their data, and are listed as kept: delete them with --volumes, or by name.
    """
    patience = seconds(timeout)
    if bool(words) == bool(files):
        raise click.UsageError("give KIND NAME, or -f FILE")
    if volumes and not files:
        raise click.UsageError("--volumes is for -f FILE; `mandor delete volume NAME` deletes one volume")
    if files:
        given, limit = as_manifests(read_files(files), choice), patience if wait else 0.0
        answer = _delete(client, given, {"namespace": namespace, "volumes": volumes or None}, limit)
        _show(answer, "text", missing="not found")
        gone = _workloads(answer)
    else:
        kind, names = split_names(words)
        if not names:
            raise click.UsageError(f"give the name of at least one {kind.name}")
        from mandor.cli.commands.get import get_one

        here = namespace if kind.namespaced else None
        for name in names:
            get_one(client, kind, name, here)  # fails with a hint before anything is deleted
        for name in names:
            client.delete(kind.plural, name, here)
            done = "stopping" if kind.name == "instance" else "deleted"
            click.echo(f"{kind.name} {f'{here}/' if here else ''}{name} {done}")
        if kind.name == "workload":
            _show_kept(client, namespace, set(names))
        gone = [(namespace, name) for name in names] if kind.name == "workload" else []
    if wait:
        from mandor.cli.waiting import wait_until_gone

        wait_until_gone(client, gone, patience)


def _show_kept(client: "Client", namespace: str, workloads: set[str]) -> None:
    """List the volumes of deleted workloads that stay, with their data."""
    try:
        found, _ = client.list("volumes", {"namespace": namespace})
    except Forbidden:
        return  # a user that may delete workloads need not see volumes
    for each in found:
        if each.get("status", {}).get("workload") in workloads and each["spec"].get("reclaim", "keep") == "keep":
            click.echo(f"volume {namespace}/{each['meta']['name']} kept")


def _delete(client: "Client", files: list[dict[str, str]], options: dict[str, Any], patience: float) -> dict[str, Any]:
    """Delete the objects of manifests. Objects in use, such as a namespace, are deleted last, after waiting for the
    others to end.
    """
    query = {**options, "format": AS_MANIFESTS}
    deadline = time.monotonic() + patience
    done: dict[tuple[str, str, str], dict[str, Any]] = {}
    while True:
        try:
            answer: dict[str, Any] = client.post("/v1/delete", {"files": files}, query)
        except Conflict as error:
            if "left" not in error.facts or time.monotonic() > deadline:
                raise
            results: Any = error.facts.get("results", [])
            done = _deleted(results, done)
            time.sleep(PAUSE_SECONDS)
        else:
            return {**answer, "results": list(_deleted(answer["results"], done).values())}


def _deleted(
    results: list[dict[str, Any]], before: dict[tuple[str, str, str], dict[str, Any]]
) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Merge results: objects that an earlier request deleted or kept stay `deleted` or `kept`."""
    named = {(each["kind"], each["namespace"], each["name"]): each for each in results}
    return named | {key: each for key, each in before.items() if each["action"] in {"deleted", "kept"}}


# Files.


def read_files(names: tuple[str, ...]) -> list[dict[str, str]]:
    """Read files as the API expects them: with names, for messages that show file and line."""
    if not names:
        raise click.UsageError("give at least one -f FILE")
    found = []
    for name in names:
        if name == "-":
            found.append(_entry("(stdin)", sys.stdin.buffer.read(FOREIGN_MOST + 1)))
            continue
        found += [_entry(str(path), _content(path)) for path in _paths(Path(name))]
    return found


def _paths(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    if (rendered := next((path / name for name in KUSTOMIZATIONS if (path / name).is_file()), None)) is not None:
        return [rendered]  # it names the files of its folder that count
    found = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES and each.is_file())
    if not found:
        raise Invalid(f"no manifest in {path}", hint="file names must end with .yaml, .yml, .json, .hcl or .nomad")
    return found


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(FOREIGN_MOST + 1)
    except OSError as error:
        raise Invalid(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error


def _entry(name: str, data: bytes) -> dict[str, str]:
    if len(data) > FOREIGN_MOST:
        raise TooLarge(f"more than {FOREIGN_MOST:,} bytes", hint="split it into several files", file=name, line=1)
    try:
        return {"name": name, "text": data.decode("utf-8")}
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Invalid(
            "not valid UTF-8 text", hint="check that this is not a binary file", file=name, line=line
        ) from None


# Answers.


def _workloads(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["namespace"], each["name"]) for each in answer["results"] if each["kind"] == "workload"]


def _show(
    answer: dict[str, Any], output: str, *, would: bool = False, all_changes: bool = False, missing: str = "unchanged"
) -> None:
    if output != "text":
        show_data(answer, output)
        return
    show_results(answer, would=would, all_changes=all_changes, missing=missing)


def show_results(
    answer: dict[str, Any], *, would: bool = True, all_changes: bool = False, missing: str = "unchanged"
) -> None:
    for each in answer["results"]:
        name = f"{each['namespace']}/{each['name']}" if each["namespace"] else each["name"]
        action = missing if each["action"] == "unchanged" else f"{'would be ' if would else ''}{each['action']}"
        click.echo(f"{each['kind']} {name} {action}")
        for warning in each.get("warnings", ()):
            click.echo(f"warning: {each['kind']} {name}: {warning}", err=True)
        changes = each.get("changes", ()) if all_changes or each["action"] == "changed" else ()
        for change in changes if all_changes else changes[:CHANGES_SHOWN]:
            click.echo(_change(change))
        if not all_changes and len(changes) > CHANGES_SHOWN:
            click.echo(f"  … and {len(changes) - CHANGES_SHOWN} more")


def _change(change: dict[str, Any]) -> str:
    before, after = change.get("before"), change.get("after")
    if before is None:
        return f"  + {change['path']}: {_brief(after)}"
    if after is None:
        return f"  - {change['path']}: {_brief(before)}"
    return f"  ~ {change['path']}: {_brief(before)} → {_brief(after)}"


def _brief(value: Any) -> str:
    import json

    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:200] + "…"
