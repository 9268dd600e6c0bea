"""`mandor apply`, `diff`, `delete`: what manifests say, and what the cluster holds."""

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
from mandor.errors import Conflict, Invalid, TooLarge

if TYPE_CHECKING:
    from mandor.client.sync import Client

SUFFIXES = {".yaml", ".yml", ".json", ".hcl", ".nomad"}
BYTES_MOST = 1 << 20
CHANGES_SHOWN = 20
PAUSE_SECONDS = 0.5

file_option = click.option(
    "-f", "--file", "files", metavar="FILE|DIR|-", multiple=True, help="A manifest, a folder of them, or - for stdin."
)


@click.command("apply")
@file_option
@namespace_option
@click.option("--dry-run", is_flag=True, help="Only tell what would change.")
@click.option("--prune", is_flag=True, help="Delete workloads with --labels that the manifests do not name.")
@click.option("-l", "--labels", metavar="SELECTOR", default="", help="With --prune: which workloads may be deleted.")
@click.option("--wait", is_flag=True, help="Return when everything runs, or a batch has ended.")
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
    """Make the cluster hold what manifests say.

    Everything is checked before anything is changed; applying the same twice changes nothing. A folder gives its
    .yaml, .yml, .json, .hcl and .nomad files, in order of their names. Files of other tools are taken as they are: see
    `mandor import`.
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
@click.option("--prune", is_flag=True, help="Count workloads with --labels that the manifests do not name.")
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
    """Show what an apply would change.

    The exit status is 0 with and without differences; --exit-code makes it 1 if there are any.
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
@click.option("--wait", is_flag=True, help="Return when the instances have ended, and what they needed is gone, too.")
@timeout_option
@import_options
@connected
def delete_command(
    client: "Client",
    words: tuple[str, ...],
    files: tuple[str, ...],
    namespace: str,
    wait: bool,
    timeout: str,
    choice: Choice,
) -> None:
    """Delete objects, by name or by manifest.

    A deleted workload's instances are stopped; a deleted instance is stopped, and its workload makes another.
    """
    patience = seconds(timeout)
    if bool(words) == bool(files):
        raise click.UsageError("name what to delete, KIND NAME, or give -f FILE")
    if files:
        answer = _delete(client, as_manifests(read_files(files), choice), namespace, patience if wait else 0.0)
        _show(answer, "text", missing="was not there")
        gone = _workloads(answer)
    else:
        kind, names = split_names(words)
        if not names:
            raise click.UsageError(f"which {kind.name}? name at least one")
        from mandor.cli.commands.get import get_one

        here = namespace if kind.namespaced else None
        for name in names:
            get_one(client, kind, name, here)  # a wrong name gets a near one, and nothing is deleted
        for name in names:
            client.delete(kind.plural, name, here)
            done = "told to stop" if kind.name == "instance" else "deleted"
            click.echo(f"{kind.name} {f'{here}/' if here else ''}{name} {done}")
        gone = [(namespace, name) for name in names] if kind.name == "workload" else []
    if wait:
        from mandor.cli.waiting import wait_until_gone

        wait_until_gone(client, gone, patience)


def _delete(client: "Client", files: list[dict[str, str]], namespace: str, patience: float) -> dict[str, Any]:
    """What others need goes last, such as their namespace: so long is waited for those who are still there."""
    query = {"namespace": namespace, "format": AS_MANIFESTS}
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
    """What an earlier request deleted is not there any more, but was."""
    named = {(each["kind"], each["namespace"], each["name"]): each for each in results}
    return named | {key: each for key, each in before.items() if each["action"] == "deleted"}


# Files.


def read_files(names: tuple[str, ...]) -> list[dict[str, str]]:
    """What is posted: each file with its name, for messages that name file and line."""
    if not names:
        raise click.UsageError("give at least one -f FILE")
    found = []
    for name in names:
        if name == "-":
            found.append(_entry("(stdin)", sys.stdin.buffer.read(BYTES_MOST + 1)))
            continue
        found += [_entry(str(path), _content(path)) for path in _paths(Path(name))]
    return found


def _paths(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES and each.is_file())
    if not found:
        raise Invalid(f"there is no manifest in {path}", hint="its names end with .yaml, .yml, .json, .hcl or .nomad")
    return found


def _content(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(BYTES_MOST + 1)
    except OSError as error:
        raise Invalid(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error


def _entry(name: str, data: bytes) -> dict[str, str]:
    if len(data) > BYTES_MOST:
        raise TooLarge(f"more than {BYTES_MOST:,} bytes", hint="split it into several", file=name, line=1)
    try:
        return {"name": name, "text": data.decode("utf-8")}
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Invalid("not text in UTF-8", hint="is this a binary file?", file=name, line=line) from None


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
