"""Renders our Helm chart: the few words of Go's templates that it uses, and an error for any other."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

_TAG = re.compile(r"(\s*)\{\{(-?)\s*(.*?)\s*\}\}")
_RANGE = re.compile(r"range \$(\w+), \$(\w+) := (\S+)")

Scope = Mapping[str, Any]


def render(chart: Path, *, values: Mapping[str, Any] | None = None, release: str = "mandor") -> list[dict[str, Any]]:
    """All objects of the chart; `values` are laid over its own."""
    found = yaml.safe_load((chart / "values.yaml").read_text())
    for key, value in (values or {}).items():
        assert key in found, f"values.yaml has no {key}"
        found[key] = {**found[key], **value} if isinstance(found[key], dict) else value
    scope = {"Values": found, "Release": {"Name": release, "Namespace": "seed"}}
    objects: list[dict[str, Any]] = []
    for path in sorted((chart / "templates").glob("*.yaml")):
        objects += [each for each in yaml.safe_load_all(_render(path.read_text(), scope)) if each]
    return objects


def _render(text: str, scope: Scope) -> str:
    tokens: list[str | None] = []
    at = 0
    for match in _TAG.finditer(text):
        # `{{-` eats the space before it, as Go's does.
        tokens += [text[at : match.start()] + ("" if match[2] else match[1]), match[3]]
        at = match.end()
    out, rest = _block([*tokens, text[at:]], 0, scope)
    assert rest == len(tokens) + 1, "an `end` too many"
    return out


def _block(tokens: Sequence[str | None], at: int, scope: Scope) -> tuple[str, int]:
    """From the text at `at` up to its `end`; even places are text, odd ones are tags."""
    out = ""
    while at < len(tokens):
        out += tokens[at] or ""
        at += 1
        if at == len(tokens):
            return out, at
        tag = tokens[at] or ""
        if tag == "end":
            return out, at
        if tag.startswith("if "):
            inner, end = _block(tokens, at + 1, scope)
            out += inner if _value(tag.removeprefix("if "), scope) else ""
            at = end + 1
        elif loop := _RANGE.fullmatch(tag):
            end = at
            items = _value(loop[3], scope)
            for key in sorted(items):
                inner, end = _block(tokens, at + 1, {**scope, f"${loop[1]}": key, f"${loop[2]}": items[key]})
                out += inner
            at = (end if items else _block(tokens, at + 1, {**scope, f"${loop[1]}": "", f"${loop[2]}": ""})[1]) + 1
        else:
            out += _shown(tag, scope)
            at += 1
    return out, at


def _shown(tag: str, scope: Scope) -> str:
    path, *filters = (word.strip() for word in tag.split("|"))
    value = _value(path, scope)
    for each in filters:
        assert each in {"quote", "toJson"}, f"{each} is not known here"
        value = json.dumps(str(value) if each == "quote" else value)
    assert isinstance(value, str | int), f"{tag} is no scalar"
    return str(value)


def _value(path: str, scope: Scope) -> Any:
    if path.startswith("$"):
        return scope[path]
    assert re.fullmatch(r"(\.\w+)+", path), f"{path!r} is not known here"
    found: Any = scope
    for step in path[1:].split("."):
        assert step in found, f"there is no {path}"
        found = found[step]
    return found
