"""`mandor image`: loads images without a registry, and lists images of nodes."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.options import complete_names, connected, output_option
from mandor.cli.output import show_data, show_table
from mandor.errors import NotFound

if TYPE_CHECKING:
    from mandor.cli.image_load import Outcome
    from mandor.client.image_file import ImageSource
    from mandor.client.sync import Client

NODES_SHOWN = 4


@click.group("image")
def image_command() -> None:
    """Load images into nodes, and list their images."""


@image_command.command("load")
@click.argument("files", metavar="FILE [ROOTFS]", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--node", "nodes", multiple=True, shell_complete=complete_names("nodes"), help="Load into this node.")
@click.option("--pool", "pools", multiple=True, help="Load into all nodes of this pool.")
@click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="Load into the nodes with this label.")
@click.option("--all", "everywhere", is_flag=True, help="Load into all nodes.")
@click.option("--engine", help="Engine to load into.  [default: all that support the format]")
@click.option("--name", "names", multiple=True, help="Additional name of the image.")
@click.option(
    "--parallel", type=click.IntRange(1, 64), default=4, show_default=True, help="Number of nodes to load in parallel."
)
@output_option("table", "json", "yaml")
@connected
def load(
    client: "Client",
    files: tuple[Path, ...],
    nodes: tuple[str, ...],
    pools: tuple[str, ...],
    labels: tuple[str, ...],
    everywhere: bool,
    engine: str | None,
    names: tuple[str, ...],
    parallel: int,
    output: str,
) -> int:
    """Load an image from a file into nodes, without a registry.

    FILE is an archive of `docker save`, `podman save` or `skopeo copy` (docker or OCI layout), or an Incus image, whose
    metadata and root file system may be two files. In a cluster with one node, no node needs to be selected. Images
    that are already present are not sent again, so the command can be repeated after a failure.

    \b
    mandor image load web.tar --all
    mandor image load web.tar --pool edge --label zone=a
    mandor image load incus.tar.xz rootfs.squashfs --name debian/13 --node n1
    """
    from mandor.cli.image_load import load_all
    from mandor.client.image_file import open_image

    source = open_image(files, names)
    chosen = choose(client.list("nodes")[0], nodes, pools, labels, everywhere=everywhere)
    outcomes = [each for each in (_unable(node, source, engine, nodes) for node in chosen) if each is not None]
    left = {each.node for each in outcomes}
    outcomes += load_all(
        client, source, [name for node in chosen if (name := node["meta"]["name"]) not in left], engine or "", parallel
    )
    _show(source, outcomes, output)
    failed = sum(each.failed for each in outcomes)
    if failed:
        click.echo(f"loading failed on {failed} of {len(chosen)} nodes; repeat the command to retry", err=True)
    elif all(each.skipped for each in outcomes):
        raise NotFound(
            f"no selected node has an engine that supports the format {source.image.kind}",
            hint="`mandor describe node NAME` shows a node's engines",
        )
    return 1 if failed else 0


def choose(
    found: list[dict[str, Any]],
    nodes: tuple[str, ...],
    pools: tuple[str, ...],
    labels: tuple[str, ...],
    *,
    everywhere: bool,
) -> list[dict[str, Any]]:
    """Return the selected nodes: those named, and those of these pools with all these labels."""
    by_name = {node["meta"]["name"]: node for node in found}
    wanted = dict(_label(each) for each in labels)
    if not (nodes or pools or labels or everywhere):
        if not found:
            raise NotFound("there are no nodes", hint="start `mandor agent` on a machine")
        if len(found) == 1:
            return found
        raise click.UsageError(f"there are {len(found)} nodes: select some with --node, --pool, --label or --all")
    for name in nodes:
        if name not in by_name:
            from mandor.lib.words import did_you_mean

            raise NotFound(f"no node {name}", hint=did_you_mean(name, by_name))
    chosen = [
        node
        for name, node in sorted(by_name.items())
        if name in nodes or ((everywhere or pools or wanted) and _fits(node, pools, wanted))
    ]
    if not chosen:
        raise NotFound("no node matches", hint="`mandor get nodes -o wide` shows pools and labels")
    return chosen


def _fits(node: dict[str, Any], pools: tuple[str, ...], labels: dict[str, str]) -> bool:
    has = node["meta"].get("labels", {})
    pool = node.get("spec", {}).get("pool", "default")
    return (not pools or pool in pools) and all(has.get(key) == value for key, value in labels.items())


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--label")
    return key, value


def _unable(
    node: dict[str, Any], source: "ImageSource", engine: str | None, named: tuple[str, ...]
) -> "Outcome | None":
    """Return a skipped outcome for a node without a suitable engine, unless the node was named: then its agent
    reports the reason.
    """
    from mandor.cli.image_load import Outcome

    name = node["meta"]["name"]
    engines = node.get("status", {}).get("engines", {})
    able = [
        each for each, can in engines.items() if source.image.kind in can.get("loads", ()) and engine in {None, each}
    ]
    if able or name in named:
        return None
    return Outcome(name, engine or "-", "skipped", "no engine supports the format")


def _show(source: "ImageSource", outcomes: "list[Outcome]", output: str) -> None:
    outcomes = sorted(outcomes, key=lambda each: (each.node, each.engine))
    if output != "table":
        items = [each.plain() for each in outcomes]
        show_data({"names": list(source.image.names), "id": source.image.id, "items": items}, output)
        return
    show_table(("NODE", "ENGINE", "RESULT", "MESSAGE"), (each.row() for each in outcomes))


@image_command.command("list")
@click.option(
    "--node", "nodes", multiple=True, shell_complete=complete_names("nodes"), help="Only images of this node."
)
@output_option("table", "json", "yaml")
@connected
def list_images(client: "Client", nodes: tuple[str, ...], output: str) -> None:
    """List the images on nodes, with their sizes."""
    found, _ = client.list("nodes")
    if nodes:
        found = choose(found, nodes, (), (), everywhere=False)
    having: dict[str, dict[str, int]] = {}
    for node in found:
        for image, size in node.get("status", {}).get("images", {}).items():
            having.setdefault(image, {})[node["meta"]["name"]] = size
    if output != "table":
        items = [
            {"name": image, "size": max(sizes.values()), "nodes": sorted(sizes)}
            for image, sizes in sorted(having.items())
        ]
        show_data({"items": items}, output)
        return
    rows = (
        (image, _megabytes(max(sizes.values())), _nodes(sizes, len(found))) for image, sizes in sorted(having.items())
    )
    show_table(("IMAGE", "SIZE", "NODES"), rows)


def _nodes(names: dict[str, int], count: int) -> str:
    shown = ", ".join(sorted(names)[:NODES_SHOWN])
    more = len(names) - NODES_SHOWN
    return f"{len(names)}/{count}: {shown}" + (f" and {more} more" if more > 0 else "")


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
