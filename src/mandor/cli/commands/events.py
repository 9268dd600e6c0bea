"""`mandor events`: events about objects, or audit records."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.commands.get import changes, show
from mandor.cli.kinds import find_kind
from mandor.cli.options import all_namespaces_option, connected, namespace_option, output_option
from mandor.cli.output import age

if TYPE_CHECKING:
    from mandor.client.sync import Client


@click.command("events")
@click.option("--for", "about", metavar="KIND/NAME", help="Only events about this object.")
@click.option("--audit", is_flag=True, help="Show audit records instead.")
@click.option("-w", "--watch", is_flag=True, help="Continue and show new events.")
@click.option("--last", type=click.IntRange(1), metavar="N", help="Only the last N events.")
@namespace_option
@all_namespaces_option
@output_option("table", "wide", "json", "yaml")
@connected
def events_command(
    client: "Client",
    about: str | None,
    audit: bool,
    watch: bool,
    last: int | None,
    namespace: str,
    all_namespaces: bool,
    output: str,
) -> None:
    """Show events, the newest last."""
    kind = find_kind("audit" if audit else "event")
    wanted = full_name(about, namespace) if about else None
    # Events about nodes have no namespace; a namespace is requested according to the object.
    here = None if all_namespaces or audit or (wanted and "/" not in wanted) else namespace
    query = {"namespace": here}
    if watch:
        _watch(client, kind.name, wanted, query, output)
        return
    items, _ = client.list(kind.plural, query)
    items = [item for item in items if (wanted is None or wanted in _named(item)) and not item["spec"].get("seal")]
    if not audit and not all_namespaces and wanted is None:
        items += _of_the_cluster(client)
    items.sort(key=when)
    show(items[-last:] if last else items, kind, output, namespaces=all_namespaces and not audit)


def _named(item: dict[str, Any]) -> set[str]:
    """Return the objects that an event or an audit record is about."""
    return {item["spec"]["about"], *(each["about"] for each in item["spec"].get("entries", ()))}


def _of_the_cluster(client: "Client") -> list[dict[str, Any]]:
    """List events about cluster-wide objects such as nodes."""
    items, _ = client.list("events", {})
    return [item for item in items if not item["meta"].get("namespace")]


def events_about(client: "Client", wanted: Collection[str], namespace: str | None) -> list[dict[str, Any]]:
    items, _ = client.list("events", {"namespace": namespace})
    return sorted((item for item in items if item["spec"]["about"] in wanted), key=when)


def full_name(about: str, namespace: str) -> str:
    """Return the object as events name it: `instance/web-0` is `instance default/web-0`."""
    word, slash, name = about.partition("/")
    if not slash or not name:
        raise click.UsageError(f"--for takes KIND/NAME, not {about!r}")
    kind = find_kind(word)
    return f"{kind.name} {namespace}/{name}" if kind.namespaced else f"{kind.name} {name}"


def when(item: dict[str, Any]) -> float:
    spec = item["spec"]
    return float(spec.get("at") or spec.get("last_at") or spec.get("first_at") or item["meta"].get("created_at", 0.0))


def _watch(client: "Client", kind: str, wanted: str | None, query: dict[str, Any], output: str) -> None:
    import json
    import sys
    import time

    for change in changes(client, find_kind(kind), query):
        item = change["after"]
        if item is None or (wanted is not None and wanted not in _named(item)) or item["spec"].get("seal"):
            continue
        spec = item["spec"]
        if output == "json":
            click.echo(json.dumps(item, ensure_ascii=False))
        elif kind == "audit":
            click.echo(f"{spec['identity']}  {spec['verb']}  {spec['about']}  {','.join(spec.get('changed', ()))}")
        else:
            times = f" (x{spec['count']})" if spec.get("count", 1) > 1 else ""
            head = f"{age(when(item), time.time()):>4}  {spec.get('type', 'normal'):7}  {spec['about']}"
            click.echo(f"{head}  {spec['reason']}: {spec['message']}{times}")
        sys.stdout.flush()
