"""`mandor explain`: explains the placement of an instance."""

from typing import TYPE_CHECKING, Any

import click

from mandor.cli.explaining import Terminal, write_explanation
from mandor.cli.options import complete_names, connected, namespace_option, output_option
from mandor.cli.output import aligned, show_data
from mandor.errors import NotFound

if TYPE_CHECKING:
    from mandor.client.sync import Client

TRAFFIC = "traffic"
KINDS = {
    "instance": "instances",
    "instances": "instances",
    "workload": "workloads",
    "workloads": "workloads",
    "task": "tasks",
    "tasks": "tasks",
}


@click.command("explain")
@click.argument(
    "words",
    metavar="[instance|workload|task] NAME | traffic A B",
    nargs=-1,
    required=True,
    shell_complete=complete_names("instances"),
)
@namespace_option
@click.option("--nodes", is_flag=True, help="Also show the result for each node.")
@output_option("text", "json", "yaml")
@connected
def explain_command(client: "Client", words: tuple[str, ...], namespace: str, nodes: bool, output: str) -> None:
    """Explain why an instance is pending, or why it is on its node.

    For a pending instance: the reasons with the number of rejected nodes, and the smallest change that would let it
    run; each proposed change was tried on a copy of the cluster. For a placed one: the current scores of the best
    nodes, and what has changed since the decision. NAME is an instance, or a workload, of which one instance of each
    kind is explained. A VM request (`task`) is explained by the claim that holds resources for it.

    `mandor explain traffic A B` explains step by step why the instance A can or cannot reach B: `service/NAME[:PORT]`,
    `service/NAME.NAMESPACE[:PORT]` or `instance/NAME[:PORT]`. The exit status is 1 if a step fails.
    """
    if words[0] == TRAFFIC and len(words) > 1:
        _explain_traffic(client, words[1:], namespace, output)
        return
    answer = ask(client, words, {"namespace": namespace, "nodes": nodes or None})
    if output != "text":
        show_data(answer, output)
        return
    write_explanation(answer, Terminal())


def _explain_traffic(client: "Client", words: tuple[str, ...], namespace: str, output: str) -> None:
    if len(words) != 2:
        raise click.UsageError("give an instance and its target: mandor explain traffic web-0 service/shop:http")
    source, target = words
    if "/" not in target:
        target = f"service/{target}"
    query = {"namespace": namespace, "source": source.removeprefix("instance/"), "target": target}
    answer = client.read("/v1/explain/traffic", query)
    if output != "text":
        show_data(answer, output)
    else:
        click.echo(f"{answer['source']} {'reaches' if answer['reaches'] else 'does not reach'} {answer['target']}")
        rows = [(f"  {'ok' if each['good'] else 'FAILS'}", each["name"], each["message"]) for each in answer["steps"]]
        for line in aligned(rows):
            click.echo(line)
    if not answer["reaches"]:
        raise SystemExit(1)


def ask(client: "Client", words: tuple[str, ...], query: dict[str, Any]) -> dict[str, Any]:
    kind, name = _split(words)
    if kind == "tasks":
        return _ask_task(client, name, query)
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
            f"no instance or workload {name} in the namespace {query['namespace']}",
            hint=hint if hint.startswith("did") else "list them with `mandor get instances`",
        ) from None


def _ask_task(client: "Client", name: str, query: dict[str, Any]) -> dict[str, Any]:
    """Explain the claim of a VM request. A request that waits for its next attempt, or has ended, has no claim."""
    request: dict[str, Any] = client.read(f"/schedule/{name}", {"namespace": query["namespace"]})
    try:
        return client.read(f"/v1/explain/instances/vm-{name}", query)
    except NotFound:
        why = request["hirequest"][-1].get("why", "")
        raise NotFound(
            f"no resources are held for task {name}, which is {request['state']}" + (f": {why}" if why else ""),
            hint=f"see `mandor describe task {name}`",
        ) from None


def _split(words: tuple[str, ...]) -> tuple[str, str]:
    """Split into kind, if given, and name: `web-0`, `instance web-0` or `instance/web-0`."""
    if len(words) == 1:
        kind, slash, name = words[0].partition("/")
        words = (kind, name) if slash else ("", kind)
    if len(words) != 2 or not words[1] or (words[0] and words[0] not in KINDS):
        raise click.UsageError("give the name of one instance, workload or task")
    return KINDS.get(words[0], ""), words[1]
