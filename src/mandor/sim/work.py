"""The work of a scenario: manifests that stand in it, or in files beside it."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mandor.errors import Invalid
from mandor.lib.yaml12 import dump
from mandor.model.manifest import load_files
from mandor.model.meta import Object

FILE = "file"


def load_work(entries: Sequence[dict[str, Any]], folder: Path, where: str) -> list[Object]:
    """Every object, in order; `Invalid` with file and line for a mistake."""
    sources: list[tuple[str, str | bytes]] = []
    for number, entry in enumerate(entries):
        if FILE not in entry:
            sources.append((f"{where} (workload {number + 1})", dump(entry)))
            continue
        if len(entry) > 1:
            raise Invalid(
                f"`{FILE}` stands by itself", hint=f"a list item is a manifest, or `{FILE}: FILE`", file=where
            )
        names = entry[FILE]
        for name in names if isinstance(names, list) else [names]:
            sources += _files(folder / str(name))
    return [each.object for each in load_files(sources)] if sources else []


def _files(path: Path) -> Iterable[tuple[str, bytes]]:
    paths = sorted(path.glob("*.y*ml")) if path.is_dir() else [path]
    if not paths:
        raise Invalid(f"there is no manifest in {path}")
    for each in paths:
        try:
            yield str(each), each.read_bytes()
        except OSError as error:
            raise Invalid(f"cannot read {each}: {(error.strerror or str(error)).lower()}") from error
