"""Templates of operations: read once, rendered for each object."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mandor.bench.scenario import Op
from mandor.bench.template import render
from mandor.errors import Invalid
from mandor.lib.yaml12 import Malformed, Map, load_all

DEFAULT_NODE = """\
kind: Node
metadata: {generateName: node-}
status: {capacity: {pods: "110", cpu: "4", memory: 32Gi}, conditions: [{type: Ready, status: "True"}]}
"""
DEFAULT_POD = """\
kind: Pod
metadata: {generateName: pod-}
spec: {containers: [{name: pause, image: pause, resources: {requests: {cpu: 100m, memory: 500Mi}}}]}
"""

BUILT_IN = "the built-in template"


class Sources:
    def __init__(self) -> None:
        self._texts: dict[Path, str] = {}

    def text(self, op: Op, path: Path | None, default: str) -> str:
        if path is None:
            return default
        if path not in self._texts:
            try:
                self._texts[path] = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                op.refuse("opcode", f"cannot read {path}: {error}")
        return self._texts[path]

    def document(self, op: Op, path: Path | None, default: str, values: Mapping[str, Any]) -> Map:
        return parsed(op, path, render(self.text(op, path, default), values, file=str(path or BUILT_IN)))


def parsed(op: Op, path: Path | None, text: str) -> Map:
    file = str(path or BUILT_IN)
    try:
        documents = load_all(text)
    except Malformed as error:
        raise Invalid(error.message, hint=error.hint, file=file, line=error.line) from None
    if len(documents) != 1 or not isinstance(documents[0].value, Map):
        raise Invalid(f"{op.opcode}: a template is one object", file=file, line=1)
    return documents[0].value
