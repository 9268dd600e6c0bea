"""Files with values of a job's variables: `name = value` in HCL, or an object in JSON."""

import json
from typing import Any

from mandor.errors import Invalid
from mandor.importers.base import Options
from mandor.importers.nomad.budget import Budget
from mandor.importers.nomad.evaluation import Evaluator
from mandor.importers.nomad.syntax import parse


def read_variable_files(options: Options) -> dict[str, Any]:
    """Return the values by name; later files override earlier ones."""
    found: dict[str, Any] = {}
    for path in options.variable_files:
        text = options.read(path)
        if text is None:
            raise Invalid(f"there is no text file {path}", hint="see --var-file")
        found |= _from_json(path, text) if path.endswith(".json") else _from_hcl(path, text)
    return found


def _from_json(path: str, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Invalid(f"not JSON: {error}", file=path, line=getattr(error, "lineno", 1)) from None
    if not isinstance(found, dict):
        raise Invalid("a file of variables has an object with their values", file=path, line=1)
    return found


def _from_hcl(path: str, text: str) -> dict[str, Any]:
    body = parse(text, path)
    if body.blocks:
        raise Invalid("a file of variables has no blocks: `name = value`", file=path, line=body.blocks[0].line)
    evaluator = Evaluator(path, Options(), budget=Budget(path))
    return {each.name: evaluator.needed(each) for each in body.attributes}
