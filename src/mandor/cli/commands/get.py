"""`mandor get`: objects in a table or as data, once or continuously."""

import json
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from mandor.cli import tables
from mandor.cli.kinds import Kind, split_names
from mandor.cli.options import (
    all_namespaces_option,
    complete_kind_or_name,
    connected,
    namespace_option,
    output_option,
)
from mandor.cli.output import aligned, ordered, show_data, show_table, widths
from mandor.errors import Expired, Unavailable

if TYPE_CHECKING:
    from mandor.client.sync import Client

PATIENCE_SECONDS = 60.0
"""Seconds that a watch waits for a server that does not respond."""


@click.command("get")
@click.argument("words", metavar="KIND [NAME]...", nargs=-1, required=True, shell_complete=complete_kind_or_name)
@namespace_option
@all_namespaces_option
@click.option("-l", "--labels", metavar="SELECTOR", default="", help="Label selector: app=web,tier!=db.")
@click.option("--node", help="Only objects that belong to this node.")
@click.option("-w", "--watch", is_flag=True, help="Continue and show changes.")
@output_option()
@connected
def get_command(
    client: "Client",
    words: tuple[str, ...],
    namespace: str,
    all_namespaces: bool,
    labels: str,
    node: str | None,
    watch: bool,
    output: str,
) -> None:
    """Show objects, in a table or as JSON or YAML.

    KIND is workload, instance, node, release, namespace, decision, event, audit, token, lease … in singular,
    plural or short form (wl, inst, no, ns). One NAME prints one object, several or none print a list. With --watch,
    `-o json` prints one change per line: {"revision", "before", "after"}.
    """
    kind, names = split_names(words)
    here = None if all_namespaces or not kind.namespaced else namespace
    if watch:
        query = {"namespace": here, "labels": labels, "node": node}
        _watch(client, kind, names, query, output, all_namespaces=all_namespaces)
        return
    if names and not all_namespaces:
        if labels or node:
            raise click.UsageError("NAME cannot be combined with -l or --node")
        items = [get_one(client, kind, name, here) for name in names]
        if len(items) == 1 and output in {"json", "yaml"}:
            show_data(ordered(items[0]), output)
            return
    else:
        items, _ = client.list(kind.plural, {"namespace": here, "labels": labels, "node": node})
        items = [item for item in items if not names or item["meta"]["name"] in names]
    show(items, kind, output, namespaces=all_namespaces and kind.namespaced)


def get_one(client: "Client", kind: Kind, name: str, namespace: str | None) -> dict[str, Any]:
    """Return the object; the hint of the error suggests a similar name if there is none."""
    from mandor.errors import NotFound

    try:
        return client.get(kind.plural, name, namespace)
    except NotFound as error:
        from mandor.lib.words import did_you_mean

        names = [item["meta"]["name"] for item in client.list(kind.plural, {"namespace": namespace})[0]]
        hint = did_you_mean(name, names)
        raise NotFound(error.message, hint=hint if hint.startswith("did") else error.hint) from None


def show(items: list[dict[str, Any]], kind: Kind, output: str, *, namespaces: bool = False) -> None:
    if output in {"json", "yaml"}:
        show_data({"items": [ordered(item) for item in items]}, output)
        return
    if output == "name":
        for item in items:
            click.echo(f"{kind.name}/{item['meta']['name']}")
        return
    if not items:
        click.echo(f"no {kind.plural} found", err=True)
        return
    shown = tables.columns(kind.name, wide=output == "wide", namespace=namespaces)
    show_table([column.title for column in shown], [tables.row(shown, item) for item in items])


def _watch(
    client: "Client", kind: Kind, names: list[str], query: dict[str, Any], output: str, *, all_namespaces: bool
) -> None:
    shown = tables.columns(kind.name, wide=output == "wide", namespace=all_namespaces and kind.namespaced)
    titles = tuple(column.title for column in shown)
    sizes: list[int] = []
    for change in changes(client, kind, query):
        value = change["after"] or change["before"]
        if names and value["meta"]["name"] not in names:
            continue
        if output == "json":
            click.echo(json.dumps(change, ensure_ascii=False))
        elif output == "yaml":
            click.echo("---")
            show_data(ordered(value), output)
        elif output == "name":
            click.echo(f"{kind.name}/{value['meta']['name']}")
        else:
            cells = tables.row(shown, value)
            if not sizes:
                sizes = [max(pair) + 2 for pair in zip(widths([titles]), widths([cells]), strict=True)]
                click.echo(aligned([titles], sizes)[0])
            gone = "" if change["after"] else "  (deleted)"
            click.echo(aligned([cells], sizes)[0] + gone)
        sys.stdout.flush()


def changes(client: "Client", kind: Kind, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the current objects, then every change; a lost watch is resumed."""
    known: dict[tuple[str, str], int] = {}
    since: int | None = None
    received_at = time.monotonic()
    while True:
        try:
            if since is None:
                items, since = client.list(kind.plural, query)
                for item in items:
                    key = (item["meta"].get("namespace", ""), item["meta"]["name"])
                    if known.get(key) != item["meta"]["version"]:
                        known[key] = item["meta"]["version"]
                        yield {"revision": since, "before": None, "after": item}
            for change in client.watch(kind.name, since=since, query=query):
                since, received_at = change["revision"], time.monotonic()
                if change.get("before") or change.get("after"):
                    yield {"revision": since, "before": change.get("before"), "after": change.get("after")}
        except Expired:
            since = None
        except Unavailable:
            if since is None or time.monotonic() - received_at > PATIENCE_SECONDS:
                raise
        time.sleep(0.5)  # the server is restarting, or the watch fell behind
