#!/usr/bin/env python3
"""Writes docs/reference from the code: manifests, scenarios, the command line, and the lists of reference_lists.py.

`reference.py` writes the pages; `--check` fails if one of them is not what the code says.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from mandor.cli.main import COMMANDS, cli
from mandor.model.json_schema import QUANTITIES, schemas
from mandor.model.manifest import LATER_KINDS
from mandor.model.reading import LATER
from mandor.model.schema import manifest_schema
from mandor.sim.scenario import Scenario
from scripts.reference_lists import errors_page, kinds_page, metrics_page, page, reasons_page, settings_page

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs" / "reference"
NOTE = "<!-- Written by scripts/reference.py; do not edit. -->"
WIDTH = 100

Schema = Mapping[str, Any]

_AMOUNTS = {
    "Cpu": "cpu",
    "Size": "size",
    "Seconds": "duration",
    "SecondsOrNever": "duration or `never`",
    "Percent": "percentage",
}
_BY_PATTERN = {pattern: _AMOUNTS[kind.__name__] for kind, (pattern, _) in QUANTITIES.items()}
_TITLES = {
    "TaskResources": "resources",
    "Toleration": "tolerate",
    "Where": "where",
    "File": "files",
    "Port": "ports",
    "WorkloadService": "services",
    "ServicePort": "port-of-a-service",
    "ServiceSource": "to",
    "ServiceHealth": "health-of-a-service",
    "Expose": "expose",
    "RouteTarget": "to-of-a-route",
    "RouteRedirect": "redirect",
    "RouteRewrite": "rewrite",
    "RouteTimeouts": "timeouts",
    "RateLimit": "rate",
    "Pool": "pool",
    "GroupVolume": "volumes",
    "TaskMount": "mounts",
    "Alternative": "alternatives",
    "TaskVariant": "tasks-of-an-alternative",
    "ScalePace": "up-and-down",
    "NodeAutoscale": "autoscale-of-a-pool",
    "MachineKind": "kinds",
    "NodeLine": "nodes",
    "TimelineEntry": "timeline",
    "Expectation": "expect",
    "UsageRule": "usage",
    "Ending": "endings",
    "Jump": "clock",
    "Between": "utilisation",
    "Counts": "instances",
    "Taint": "taints",
}
_ORDER = ("Group", "Alternative", "TaskVariant", "Task", "TaskResources", "Device", "Limits", "Probe", "ProbeCheck",
          "File", "Overhead", "TaskMount", "Stop", "Security", "Port", "WorkloadService", "ServicePort",
          "ServiceSource", "ServiceHealth", "Expose", "RouteTarget", "RouteRedirect", "RouteRewrite",
          "RouteTimeouts", "RateLimit", "GroupVolume", "Placement", "Pool", "Where",
          "Near", "Apart", "Spread", "Toleration", "Restart", "Reschedule", "Disconnect", "Disruption", "Update",
          "Autoscale",
          "ScalePace", "Metric", "Gang", "Batch", "Schedule", "Window",
          "NodeAutoscale", "MachineKind", "RoleRule", "Identity")  # fmt: skip


# The manifest.


def manifest_page() -> str:
    schema = manifest_schema()
    defs = schema["$defs"]
    assert set(_ORDER) == {name for name in defs if name[0].isupper()}, "a definition has no place on the page"
    group, task = defs["Group"]["properties"], defs["Task"]["properties"]
    own = {key: value for key, value in defs["flat"]["properties"].items() if key not in {**group, **task}}
    lines = ["# Manifest", "", NOTE, "", _INTRODUCTION, "", "## workload", ""]
    lines += _table({**own, "groups": defs["grouped"]["properties"]["groups"]}, {"name"})
    lines += ["", "Instead of `groups`, a flat manifest has the keys of [its group](#group) and of [its task](#task),"]
    lines += ["except `tasks` and `role`."]
    for name in _ORDER:
        described = defs[name].get("description", "")
        lines += ["", f"## {_title(name)}", "", *([_sentence(described), ""] if described else [])]
        lines += _table(defs[name]["properties"], set(defs[name].get("required", ())))
    for kind in (
        "namespace",
        "priority-class",
        "quota",
        "limit-defaults",
        "volume",
        "secret",
        "node-pool",
        "reservation",
        "service",
        "route",
        "network",
        "rebalance",
        "webhook",
        "event-bus",
        "log-sink",
        "role",
        "role-binding",
        "issuer",
    ):
        lines += ["", f"## {kind}", "", _sentence(defs[kind]["description"]), ""]
        lines += _table(defs[kind]["properties"], set(defs[kind]["required"]))
    lines += ["", "## Not yet", "", "These keys and kinds are reserved for later versions and rejected until then:"]
    later = sorted({key for keys in LATER.values() for key in keys})
    lines += [", ".join(f"`{key}`" for key in later) + "; the kinds"]
    lines += [", ".join(f"`{kind}`" for kind in sorted(LATER_KINDS)) + "."]
    return "\n".join(lines) + "\n"


_INTRODUCTION = """\
A manifest is YAML or JSON; several objects in a file are separated by `---`. `mandor apply -f FILE` applies
it to the cluster, `mandor schema` prints its JSON Schema for editors. See also the
[guide to manifests](../guides/manifests.md).

An unknown key, a wrong type or unit, and a duplicate key are errors with file, line and a hint. YAML is parsed as
version 1.2: `no` is a string, `010` is ten. A number in a text field keeps its spelling (`VERSION: 1.10`).

