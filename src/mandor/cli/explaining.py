"""What an explanation says, told to a terminal or to whoever else shows it."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import click

from mandor.cli.output import age, aligned, show_table

Answer = dict[str, Any]


class Paper(Protocol):
    """Where it is written."""

    def line(self, text: str = "") -> None: ...

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None: ...


class Terminal:
    """Standard output."""

    def line(self, text: str = "") -> None:
        click.echo(text)

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        show_table(titles, rows)


class Lines:
    """A list of plain lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str = "") -> None:
        self.lines.append(click.unstyle(text))

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        self.lines += aligned([tuple(titles), *(tuple(row) for row in rows)])


def tell(answer: Answer, paper: Paper) -> None:
    if "instance" in answer:
        _instance(answer, paper)
        return
    paper.line(f"workload {answer['workload']}: {answer['summary']}")
    if answer.get("nodes"):
        paper.line("  " + ", ".join(f"{count} on {node}" for node, count in answer["nodes"].items()))
    for each in answer.get("instances", ()):
        paper.line()
        _instance(each, paper)


def _instance(answer: Answer, paper: Paper) -> None:
    _head(answer, paper)
    _forms(answer, paper)
    if answer.get("node"):
        _scores(answer, paper)
    else:
        _refusals(answer, paper)
        _remedies(answer, paper)
    for sentence in answer.get("since", ()):
        paper.line(f"  since then: {sentence}" if answer.get("decision") else f"  {sentence}")
    if answer.get("nodes"):
        paper.line()
        paper.table(
            ("NODE", "FITS", "WHO SAID NO", "WHY"),
            [
                (each["node"], "yes" if each["fits"] else "no", each.get("plugin", "-"), each.get("why", "-"))
                for each in answer["nodes"]
            ],
        )


def _head(answer: Answer, paper: Paper) -> None:
    phase = click.style(answer["phase"], bold=True)
    paper.line(f"{answer['instance']} ({phase}): {answer['summary']}")
    profile = answer.get("profile", "default")
    if profile != "default" or answer.get("priority"):
        paper.line(f"  profile {profile}, priority {answer.get('priority', 0)}")
    decision = answer.get("decision")
    if decision and not answer.get("node"):
        times = decision.get("attempts", 1)
        ago = age(decision["at"], time.time())
        paper.line(f"  last tried {ago} ago, {f'{times} times in all' if times > 1 else 'once'}")
    for rule in answer.get("relaxed", ()):
        paper.line(f"  given up: `{rule}`")
    if answer.get("ports"):
        chosen = ", ".join(f"{name} {number}" for name, number in answer["ports"].items())
        paper.line(f"  ports chosen on {answer['node']}: {chosen}")
    if answer.get("nominated"):
        victims = answer.get("victims", ())
        by = f" by {', '.join(victims)}" if victims else ""
        paper.line(f"  room is made for it on {answer['nominated']}{by}")
    if answer.get("versions"):
        paper.line(f"  plugins from outside: {', '.join(answer['versions'])}")


def _forms(answer: Answer, paper: Paper) -> None:
    """What was tried before the form it has, or would have; if there is none, the sentence above has told of all."""
    for each in answer.get("forms", ()) if answer.get("form") else ():
        if each["form"] == answer.get("form"):
            paper.line(f"  {'it is' if answer.get('node') else 'it would be'} {each['form']}")
            return
        paper.line(f"  {'by now' if each['fits'] else 'not'} {each['form']}: {each.get('message', '')}")


def _refusals(answer: Answer, paper: Paper) -> None:
    steps = answer.get("steps", ())
    if not steps or answer.get("chosen_now"):
        return
    rows = [(each["plugin"], str(each["nodes"]), each.get("why", "-")) for each in steps[-1].get("refusals", ())]
    if len(rows) > 1:  # one stands in the sentence above already
        paper.line()
        paper.table(("WHO SAID NO", "NODES", "WHY"), rows)
    for step in steps[1:]:
        paper.line(f"  even without `{step.get('gives_up', '')}`: {step['fits']} nodes fit")


def _remedies(answer: Answer, paper: Paper) -> None:
    found = answer.get("remedies", ())
    if answer.get("chosen_now") or answer.get("nominated"):
        return
    paper.line()
    if not found:
        paper.line("no single change, nor two together, of those that were tried would let it run")
        return
    paper.line(f"smallest change that would let it run: {_remedy(found[0])}")
    for each in found[1:]:
        paper.line(f"  or: {_remedy(each)}")


def _remedy(each: Answer) -> str:
    without = "".join(f", without `{rule}`" for rule in each.get("relaxed", ()))
    return f"{each['text']} → {each['node']}{without}"


def _scores(answer: Answer, paper: Paper) -> None:
    scores = answer.get("scores", ())
    if not scores:
        return
    parts = [part["plugin"] for part in scores[0].get("parts", ())]
    weights = {part["plugin"]: part["weight"] for part in scores[0].get("parts", ())}
    paper.line()
    titles = ["NODE", "TOTAL", *(f"{name}×{weights[name]}" if weights[name] > 1 else name for name in parts)]
    rows = []
    for each in scores:
        mark = " *" if each["node"] == answer["node"] else ""
        own = {part["plugin"]: part for part in each.get("parts", ())}
        rows.append([each["node"] + mark, str(each["total"]), *(_part(own.get(name)) for name in parts)])
    paper.table(titles, rows)


def _part(part: Answer | None) -> str:
    """The score, and the raw number where that is another."""
    if part is None:
        return "-"
    return str(part["score"]) if part["raw"] == part["score"] else f"{part['score']} ({part['raw']})"
