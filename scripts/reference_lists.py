"""Reference pages that list what the code defines: error codes, reasons, metrics, settings and kinds."""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import msgspec

from mandor import errors
from mandor.api.http.problems import STATUS
from mandor.cli.main import cli
from mandor.errors import MandorError
from mandor.model.codec import KINDS, to_plain
from mandor.model.json_schema import schemas
from mandor.model.manifest import APPLIED_KINDS
from mandor.roots.settings import AgentRootSettings, ServerSettings, Settings

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "mandor"
REASONS = ROOT / "docs" / "reference" / "reasons.toml"


# Error codes.

_CODE_LINE = re.compile(r"^[│├└─ ]*(?P<name>[A-Z]\w+) +(?P<code>[a-z_]+) {2,}(?P<meaning>\S.*)$", re.MULTILINE)


def error_classes() -> list[type[MandorError]]:
    """Return every error class that has a code of its own, in the order of the module."""
    found = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, MandorError)]
    return [each for each in found if "code" in vars(each)]


def errors_page() -> Iterator[str]:
    """Return the page of error codes, from the tree in the docstring of `mandor.errors`."""
    meanings = {match["code"]: match["meaning"] for match in _CODE_LINE.finditer(errors.__doc__ or "")}
    yield from ("# Error codes", "")
    yield "Every error has a stable code: `code` of a `problem+json` answer, and in the output of the command line."
    yield "`hint` says what to do about this error; other members of the answer name the object, the field or the line."
    yield from ("", "| code | HTTP status | retry | meaning |", "|---|---|---|---|")
    for each in error_classes():
        retry = "yes" if each.retry else "no"
        yield f"| `{each.code}` | {STATUS[each.code]} | {retry} | {_cell(meanings[each.code])} |"
    yield from ("", "*retry*: clients of Mandor repeat the request by themselves, after a pause that grows.")


# Reasons of events and statuses.


def reasons() -> dict[str, dict[str, dict[str, str]]]:
    """Return the table of reasons: by `event` or `status`, then by kind, then by reason."""
    return tomllib.loads(REASONS.read_text(encoding="utf-8"))


def reasons_page() -> Iterator[str]:
    """Return the page of reasons."""
    found = reasons()
    yield from ("# Reasons", "")
    yield "A reason is one word that programs can compare; the message beside it is for people and can change."
    yield from ("", "## Events", "", "`mandor events`, `mandor describe` and `/v1/events` show them.")
    for kind, table in found["event"].items():
        yield from _reason_table(f"Events of {_plural(kind)}", table)
    yield from ("", "## Statuses", "", "`status.reason` of an object; `mandor get` and `mandor describe` show it.")
    yield "Instances have events with these reasons, too: when they wait for a node, restart or fail."
    for kind, table in found["status"].items():
        yield from _reason_table(f"Statuses of {_plural(kind)}", table)


def _reason_table(title: str, table: Mapping[str, str]) -> Iterator[str]:
    yield from ("", f"### {title}", "", "| reason | meaning |", "|---|---|")
    for reason, meaning in sorted(table.items()):
        yield f"| `{reason}` | {_cell(meaning)} |"


def _plural(kind: str) -> str:
    if kind in KINDS:
        return KINDS[kind].plural.replace("-", " ")
    return {
        "receiver": "webhooks and event buses",
        "virtual-machine": "virtual machines and spare machines",
        "autoscale": "autoscaled groups",
    }[kind]


# Metrics.

_METRIC_KINDS = ("counter", "gauge", "histogram", "summary")


@dataclass(frozen=True, slots=True, order=True)
class Metric:
    """A family of metrics, as its call in the code declares it."""

    name: str
    kind: str
    meaning: str
    labels: tuple[str, ...]


def metrics() -> list[Metric]:
    """Return every family that the code declares, by name."""
    found: list[Metric] = []
    for path in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = _constants(tree)
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in _METRIC_KINDS:
                found += [_metric(path, call, call.func.id, constants)]
    return sorted(found)