Amounts: **cpu** is cores (`2`, `0.5`) or thousandths of one (`500m`); a **size** is bytes with a unit (`256Mi`, `2GB`);
a **duration** also has units (`250ms`, `30s`, `1h30m`)."""


# The scenario.

_SCENARIO = ("NodeLine", "Amounts", "Taint", "UsageRule", "Ending", "Arrival", "Traffic", "Strategy", "TimelineEntry",
             "Slow", "Pressure", "Spike", "Limit", "Scale", "Rollout", "Messages", "Jump", "Expectation", "Counts",
             "Between")  # fmt: skip


def scenario_page() -> str:
    defs = schemas([Scenario])
    assert set(_SCENARIO) == defs.keys() - {"Scenario"}, "a definition has no place on the page"
    lines = ["# Scenario", "", NOTE, "", _REHEARSAL, ""]
    lines += _table(defs["Scenario"]["properties"], set(defs["Scenario"]["required"]))
    for name in _SCENARIO:
        described = defs[name].get("description", "")
        lines += ["", f"## {_title(name)}", "", *([_sentence(described), ""] if described else [])]
        lines += _table(defs[name]["properties"], set(defs[name].get("required", ())))
    return "\n".join(lines) + "\n"


_REHEARSAL = """\
A scenario of [`mandor simulate`](../guides/rehearse-before-you-deploy.md): one mapping in YAML or JSON.
Amounts have the format of [manifests](manifest.md).
A list in `timeline` or `expect` with one entry may be written without brackets."""


def _table(properties: Mapping[str, Schema], required: set[str]) -> list[str]:
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    for key, schema in properties.items():
        default = "required" if key in required else _code(schema["default"]) if schema.get("default", "") != "" else ""
        meaning = _sentence(_meaning(schema)).replace("|", "\\|")
        rows.append(f"| `{key}` | {_type(schema)} | {default} | {meaning} |")
    return rows


def _meaning(schema: Schema) -> str:
    text = str(schema.get("description", ""))
    return "" if text in {described for _, described in QUANTITIES.values()} else text


def _type(schema: Schema) -> str:
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return f"[{_title(name)}](#{_title(name).lower()})"
    if "const" in schema:
        return _code(schema["const"])
    if "enum" in schema:
        return ", ".join(_code(each) for each in schema["enum"])
    if "anyOf" in schema:
        return _union([each for each in schema["anyOf"] if each.get("type") != "null"])
    kind = schema.get("type")
    if isinstance(kind, list):
        words = [each for each in kind if each != "null"]
        return "text" if "string" in words else " or ".join(_word(each) for each in words)
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object":
        inner = schema.get("additionalProperties")
        return f"name: {_type(inner)}" if isinstance(inner, dict) and inner else "mapping"
    return _word(str(kind)) + _range(schema)


def _union(options: list[Schema]) -> str:
    patterns = [each.get("pattern") for each in options]
    if patterns and patterns[0] in _BY_PATTERN:
        return _BY_PATTERN[str(patterns[0])]
    words = dict.fromkeys(_type(each) for each in options)
    return " or ".join(words)


def _word(kind: str) -> str:
    return {"string": "text", "integer": "number", "number": "number", "boolean": "`true` or `false`"}.get(
        kind, "anything"
    )


def _range(schema: Schema) -> str:
    low, high = schema.get("minimum"), schema.get("maximum")
    return f" {low}…{high}" if low is not None and high is not None else ""


def _title(name: str) -> str:
    return _TITLES.get(name, name.lower())


def _code(value: Any) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _sentence(text: str) -> str:
    return " ".join(text.split())


# The command line.


def cli_page() -> str:
    lines = ["# Command line", "", NOTE, "", "Data goes to stdout, talk and progress to stderr."]
    lines += [
        "Exit status 0: done, 1: failed, 2: wrong usage, 130: interrupted; `mandor exec` passes its command's on."
    ]
    lines += ["", "```text", _help(cli, "mandor"), "```"]
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        lines += ["", f"## mandor {name}", "", "```text", _help(command, f"mandor {name}"), "```"]
        for inner in command.commands.values() if isinstance(command, click.Group) else ():
            lines += ["", f"### mandor {name} {inner.name}", "", "```text"]
            lines += [_help(inner, f"mandor {name} {inner.name}"), "```"]
    return "\n".join(lines) + "\n"


def _help(command: click.Command, path: str) -> str:
    context = click.Context(
        command, info_name=path, terminal_width=WIDTH, help_option_names=["-h", "--help"], color=False
    )
    return re.sub(r"[ \t]+$", "", command.get_help(context), flags=re.MULTILINE)


PAGES: dict[str, Callable[[], str]] = {
    "manifest.md": manifest_page,
    "scenario.md": scenario_page,
    "cli.md": cli_page,
    "errors.md": lambda: page(NOTE, errors_page()),
    "reasons.md": lambda: page(NOTE, reasons_page()),
    "metrics.md": lambda: page(NOTE, metrics_page()),
    "settings.md": lambda: page(NOTE, settings_page()),
    "kinds.md": lambda: page(NOTE, kinds_page()),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is old")
    check = parser.parse_args().check
    old = []
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        path, text = FOLDER / name, make()
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            old.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if check and old:
        print(f"old: {', '.join(old)}; run scripts/reference.py", file=sys.stderr)
    return 1 if check and old else 0


if __name__ == "__main__":
    sys.exit(main())
