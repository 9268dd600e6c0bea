#!/usr/bin/env python3
"""Writes docs/reference/imported-keys.md: how the importers map each key of other tools' files.

The table is measured: the script changes each value of three files that contain every key, and records the changes in
the manifests and the notes. `--check` fails if the page is out of date.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mandor.importers.base import Options
from mandor.importers.fates import KeyFate, Outcome, key_fates
from mandor.importers.trees import parse_tree

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "imported-keys.md"
FOLDER = ROOT / "tests" / "importers" / "files" / "keys"
FILES = {"compose": "compose.yaml", "kubernetes": "kubernetes.yaml", "nomad": "nomad.nomad.hcl"}
TITLES = {"compose": "Docker Compose", "kubernetes": "Kubernetes", "nomad": "Nomad"}
BESIDE = {"web.env": "B=1", "web.labels": "c=d"}
OTHERS: dict[str, list[Any]] = {
    "accessModes": [["ReadWriteMany"]],
    "apiVersion": ["v9"],
    "change_mode": ["noop", "restart"],
    "completionMode": ["NonIndexed"],
    "concurrencyPolicy": ["Allow"],
    "condition": ["service_started", "any"],
    "crons": [["1 2 * * *"]],
    "defaultMode": [0o400],
    "delay_function": ["constant"],
    "driver": ["podman", "raw_exec", "docker"],
    "effect": ["NoSchedule"],
    "failure_action": ["pause"],
    "endpoint_mode": ["dnsrr"],
    "externalTrafficPolicy": ["Cluster"],
    "fieldPath": ["spec.nodeName"],
    "health_check": ["task_states"],
    "hook": ["prestart", "poststart"],
    "imagePullPolicy": ["Never"],
    "internalTrafficPolicy": ["Local"],
    "kind": ["ReplicaSet", "Other"],
    "medium": ["Memory", ""],
    "mode": ["global", "host", "none", "fail", "delay", "ingress", "file", "0400"],
    "network_mode": ["none"],
    "nofile": ["3:4"],
    "operator": ["!=", "NotIn", "Exists"],
    "order": ["start-first", "stop-first"],
    "path": ["/other", "/else"],
    "pathType": ["Exact"],
    "perms": ["600"],
    "platform": ["linux/arm64"],
    "preemptionPolicy": ["Never"],
    "propagation_mode": ["host-to-task"],
    "protocol": ["UDP", "udp"],
    "provider": ["consul"],
    "pull_policy": ["never"],
    "resource": ["limits.cpu"],
    "restart": ["no", "on-failure"],
    "restartPolicy": ["Never", "OnFailure"],
    "schedule": ["1 2 * * *"],
    "scheme": ["HTTPS"],
    "selectPolicy": ["Min"],
    "sessionAffinity": ["None"],
    "stopSignal": ["SIGINT"],
    "stop_signal": ["SIGUSR1"],
    "trafficDistribution": ["PreferSameNode"],
    "type": ["batch", "service", "tcp", "Recreate", "OnDelete", "ClusterIP", "bind", "Pod", "Percent", "Pods", "Block"],
    "volumeMode": ["Block"],
    "weight": [7],
    "whenUnsatisfiable": ["DoNotSchedule"],
}
"""Values that a key may have, where not any text will do."""
_WORDS: dict[Outcome, str] = {
    "mapped": "",
    "guessed": "guessed",
    "dropped": "dropped",
    "ignored": "no effect",
    "told": "default; otherwise",
    "checked": "checked",
    "silent": "no effect here",
}

_NAMED = re.compile(r"^(ports|volumes)\.[\w.-]+?(\.(?:port|host|protocol|size|owner|mode|type|path|volume))?$")


@cache
def fates(name: str) -> list[KeyFate]:
    text = (FOLDER / FILES[name]).read_text(encoding="utf-8")
    options = Options(
        read=lambda path: BESIDE.get(path.rpartition("/")[2]),
        environment={"KEY": "k"},
        profiles=("extra",),
        unisolated=True,
    )
    found = parse_tree(name, text, options)
    return list(key_fates(found.tree, found.read, OTHERS))


def title(fate: KeyFate, kinds: dict[int, str]) -> str:
    """The key without the names that the file chose, and without numbers."""
    steps = [step for step in fate.path[1:] if isinstance(step, str)]
    if fate.path[0] == "job":
        return ".".join(["job", *steps[1:]])
    if kinds:
        return f"{kinds[int(fate.path[0])]}: {'.'.join(steps)}"
    if steps[0] in {"services", "networks", "volumes", "configs", "secrets", "models"} and len(steps) > 1:
        steps[1] = "*"
    return ".".join(steps)


def rows(name: str) -> Iterator[str]:
    text = (FOLDER / FILES[name]).read_text(encoding="utf-8")
    documents = re.findall(r"^kind: (\w+)", text, re.MULTILINE)
    kinds = dict(enumerate(documents)) if name == "kubernetes" else {}
    merged: dict[str, list[str]] = {}
    for each in fates(name):
        found = merged.setdefault(title(each, kinds), [])
        said = cell(each)
        if said not in found:
            found.append(said)
    for key, cells in merged.items():
        yield f"| `{key}` | {'; '.join(cells)} |"


def cell(fate: KeyFate) -> str:
    places = sorted({_place(each) for each in fate.becomes})
    shown = ", ".join(f"`{each}`" for each in places[:4]) + (" …" if len(places) > 4 else "")
    word = _WORDS[fate.outcome]
    note = fate.note.replace("|", "\\|")
    told = f"*{word}*{': ' + note if note else ''}" if word else ""
    return ": ".join(each for each in (shown, told) if each) if shown else told


def _place(path: str) -> str:
    bare = re.sub(r"^groups\.[\w-]+\.|(?<=\.)tasks\.[\w-]+\.|^tasks\.[\w-]+\.", "", path)
    bare = re.sub(r"^tasks\.[\w-]+\.", "", bare)
    bare = re.sub(r"^options\.(docker|podman|cri|process)\b", "options", bare)
    bare = re.sub(r"^(env|labels|secrets|devices)\..*", r"\1", bare)
    return _NAMED.sub(r"\1\2", bare) or "the object"


def page() -> str:
    lines = [
        "# Imported keys",
        "",
        "<!-- Written by scripts/imported_keys.py; do not edit. -->",
        "",
        "Keys of other tools' files that `mandor import`, `apply` and `plan` read.",
        "See the [guide](../guides/bring-your-files.md). The right column shows which part of the manifest",
        "depends on the value, and the note of the importer:",
        "",
        "| word | meaning |",
        "|---|---|",
        "| *guessed* | the key is in the manifest, but with a slightly different meaning |",
        "| *dropped* | the key is not in the manifest |",
        "| *default; otherwise* | no note for Mandor's own behaviour; the note applies to any other value |",
        "| *checked* | the value must match the rest of the file |",
        "| *no effect* | the key's own tool ignores it, or it is a name that is not needed |",
        "",
        "The importer reports guessed and dropped keys with file and line; `--strict` rejects them.",
    ]
    for name in FILES:
        lines += ["", f"## {TITLES[name]}", "", "| key | becomes |", "|---|---|", *rows(name)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    made = page()
    if "--check" in sys.argv:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != made:
            sys.exit("docs/reference/imported-keys.md is not what the importers do: run scripts/imported_keys.py")
    else:
        PAGE.write_text(made, encoding="utf-8")
