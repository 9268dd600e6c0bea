"""What takes work to nodes and keeps it away: `mandor cordon`, `uncordon`, `taint`, `label`."""

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
    """Place nothing new on nodes.

    What runs there goes on; `mandor uncordon` takes it back, `mandor drain` empties them.
    """
    for node in get_nodes(client, names):
        name = node["meta"]["name"]
        if node["spec"].get("cordoned", False):
            click.echo(f"node {name} is cordoned already")
            continue
        client.patch("nodes", name, {"spec": {"cordoned": True}})
        click.echo(f"node {name} cordoned")


@click.command("uncordon")
@node_argument
@connected
def uncordon_command(client: "Client", names: tuple[str, ...]) -> None:
    """Place work on nodes again.

    This ends a drain, too, and a node's turn in a maintenance window: the next node has its turn then.
    """
    for node in get_nodes(client, names):
        name, spec, turn = node["meta"]["name"], node["spec"], node["status"].get("maintenance")
        if not spec.get("cordoned", False) and "drain" not in spec and not turn:
            click.echo(f"node {name} is not cordoned already")
            continue
        change: Object = {"cordoned": False, "drain": None}
        said = "; its drain has ended" if "drain" in spec else ""
        if turn:
            change["maintained"] = turn["window"]
            said += f"; its turn in the maintenance window of the pool {spec.get('pool', 'default')} is over"
        client.patch("nodes", name, {"spec": change})
        click.echo(f"node {name} uncordoned{said}")


def get_nodes(client: "Client", names: Sequence[str]) -> list[Object]:
    """All of them, or an error: nothing is done if one name is wrong."""
    return [get_one(client, find_kind("node"), name.removeprefix("node/"), None) for name in dict.fromkeys(names)]


@click.command("taint")
@click.argument("words", metavar="NODE... TAINT...", nargs=-1, required=True, shell_complete=complete_names("nodes"))
@connected
def taint_command(client: "Client", words: tuple[str, ...]) -> None:
    """Keep work away from nodes, or drive it off.

    \b
    A TAINT is
      KEY=VALUE:EFFECT or KEY:EFFECT   to set one
      KEY:EFFECT- or KEY-              to take one away, or all of that key

    The EFFECT is NoSchedule (nothing new that does not tolerate it), PreferNoSchedule (elsewhere, if there is room) or
    NoExecute (what is there and does not tolerate it has to leave, whatever budgets say).
    """
    names, changes = _split(words, "taint", lambda word: ":" in word)
    change = _taint_change(changes)
    for node in get_nodes(client, names):
        before, after = _changed_taints(client, node, change)
        said = [f"+ {each}" for each in after if each not in before] + [
            f"- {each}" for each in before if each not in after
        ]
        click.echo(f"node {node['meta']['name']} {', '.join(said) if said else 'has it so already'}")


def _split(words: Sequence[str], what: str, changes: Callable[[str], bool]) -> tuple[list[str], list[str]]:
    """Names first, then what is to change."""
    first = next((place for place, word in enumerate(words) if changes(word) or word.endswith("-")), len(words))
    names, rest = list(words[:first]), list(words[first:])
    if not names or not rest:
        raise click.UsageError(f"name nodes first, then at least one {what}")
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
                raise Invalid(f"there is no taint {word}", hint=f"it has {', '.join(map(str, before)) or 'none'}")
        return kept + added

    return change


def _named(taint: "Taint", words: Sequence[str]) -> bool:
    return any(word in {taint.key, f"{taint.key}:{taint.effect}", str(taint)} for word in words)


def _changed_taints(client: "Client", node: Object, change: Change) -> tuple[list[str], list[str]]:
    """As they were and as they are, in words."""
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
    """Give nodes labels, or take them away.

    A LABEL is KEY=VALUE, or KEY- to take it away. Placement rules see labels as facts of the node: `zone == a`.
    """
    names, changes = _split(words, "label", lambda word: "=" in word)
    labels = dict(map(_label, changes))
    for node in get_nodes(client, names):
        name, before = node["meta"]["name"], node["meta"].get("labels", {})
        after = client.patch("nodes", name, {"meta": {"labels": labels}})["meta"].get("labels", {})
        said = [
            f"{key} was {before[key]}, is {after[key]}" if key in before else f"+ {key}={after[key]}"
            for key in after
            if before.get(key) != after[key]
        ]
        said += [f"- {key}={before[key]}" for key in before if key not in after]
        click.echo(f"node {name} {', '.join(said) if said else 'has it so already'}")


def _label(word: str) -> tuple[str, str | None]:
    key, equals, value = word.partition("=")
    if equals:
        return key, value
    if word.endswith("-"):
        return word[:-1], None
    raise click.BadParameter(f"{word!r} is no label; write KEY=VALUE, or KEY- to take it away", param_hint="LABEL")
