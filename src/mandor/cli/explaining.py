"""Output of `mandor explain`, for the terminal and for `mandor top`."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import click

from mandor.cli.output import age, aligned, show_table

Answer = dict[str, Any]


class TextOutput(Protocol):
    """Receives the lines and tables of an explanation."""

    def line(self, text: str = "") -> None: ...

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None: ...


class Terminal:
    """Writes to standard output."""

    def line(self, text: str = "") -> None:
        click.echo(text)

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        show_table(titles, rows)


class Lines:
    """Collects plain lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def line(self, text: str = "") -> None:
        self.lines.append(click.unstyle(text))

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        self.lines += aligned([tuple(titles), *(tuple(row) for row in rows)])


def write_explanation(answer: Answer, out: TextOutput) -> None:
    if "instance" in answer:
        _instance(answer, out)
        return
    out.line(f"workload {answer['workload']}: {answer['summary']}")
    if answer.get("nodes"):
        out.line("  " + ", ".join(f"{count} on {node}" for node, count in answer["nodes"].items()))
    for each in answer.get("instances", ()):
        out.line()
        _instance(each, out)


def _instance(answer: Answer, out: TextOutput) -> None:
    _head(answer, out)
    _forms(answer, out)
    if answer.get("node"):
        _scores(answer, out)
    else:
        _refusals(answer, out)
        _remedies(answer, out)
        for sentence in answer.get("machines", ()):
            out.line(f"  {sentence}")
    for sentence in answer.get("since", ()):
        out.line(f"  since then: {sentence}" if answer.get("decision") else f"  {sentence}")
    if answer.get("nodes"):
        out.line()
        out.table(
            ("NODE", "FITS", "REJECTED BY", "REASON"),
            [
                (each["node"], "yes" if each["fits"] else "no", each.get("plugin", "-"), each.get("why", "-"))
                for each in answer["nodes"]
            ],
        )


def _head(answer: Answer, out: TextOutput) -> None:
    phase = click.style(answer["phase"], bold=True)
    out.line(f"{answer['instance']} ({phase}): {answer['summary']}")
    profile = answer.get("profile", "default")
    if profile != "default" or answer.get("priority"):
        out.line(f"  profile {profile}, priority {answer.get('priority', 0)}")
    decision = answer.get("decision")
    if decision and not answer.get("node"):
        times = decision.get("attempts", 1)
        ago = age(decision["at"], time.time())
        out.line(f"  last attempt {ago} ago, {times} {'attempts' if times > 1 else 'attempt'} so far")
    for rule in answer.get("relaxed", ()):
        out.line(f"  relaxed: `{rule}`")
    if answer.get("ports"):
        chosen = ", ".join(f"{name} {number}" for name, number in answer["ports"].items())
        out.line(f"  host ports on {answer['node']}: {chosen}")
    if answer.get("nominated"):
        victims = answer.get("victims", ())
        by = f" by preempting {', '.join(victims)}" if victims else ""
        out.line(f"  room is being made on {answer['nominated']}{by}")
    if answer.get("versions"):
        out.line(f"  external plugins: {', '.join(answer['versions'])}")


def _forms(answer: Answer, out: TextOutput) -> None:
    """Write the forms that were tried before the chosen one; without a chosen form, the summary already covers them."""
    for each in answer.get("forms", ()) if answer.get("form") else ():
        if each["form"] == answer.get("form"):
            out.line(f"  {'form' if answer.get('node') else 'form if placed now'}: {each['form']}")
            return
        out.line(f"  {'fits by now' if each['fits'] else 'does not fit'}: {each['form']}: {each.get('message', '')}")


def _refusals(answer: Answer, out: TextOutput) -> None:
    steps = answer.get("steps", ())
    if not steps or answer.get("chosen_now"):
        return
    rows = [(each["plugin"], str(each["nodes"]), each.get("why", "-")) for each in steps[-1].get("refusals", ())]
    if len(rows) > 1:  # a single reason is already in the summary
        out.line()
        out.table(("REJECTED BY", "NODES", "REASON"), rows)
    for step in steps[1:]:
        out.line(f"  without `{step.get('gives_up', '')}`: {step['fits']} nodes fit")


def _remedies(answer: Answer, out: TextOutput) -> None:
    found = answer.get("remedies", ())
    if answer.get("chosen_now") or answer.get("nominated"):
        return
    out.line()
    if not found:
        out.line("no single change that was tried, and no two together, would let it run")
        return
    out.line(f"smallest change that would let it run: {_remedy(found[0])}")
    for each in found[1:]:
        out.line(f"  or: {_remedy(each)}")


def _remedy(each: Answer) -> str:
    without = "".join(f", without `{rule}`" for rule in each.get("relaxed", ()))
    return f"{each['text']} → {each['node']}{without}"


def _scores(answer: Answer, out: TextOutput) -> None:
    scores = answer.get("scores", ())
    if not scores:
        return
    parts = [part["plugin"] for part in scores[0].get("parts", ())]
    weights = {part["plugin"]: part["weight"] for part in scores[0].get("parts", ())}
    out.line()
    titles = ["NODE", "TOTAL", *(f"{name}×{weights[name]}" if weights[name] > 1 else name for name in parts)]
    rows = []
    for each in scores:
        mark = " *" if each["node"] == answer["node"] else ""
        own = {part["plugin"]: part for part in each.get("parts", ())}
        rows.append([each["node"] + mark, str(each["total"]), *(_part(own.get(name)) for name in parts)])
    out.table(titles, rows)


def _part(part: Answer | None) -> str:
    """Return the normalized score, with the raw score if it differs."""
    if part is None:
        return "-"
    return str(part["score"]) if part["raw"] == part["score"] else f"{part['score']} ({part['raw']})"
