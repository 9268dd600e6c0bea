#!/usr/bin/env python3
# ruff: noqa: E501 – the page's own lines
"""Writes docs/reference/api.md from the API's table of operations; `--check` fails if the page is another."""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from pathlib import Path
from typing import Any, get_args

import msgspec

from mandor import errors
from mandor.api.app import OPERATIONS
from mandor.api.http.problems import STATUS
from mandor.api.openapi import ALWAYS
from mandor.api.operation import JSON, Operation
from mandor.api.routes.sessions import WEBSOCKETS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "api.md"

HEAD = """\
# HTTP API

<!-- Written by scripts/api_reference.py; do not edit. -->

Every server has the full document at `/openapi.json`, and a page to try it out at `/docs`, which needs no internet.
Bodies and answers are JSON unless it is said otherwise. Where a name stands in a path, `?namespace=` says in which
namespace (default: `default`); nodes, namespaces and tokens belong to none.

## Who is asking

`Authorization: Bearer mdr_…`; `mandor token create` makes such a token. Without tokens (`mandor dev`) only this machine is
served: the Host must be a loopback name, an Origin must be the server's own, and writes need a JSON or YAML content type.

| role | reads | writes |
|---|---|---|
| `admin` | everything in its namespaces; with all of them also tokens, audits, backups | what an operator does, namespaces, nodes, tokens |
| `operator` | everything in its namespaces, nodes | workloads, orders to stop instances; with all namespaces also nodes (cordon) |
| `viewer` | everything in its namespaces, nodes | nothing |
| `node` | itself, its instances and sessions, and their workloads and releases by name | its own status (not its phase), its instances' status, events about them |
| `join` | nothing | one thing: a node that joins |
| `component` | everything | `component:scheduler` and `component:controllers` only their own fields |

A user's `status` in a put is ignored: status is written by whoever observes it.

## Versions

An object's `meta.version` is the store's revision that last wrote it. A put with `meta.version` (or `?version=`) is refused
with `conflict` if the object has moved on; the answer tells the version that won. `?version=0`: the object must be new.

## Watching

`GET /v1/watch` streams lines: `{"revision": N, "before": OBJECT|null, "after": OBJECT|null}`. Both null is a bookmark: nothing up
to its revision was missed. The first line(s) catch up from `since` to now and end with a bookmark; then a bookmark comes
about every ten seconds. A filter that an object leaves shows a deletion. A watch that fell behind, and one whose token was
revoked, ends with a line `{"error": PROBLEM}`; on `expired`, list again and watch from there. When the server stops, the
answer just ends: watch again from the last revision, at another server or the same. Instances are selected by the labels
of their workload.

## Errors

`application/problem+json` with `type, title, status, code, detail`, often a `hint`, and facts such as `version`, `path`,
`file`, `line`. A code is never renamed.

"""

SOCKETS = {
    "/v1/instances/{name}/exec": "Run a command in an instance: `?command=a&command=b&task=&terminal=&rows=&columns=&stdin=`. A browser, which sets no headers, offers the protocols `mandor.exec` and `mandor.token.TOKEN`.",
    "/v1/sessions/{name}": "Where a node's agent dials back; header `X-Mandor-Session` with the session's secret.",
}

CHANNELS = """
Frames are binary, and the first byte is the channel: 0 standard input (empty: it ends), 1 standard output, 2 standard error,
3 the end (`{"code": N}`, or a problem), 4 the terminal's size (`{"rows": N, "columns": N}`). For logs the agent sends lines
`{"at": SECONDS, "stream": "stdout", "text": "…"}` on channels 1 and 2.
"""


def page() -> str:
    lines = [HEAD + _errors()]
    tags = dict.fromkeys(each.tag for each in OPERATIONS)
    for tag in sorted(tags, key=lambda tag: (tag not in {"manifests", "store", "server"}, tag)):
        lines += [f"\n## {tag.capitalize()}\n"]
        for each in OPERATIONS:
            if each.tag == tag:
                lines += _operation(each)
    lines += ["\n## WebSockets\n", "| path | |", "|---|---|"]
    lines += [f"| `{path}` | {SOCKETS[path]} |" for path in WEBSOCKETS]
    return "\n".join(lines) + "\n" + CHANNELS


def _errors() -> str:
    told = inspect.getdoc(errors) or ""
    rows = ["| code | status | means |", "|---|---|---|"]
    for code, status in STATUS.items():
        found = re.search(rf"\b{code} +(\S.*)", told)
        rows.append(f"| `{code}` | {status} | {found[1] if found else ''} |")
    usual = ", ".join(f"`{code}`" for code in ALWAYS)
    return "\n".join(rows) + f"\n\nEvery operation may answer {usual}; others are named with it.\n"


def _operation(each: Operation) -> list[str]:
    lines = [f"**`{each.method} {each.path}`** {each.summary}."]
    asked = [_parameter(field) for field in (msgspec.structs.fields(each.query) if each.query else ())]
    if asked:
        lines.append(f"  Query: {', '.join(asked)}.")
    if each.body is not None:
        shape = each.shape if each.shape is not None else each.body
        kinds = " or ".join(f"`{kind}`" for kind in each.takes) if each.takes != (JSON,) else "JSON"
        lines.append(f"  Body: {_type(shape)} as {kinds}{' (may be left out)' if each.body_optional else ''}.")
    gives = "" if each.gives == JSON else f" as `{each.gives}`"
    lines.append(f"  Answer: {each.status}, {_type(each.result)}{gives}.")
    more = [f"`{code}`" for code in each.refuses if code not in ALWAYS]
    if more:
        lines.append(f"  May also refuse with {', '.join(more)}.")
    return [*[f"{line}<br>" for line in lines[:-1]], lines[-1] + "\n"]


def _parameter(field: msgspec.structs.FieldInfo) -> str:
    default = field.default
    shown = (
        ""
        if default in {None, "", msgspec.NODEFAULT} or default == ()
        else f" ({msgspec.json.encode(default).decode()})"
    )
    return f"`{field.encode_name}`{shown}"


def _type(kind: Any) -> str:
    if kind is Any or kind is None:
        return "objects"
    if kind is bytes or kind is str:
        return "text"
    if get_args(kind):
        return "an object"
    return f"`{kind.__name__}`"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is stale")
    if not parser.parse_args().check:
        PAGE.write_text(page())
        return 0
    if PAGE.read_text() != page():
        print("docs/reference/api.md is not what the code says; run scripts/api_reference.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
