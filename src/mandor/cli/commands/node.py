"""Settings of nodes: `mandor cordon`, `uncordon`, `taint` and `label`."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.commands.get import get_one
from mandor.cli.kinds import find_kind
from mandor.cli.options import complete_names, connected
from mandor.errors import Conflict, Invalid

if TYPE_CHECKING:
    from mandor.client.sync import Client
    from mandor.model.node import Taint

Object = dict[str, Any]
TRIES = 5

node_argument = click.argument(
    "names", metavar="NODE...", nargs=-1, required=True, shell_complete=complete_names("nodes")
)


@click.command("cordon")
@node_argument
@connected
def cordon_command(client: "Client", names: tuple[str, ...]) -> None:
    """Close nodes for new instances.

    Running instances stay. `mandor uncordon` reopens the nodes, `mandor drain` also moves their instances.
    """
    for node in get_nodes(client, names):
        name = node["meta"]["name"]
        if node["spec"].get("cordoned", False):
            click.echo(f"node {name} is already cordoned")
            continue
        client.patch("nodes", name, {"spec": {"cordoned": True}})
        click.echo(f"node {name} cordoned")


@click.command("uncordon")
@node_argument
@connected
def uncordon_command(client: "Client", names: tuple[str, ...]) -> None:
    """Reopen nodes for new instances.

    This also ends a drain, and a node's turn in a maintenance window, so that the next node has its turn.
    """
    for node in get_nodes(client, names):
        name, spec, turn = node["meta"]["name"], node["spec"], node["status"].get("maintenance")
        if not spec.get("cordoned", False) and "drain" not in spec and not turn:
            click.echo(f"node {name} is not cordoned")
            continue
        change: Object = {"cordoned": False, "drain": None}
        notes = "; drain cancelled" if "drain" in spec else ""
        if turn:
            change["maintained"] = turn["window"]
            notes += f"; its turn in the maintenance window of the pool {spec.get('pool', 'default')} has ended"
        client.patch("nodes", name, {"spec": change})
        click.echo(f"node {name} uncordoned{notes}")


def get_nodes(client: "Client", names: Sequence[str]) -> list[Object]:
    """Return all nodes; raises an error before anything is changed if a name is wrong."""
    return [get_one(client, find_kind("node"), name.removeprefix("node/"), None) for name in dict.fromkeys(names)]


@click.command("taint")
@click.argument("words", metavar="NODE... TAINT...", nargs=-1, required=True, shell_complete=complete_names("nodes"))
@connected
def taint_command(client: "Client", words: tuple[str, ...]) -> None:
    """Add or remove taints of nodes.

    \b
    A TAINT is
      KEY=VALUE:EFFECT or KEY:EFFECT   adds a taint
      KEY:EFFECT- or KEY-              removes one taint, or all with that key

    The EFFECT is NoSchedule (no new instances without a toleration), PreferNoSchedule (other nodes are preferred) or
    NoExecute (running instances without a toleration are evicted, regardless of disruption budgets).
    """
    names, changes = _split(words, "taint", lambda word: ":" in word)
    change = _taint_change(changes)
    for node in get_nodes(client, names):
        before, after = _changed_taints(client, node, change)
        said = [f"+ {each}" for each in after if each not in before] + [
            f"- {each}" for each in before if each not in after
        ]
        click.echo(f"node {node['meta']['name']} {', '.join(said) if said else 'unchanged'}")


def _split(words: Sequence[str], what: str, changes: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """Split into names of nodes and changes."""
    first = next((place for place, word in enumerate(words) if changes(word) or word.endswith("-")), len(words))
    names, rest = list(words[:first]), list(words[first:])
    if not names or not rest:
        raise click.UsageError(f"give the nodes first, then at least one {what}")
    return names, rest


Change = Callable[[list["Taint"]], list["Taint"]]


def _taint_change(words: Sequence[str]) -> Change:
    from mandor.model.node import Taint

    added: list[Taint] = []
    gone: list[str] = []
    for word in words:
        if word.endswith("-"):
            gone.append(word[:-1])
            continue
        try:
            added.append(Taint.parse(word))
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="TAINT") from None

    def change(before: list[Taint]) -> list[Taint]:
        replaced = {(each.key, each.effect) for each in added}
        kept = [each for each in before if (each.key, each.effect) not in replaced and not _named(each, gone)]
        for word in gone:
            if not any(_named(each, [word]) for each in before):
                raise Invalid(f"no taint {word}", hint=f"taints of the node: {', '.join(map(str, before)) or 'none'}")
        return kept + added

    return change


def _named(taint: "Taint", words: Sequence[str]) -> bool:
    return any(word in {taint.key, f"{taint.key}:{taint.effect}", str(taint)} for word in words)


def _changed_taints(client: "Client", node: Object, change: Change) -> tuple[list[str], list[str]]:
    """Change the taints of a node; returns the old and the new ones as text."""
    from mandor.model.codec import from_plain, to_plain
    from mandor.model.node import Taint

    name = node["meta"]["name"]
    for attempt in range(TRIES):
        if attempt:
            node = get_one(client, find_kind("node"), name, None)
        before = from_plain(node["spec"].get("taints", []), list[Taint])
        after = change(before)
        if after != before:
            try:
                client.patch("nodes", name, {"spec": {"taints": to_plain(after)}}, version=node["meta"]["version"])
            except Conflict:
                if attempt == TRIES - 1:
                    raise
                continue
        return list(map(str, before)), list(map(str, after))
    raise AssertionError("unreachable")


@click.command("label")
@click.argument("words", metavar="NODE... LABEL...", nargs=-1, required=True, shell_complete=complete_names("nodes"))
@connected
def label_command(client: "Client", words: tuple[str, ...]) -> None:
    """Add or remove labels of nodes.

    A LABEL is KEY=VALUE, or KEY- to remove it. Placement rules can use labels as facts of the node: `zone == a`.
    """
    names, changes = _split(words, "label", lambda word: "=" in word)
    labels = dict(map(_label, changes))
    for node in get_nodes(client, names):
        name, before = node["meta"]["name"], node["meta"].get("labels", {})
        after = client.patch("nodes", name, {"meta": {"labels": labels}})["meta"].get("labels", {})
        said = [
            f"{key}: {before[key]} → {after[key]}" if key in before else f"+ {key}={after[key]}"
            for key in after
            if before.get(key) != after[key]
        ]
        said += [f"- {key}={before[key]}" for key in before if key not in after]
        click.echo(f"node {name} {', '.join(said) if said else 'unchanged'}")


def _label(word: str) -> tuple[str, str | None]:
    key, equals, value = word.partition("=")
    if equals:
        return key, value
    if word.endswith("-"):
        return word[:-1], None
    raise click.BadParameter(f"{word!r} is not a label; write KEY=VALUE, or KEY- to remove it", param_hint="LABEL")