def _constants(tree: ast.Module) -> dict[str, Any]:
    """Return the literals that are assigned to a name, by that name; a name that is assigned twice is left out."""
    found: dict[str, Any] = {}
    ambiguous: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in found:
                ambiguous.add(name)
            try:
                found[name] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return {name: value for name, value in found.items() if name not in ambiguous}


def _metric(path: Path, call: ast.Call, kind: str, constants: Mapping[str, Any]) -> Metric:
    module = importlib.import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))

    def value(node: ast.expr) -> Any:
        if isinstance(node, ast.Name) and node.id in constants:
            return constants[node.id]
        if isinstance(node, ast.JoinedStr):
            return "".join(str(value(each)) for each in node.values)
        if isinstance(node, ast.FormattedValue):
            return value(node.value)
        return getattr(module, node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)

    try:
        name, meaning = value(call.args[0]), value(call.args[1])
        labels: list[str] = []
        for each in call.args[3:]:
            labels += value(each.value) if isinstance(each, ast.Starred) else [value(each)]
    except (ValueError, AttributeError) as error:
        where = f"{path.relative_to(ROOT)}:{call.lineno}"
        raise SystemExit(f"{where}: the name, meaning and labels of a metric are literals or constants") from error
    return Metric(name, kind, meaning, tuple(labels))


def metrics_page() -> Iterator[str]:
    """Return the page of metrics."""
    yield from ("# Metrics", "")
    yield "Servers serve them at `/metrics`, agents at the address of `--metrics` ([guide](../guides/metrics.md))."
    yield from ("", "| name | type | labels | meaning |", "|---|---|---|---|")
    for each in metrics():
        labels = ", ".join(f"`{label}`" for label in each.labels)
        yield f"| `{each.name}` | {each.kind} | {labels} | {_cell(each.meaning)} |"


# Settings.


def settings_page() -> Iterator[str]:
    """Return the page of settings."""
    yield from ("# Settings", "")
    yield "Settings come from the file of `--config` (TOML, sections `[server]` and `[agent]`), environment and flags."
    yield "The environment overrides the file, and flags override both. Lists are separated by commas in the"
    yield "environment; their flags can be repeated."
    for section, settings in (("server", ServerSettings), ("agent", AgentRootSettings)):
        yield from ("", f"## {section}", "", f"`mandor {section}`", "")
        yield from _settings_table(section, settings)


def _settings_table(section: str, settings: type[Settings]) -> Iterator[str]:
    described = schemas([settings])[settings.__name__]["properties"]
    flags = _flags(section)
    yield from ("| file | environment | flag | default | meaning |", "|---|---|---|---|---|")
    for field in msgspec.structs.fields(settings):
        flag = f"`{flags[field.name]}`" if field.name in flags else ""
        meaning = _cell(str(described[field.name].get("description", "")))
        default = _default(to_plain(field.default))
        yield f"| `{field.name}` | `MANDOR_{field.name.upper()}` | {flag} | {default} | {meaning} |"


def _flags(section: str) -> dict[str, str]:
    command = cli.get_command(click.Context(cli), section)
    assert command is not None
    return {each.name: each.opts[0] for each in command.params if each.name and isinstance(each, click.Option)}


def _default(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(f"`{each}`" for each in value)
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{value}`" if value not in {"", None} else ""


# Kinds.


def kinds_page() -> Iterator[str]:
    """Return the page of kinds."""
    yield from ("# Kinds", "")
    yield "Every object has a kind. `/v1/PLURAL` lists the objects of a kind, `mandor get PLURAL` shows them."
    yield from ("", "| kind | plural | namespaced | applied by users | description |", "|---|---|---|---|---|")
    for kind, cls in sorted(KINDS.items()):
        applied = f"[yes](manifest.md#{kind})" if kind in APPLIED_KINDS else "no"
        meaning = _cell((cls.__doc__ or "").split("\n\n")[0])
        yield f"| `{kind}` | `{cls.plural}` | {'yes' if cls.namespaced else 'no'} | {applied} | {meaning} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def page(note: str, lines: Iterable[str]) -> str:
    """Return a page with the note that it is generated after its title."""
    title, *rest = lines
    return "\n".join([title, "", note, *rest]) + "\n"
