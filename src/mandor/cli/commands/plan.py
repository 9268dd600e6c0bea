"""`mandor plan`: previews what a change would do."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from mandor.cli.commands.manifest import file_option, read_files, show_results
from mandor.cli.importing import AS_MANIFESTS, Choice, as_manifests, import_options
from mandor.cli.options import connected, namespace_option, output_option
from mandor.cli.output import show_data, show_table
from mandor.cli.tables import amount, cores

if TYPE_CHECKING:
    from mandor.client.sync import Client

VERBS = ("drain", "without")
SHOWN = 20
"""Maximum number of instances listed one by one; more are summarized by node."""
COMPARED = {
    "placed": "placed",
    "pending": "pending",
    "relaxed": "with relaxed rules",
    "nodes_used": "nodes in use",
    "fullest_percent": "fullest node (percent)",
}


@click.command("plan")
@click.argument("words", metavar="[drain NODE | without NODE]...", nargs=-1)
@file_option
@namespace_option
@click.option("--profile", metavar="FILE", help="Scheduler configuration to compare with the current one.")
@import_options
@output_option("table", "json", "yaml")
@connected
def plan_command(
    client: "Client",
    words: tuple[str, ...],
    files: tuple[str, ...],
    namespace: str,
    profile: str | None,
    output: str,
    choice: Choice,
) -> int:
    """Preview what a change would do, without changing anything.

    Runs the same checks and decisions on a copy of the cluster: what an apply of manifests would write and where each
    instance would be placed, which instances would move if nodes were drained or lost, how another scheduler
    configuration would decide. -f, drain, without and --profile may be combined.

    The exit status is 0 if everything fits, and 1 if an instance would stay pending or a reservation would not get all
    its slots.
    """
    query: dict[str, Any] = {"namespace": namespace, "format": AS_MANIFESTS, **_nodes(words)}
    if not files and not words and not profile:
        raise click.UsageError("give -f FILE, drain NODE, without NODE or --profile FILE")
    body: dict[str, Any] = {"files": as_manifests(read_files(files), choice) if files else []}
    if profile:
        body["profile"] = read_files((profile,))[0]
    answer = client.post("/v1/plan", body, query)
    if output != "table":
        show_data(answer, output)
    else:
        _show(answer)
    return 0 if answer["fits"] else 1


def _nodes(words: tuple[str, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {verb: [] for verb in VERBS}
    verb = ""
    for word in words:
        if word in VERBS:
            verb = word
        elif not verb:
            from mandor.lib.words import did_you_mean

            raise click.UsageError(f"unknown change {word!r}; {did_you_mean(word, VERBS)}")
        else:
            found[verb].append(word)
    for each in VERBS:
        if each in words and not found[each]:
            raise click.UsageError(f"give a node: `{each} NODE`")
    return found


def _show(answer: dict[str, Any]) -> None:
    if answer.get("results"):
        show_results(answer)
        click.echo()
    _show_reservations(answer)
    _show_placements(answer)
    _show_victims(answer)
    _show_ends(answer)
    _show_pending(answer)
    _show_nodes(answer)
    _show_comparison(answer.get("compared"))
    _show_verdict(answer)


def _block(titles: Sequence[str], rows: Iterable[Sequence[str]], *more: str) -> None:
    """Print a table, further lines, and an empty line."""
    show_table(titles, rows)
    for line in more:
        click.echo(line)
    click.echo()


def _show_reservations(answer: dict[str, Any]) -> None:
    reservations = answer.get("reservations", ())
    if not reservations:
        return
    from mandor.model.codec import from_plain
    from mandor.model.resources import Resources

    rows = []
    for each in reservations:
        held = each.get("held", {})
        slots = f"{sum(held.values())}/{each['count']}"
        rows.append((each["reservation"], slots, str(from_plain(each["each"], Resources)), _by_node(held) or "-"))
    said = [f"{each['reservation']}: {each['message']}" for each in reservations]
    _block(("RESERVATION", "SLOTS", "SIZE", "NODES"), rows, *said)


def _show_placements(answer: dict[str, Any]) -> None:
    placements = answer.get("placements", ())
    if not placements:
        return
    if len(placements) > SHOWN:
        _show_groups(answer)
        return
    columns = {
        "INSTANCE": [each["instance"] for each in placements],
        "NODE": [each["node"] for each in placements],
        "FROM": [each.get("before", "-") for each in placements],
        "FORM": [each.get("form", "-") for each in placements],
        "RELAXED": [_rules(each.get("relaxed", ())) for each in placements],
    }
    said = {title: cells for title, cells in columns.items() if set(cells) != {"-"}}
    _block(tuple(said), list(zip(*said.values(), strict=True)))


def _show_groups(answer: dict[str, Any]) -> None:
    rows = []
    for group in answer["groups"]:
        name = group["workload"] if group["group"] == "main" else f"{group['workload']}/{group['group']}"
        nodes = _by_node(group.get("nodes", {}))
        rows.append((name, str(group.get("placed", 0)), str(group.get("pending", 0)), nodes))
    given_up: dict[str, int] = {}
    for each in answer["placements"]:
        for rule in each.get("relaxed", ()):
            given_up[rule] = given_up.get(rule, 0) + 1
    forms = Counter(each["form"] for each in answer["placements"] if each.get("form"))
    said = [f"{count} in form {form}" for form, count in forms.items()]
    said += [f"{count} without `{rule}`" for rule, count in given_up.items()]
    _block(("WORKLOAD", "PLACED", "PENDING", "NODES"), rows, *said)


def _by_node(counts: dict[str, int]) -> str:
    nodes = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{node}: {count}" for node, count in nodes[:SHOWN])
    return shown + (f" … and {len(nodes) - SHOWN} more nodes" if len(nodes) > SHOWN else "")


def _rules(rules: list[str] | tuple[()]) -> str:
    return ", ".join(f"`{rule}`" for rule in rules) or "-"


def _show_victims(answer: dict[str, Any]) -> None:
    victims = answer.get("victims", ())
    if victims:
        rows = [(each["instance"], each["makes_room_for"]) for each in victims[:SHOWN]]
        _block(("WOULD BE EVICTED", "FOR"), rows, *_more(victims))


def _show_ends(answer: dict[str, Any]) -> None:
    ended = answer.get("ended", ())
    if ended:
        rows = [(each["instance"], each.get("node", "-"), each.get("reason", "-")) for each in ended[:SHOWN]]
        _block(("WOULD END", "NODE", "REASON"), rows, *_more(ended))


def _more(listed: Sequence[object], what: str = "") -> list[str]:
    return [f"… and {len(listed) - SHOWN} {what}more"] if len(listed) > SHOWN else []


def _show_pending(answer: dict[str, Any]) -> None:
    """Print pending instances grouped by reason."""
    for key, title in (("pending", "WOULD BE PENDING"), ("waiting", "ALREADY PENDING")):
        by_reason: dict[str, list[str]] = {}
        for each in answer.get(key, ()):
            by_reason.setdefault(each["message"], []).append(each["instance"])
        rows = []
        for reason, names in by_reason.items():
            more = f" … and {len(names) - 3} more" if len(names) > 4 else ""
            rows.append((", ".join(names[:3] if more else names) + more, reason))
        if rows:
            _block((title, "REASON"), rows)


def _show_nodes(answer: dict[str, Any]) -> None:
    nodes = answer.get("nodes", ())
    if nodes:
        by_change = sorted(nodes, key=lambda each: -abs(each["after"]["instances"] - each["before"]["instances"]))
        shown = sorted(by_change[:SHOWN], key=lambda each: each["node"])
        _block(("NODE", "INSTANCES", "CPU", "MEMORY"), [_use(each) for each in shown], *_more(nodes, "nodes "))


def _use(each: dict[str, Any]) -> tuple[str, str, str, str]:
    before, after = each["before"], each["after"]
    return (
        each["node"],
        f"{before['instances']} → {after['instances']}",
        f"{_share(before, each, 'cpu_milli')} → {_share(after, each, 'cpu_milli')} of {cores(each['cpu_milli'])}",
        f"{_share(before, each, 'memory_bytes')} → {_share(after, each, 'memory_bytes')}"
        f" of {amount(each['memory_bytes'])}",
    )


def _share(use: dict[str, Any], node: dict[str, Any], name: str) -> str:
    return f"{use[name] * 100 // node[name]}%" if node[name] else "-"


def _show_comparison(compared: dict[str, Any] | None) -> None:
    if compared is None:
        return
    now, then = compared["now"], compared["then"]
    _block(("METRIC", "CURRENT", "PLANNED"), [(text, str(now[key]), str(then[key])) for key, text in COMPARED.items()])
    differences = compared["differences"]
    if differences:
        rows = [
            (each["instance"], each.get("now", "pending"), each.get("then", "pending")) for each in differences[:SHOWN]
        ]
        _block(("DIFFERENT NODE", "CURRENT", "PLANNED"), rows, *_more(differences))


def _show_verdict(answer: dict[str, Any]) -> None:
    placed, pending = len(answer.get("placements", ())), len(answer.get("pending", ()))
    moves = sum(bool(each.get("before")) for each in answer.get("placements", ()))
    if not placed and not pending and not answer.get("ended"):
        click.echo("no instance would start, move or end")
    else:
        said = f"{placed} would be placed" + (f" ({moves} of them moved)" if moves else "")
        click.echo(f"{said}; {pending} would be pending; nothing was changed")
    if answer.get("hidden"):
        click.echo(f"{answer['hidden']} instances of namespaces that you may not read are counted but not shown")
    if not answer.get("complete", True):
        click.echo("the plan was cut off because it took too long; it shows what happens first", err=True)
