"""`mandor explain`: why an instance has no node, or the one it has."""

import time
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.options import complete_names, connected, namespace_option, output_option
from mandor.cli.output import age, show_data, show_table
from mandor.errors import NotFound

if TYPE_CHECKING:
    from mandor.client.sync import Client

KINDS = {"instance": "instances", "instances": "instances", "workload": "workloads", "workloads": "workloads"}


@click.command("explain")
@click.argument(
    "words", metavar="[instance|workload] NAME", nargs=-1, required=True, shell_complete=complete_names("instances")
)
@namespace_option
@click.option("--nodes", is_flag=True, help="Also tell what was said of each node.")
@output_option("text", "json", "yaml")
@connected
def explain_command(client: "Client", words: tuple[str, ...], namespace: str, nodes: bool, output: str) -> None:
    """Tell why an instance has no node, or the one it has.

    For a pending instance: who said no and to how many nodes, and the smallest change that would let it run; each
    proposed change was tried on a copy of the cluster. For a placed one: how the best nodes compare as things stand
    now, and what has changed since it was decided. NAME is an instance, or a workload, of which one instance of
    each kind is explained.
    """
    answer = _answer(client, words, {"namespace": namespace, "nodes": nodes or None})
    if output != "text":
        show_data(answer, output)
        return
    if "instance" in answer:
        _instance(answer)
        return
    click.echo(f"workload {answer['workload']}: {answer['summary']}")
    if answer.get("nodes"):
        click.echo("  " + ", ".join(f"{count} on {node}" for node, count in answer["nodes"].items()))
    for each in answer.get("instances", ()):
        click.echo()
        _instance(each)


def _answer(client: "Client", words: tuple[str, ...], query: dict[str, Any]) -> dict[str, Any]:
    kind, name = _split(words)
    if kind:
        return client.read(f"/v1/explain/{kind}/{name}", query)
    try:
        return client.read(f"/v1/explain/instances/{name}", query)
    except NotFound:
        pass
    try:
        return client.read(f"/v1/explain/workloads/{name}", query)
    except NotFound:
        from mandor.lib.words import did_you_mean

        plurals = ("workloads", "instances")
        here = {"namespace": query["namespace"]}
        names = [item["meta"]["name"] for plural in plurals for item in client.list(plural, here)[0]]
        hint = did_you_mean(name, names)
        raise NotFound(
            f"there is neither an instance nor a workload called {name} in the namespace {query['namespace']}",
            hint=hint if hint.startswith("did") else "`mandor get instances` shows them all",
        ) from None


def _split(words: tuple[str, ...]) -> tuple[str, str]:
    """The kind, if it is named, and the name: `web-0`, `instance web-0` or `instance/web-0`."""
    if len(words) == 1:
        kind, slash, name = words[0].partition("/")
        words = (kind, name) if slash else ("", kind)
    if len(words) != 2 or not words[1] or (words[0] and words[0] not in KINDS):
        raise click.UsageError("name one instance or one workload")
    return KINDS.get(words[0], ""), words[1]


def _instance(answer: dict[str, Any]) -> None:
    _head(answer)
    _forms(answer)
    if answer.get("node"):
        _scores(answer)
    else:
        _refusals(answer)
        _remedies(answer)
    for sentence in answer.get("since", ()):
        click.echo(f"  since then: {sentence}" if answer.get("decision") else f"  {sentence}")
    if answer.get("nodes"):
        click.echo()
        show_table(
            ("NODE", "FITS", "WHO SAID NO", "WHY"),
            [
                (each["node"], "yes" if each["fits"] else "no", each.get("plugin", "-"), each.get("why", "-"))
                for each in answer["nodes"]
            ],
        )


def _head(answer: dict[str, Any]) -> None:
    phase = click.style(answer["phase"], bold=True)
    click.echo(f"{answer['instance']} ({phase}): {answer['summary']}")
    profile = answer.get("profile", "default")
    if profile != "default" or answer.get("priority"):
        click.echo(f"  profile {profile}, priority {answer.get('priority', 0)}")
    decision = answer.get("decision")
    if decision and not answer.get("node"):
        times = decision.get("attempts", 1)
        ago = age(decision["at"], time.time())
        click.echo(f"  last tried {ago} ago, {f'{times} times in all' if times > 1 else 'once'}")
    for rule in answer.get("relaxed", ()):
        click.echo(f"  given up: `{rule}`")
    if answer.get("ports"):
        chosen = ", ".join(f"{name} {number}" for name, number in answer["ports"].items())
        click.echo(f"  ports chosen on {answer['node']}: {chosen}")
    if answer.get("nominated"):
        victims = answer.get("victims", ())
        by = f" by {', '.join(victims)}" if victims else ""
        click.echo(f"  room is made for it on {answer['nominated']}{by}")
    if answer.get("versions"):
        click.echo(f"  plugins from outside: {', '.join(answer['versions'])}")


def _forms(answer: dict[str, Any]) -> None:
    """What was tried before the form it has, or would have; if there is none, the sentence above has told of all."""
    for each in answer.get("forms", ()) if answer.get("form") else ():
        if each["form"] == answer.get("form"):
            click.echo(f"  {'it is' if answer.get('node') else 'it would be'} {each['form']}")
            return
        click.echo(f"  {'by now' if each['fits'] else 'not'} {each['form']}: {each.get('message', '')}")


def _refusals(answer: dict[str, Any]) -> None:
    steps = answer.get("steps", ())
    if not steps or answer.get("chosen_now"):
        return
    rows = [(each["plugin"], str(each["nodes"]), each.get("why", "-")) for each in steps[-1].get("refusals", ())]
    if len(rows) > 1:  # one stands in the sentence above already
        click.echo()
        show_table(("WHO SAID NO", "NODES", "WHY"), rows)
    for step in steps[1:]:
        click.echo(f"  even without `{step.get('gives_up', '')}`: {step['fits']} nodes fit")


def _remedies(answer: dict[str, Any]) -> None:
    found = answer.get("remedies", ())
    if answer.get("chosen_now") or answer.get("nominated"):
        return
    click.echo()
    if not found:
        click.echo("no single change, nor two together, of those that were tried would let it run")
        return
    click.echo(f"smallest change that would let it run: {_remedy(found[0])}")
    for each in found[1:]:
        click.echo(f"  or: {_remedy(each)}")


def _remedy(each: dict[str, Any]) -> str:
    without = "".join(f", without `{rule}`" for rule in each.get("relaxed", ()))
    return f"{each['text']} → {each['node']}{without}"


def _scores(answer: dict[str, Any]) -> None:
    scores = answer.get("scores", ())
    if not scores:
        return
    parts = [part["plugin"] for part in scores[0].get("parts", ())]
    weights = {part["plugin"]: part["weight"] for part in scores[0].get("parts", ())}
    click.echo()
    titles = ["NODE", "TOTAL", *(f"{name}×{weights[name]}" if weights[name] > 1 else name for name in parts)]
    rows = []
    for each in scores:
        mark = " *" if each["node"] == answer["node"] else ""
        own = {part["plugin"]: part for part in each.get("parts", ())}
        rows.append([each["node"] + mark, str(each["total"]), *(_part(own.get(name)) for name in parts)])
    show_table(titles, rows)


def _part(part: dict[str, Any] | None) -> str:
    """The score, and the raw number where that is another."""
    if part is None:
        return "-"
    return str(part["score"]) if part["raw"] == part["score"] else f"{part['score']} ({part['raw']})"
