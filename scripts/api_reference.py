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

Every server serves the OpenAPI document at `/openapi.json` and an interactive page at `/docs`, which needs no internet access.
Request and response bodies are JSON unless stated otherwise. For a path with a name, `?namespace=` selects the
namespace (default: `default`); nodes, namespaces and tokens are cluster-wide.

## Authentication

Send `Authorization: Bearer mdr_…`; `mandor token create` creates such a token. A server without tokens (`mandor dev`) accepts only
requests from its own machine: the Host must be a loopback name, an Origin must be the server's own, and writes need a JSON or YAML content type.

| role | reads | writes |
|---|---|---|
| `admin` | everything in its namespaces; if bound to all namespaces, also tokens, audits, backups | the same as an operator, and namespaces, nodes, tokens |
| `operator` | everything in its namespaces, nodes | workloads, requests to stop instances; if bound to all namespaces, also nodes (cordon) |
| `viewer` | everything in its namespaces, nodes | nothing |
| `node` | itself, its instances and sessions, and their workloads and releases by name | its own status (not its phase), its instances' status, events about them |
| `join` | nothing | only the node that joins |
| `component` | everything | `component:scheduler` and `component:controllers` only their own fields |

The server ignores `status` in a user's put: only the component that observes an object writes its status.

## Versions

An object's `meta.version` is the store's revision that last wrote it. A put with `meta.version` (or `?version=`) is rejected
with `conflict` if the object has changed since; the response contains the current version. With `?version=0` the object must not exist.

## Watching

`GET /v1/watch` streams lines: `{"revision": N, "before": OBJECT|null, "after": OBJECT|null}`. A line in which both are null is a bookmark: the
client has received all changes up to its revision. The stream starts with the changes since `since`, ends them with a bookmark, and then sends a bookmark
about every ten seconds. When an object stops matching the filter, the stream shows a deletion. A watch that fell behind, or whose token was
revoked, ends with a line `{"error": PROBLEM}`; on `expired`, list the objects and start a new watch from there. When the server stops, the
response ends without an error: start a new watch from the last revision, on any server. A label filter matches instances by the labels
of their workload.

## Errors

Errors are `application/problem+json` with `type, title, status, code, detail`, often a `hint`, and facts such as `version`, `path`,
`file`, `line`. Codes are never renamed.

"""

SOCKETS = {
    "/v1/instances/{name}/exec": "Run a command in an instance: `?command=a&command=b&task=&terminal=&rows=&columns=&stdin=`. Browsers, which cannot set headers, send the subprotocols `mandor.exec` and `mandor.token.TOKEN`.",
    "/v1/instances/{name}/forward": "Connect to a TCP port of an instance: `?port=NAME|NUMBER`. Channel 0 carries the caller's bytes and channel 1 those of the instance; an empty frame ends the direction. One WebSocket is one connection.",
    "/v1/sessions/{name}": "The agent of the node connects here for a session; the header `X-Mandor-Session` carries the session's secret.",
}

CHANNELS = """
Frames are binary, and the first byte is the channel: 0 standard input (an empty frame closes it), 1 standard output, 2 standard error,
3 the result (`{"code": N}`, or a problem), 4 the terminal's size (`{"rows": N, "columns": N}`). For logs, the agent sends lines
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
    rows = ["| code | status | meaning |", "|---|---|---|"]
    for code, status in STATUS.items():
        found = re.search(rf"\b{code} +(\S.*)", told)
        rows.append(f"| `{code}` | {status} | {found[1] if found else ''} |")
    usual = ", ".join(f"`{code}`" for code in ALWAYS)
    return "\n".join(rows) + f"\n\nEvery operation can fail with {usual}; further codes are listed per operation.\n"


def _operation(each: Operation) -> list[str]:
    lines = [f"**`{each.method} {each.path}`** {each.summary}."]
    asked = [_parameter(field) for field in (msgspec.structs.fields(each.query) if each.query else ())]
    if asked:
        lines.append(f"  Query: {', '.join(asked)}.")
    if each.body is not None:
        shape = each.shape if each.shape is not None else each.body
        kinds = " or ".join(f"`{kind}`" for kind in each.takes) if each.takes != (JSON,) else "JSON"
        lines.append(f"  Body: {_type(shape)} as {kinds}{' (optional)' if each.body_optional else ''}.")
    gives = "" if each.gives == JSON else f" as `{each.gives}`"
    lines.append(f"  Response: {each.status}, {_type(each.result)}{gives}.")
    more = [f"`{code}`" for code in each.refuses if code not in ALWAYS]
    if more:
        lines.append(f"  Further errors: {', '.join(more)}.")
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
