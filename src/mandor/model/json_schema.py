"""JSON Schemas (2020-12) of model types, with descriptions for editors and clients."""

import ast
import inspect
import textwrap
from collections.abc import Iterable
from enum import Enum
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct

from mandor.lib.quantity import Cpu, Percent, Seconds, SecondsOrNever, Size
from mandor.model.codec import to_plain

Schema = dict[str, Any]

_DURATION = r"\s*(\d+(\.\d+)?|(\d+(\.\d+)?(ms|s|m|h|d))+)\s*"
QUANTITIES: dict[type, tuple[str, str]] = {
    Cpu: (r"^\s*\d+(\.\d+)?\s*m?\s*$", "CPU in cores (`0.5`, `2`) or thousandths of a core (`500m`)."),
    Size: (r"^\s*\d+(\.\d+)?\s*([kKMGTP]i?B?|B)?\s*$", "Size in bytes, with an optional unit: `256Mi`, `2GB`."),
    Seconds: (f"^{_DURATION}$", "A duration: `250ms`, `30s`, `1h30m`."),
    Percent: (r"^\s*\d+(\.\d+)?\s*%?\s*$", "Percentage: `70%`."),
    SecondsOrNever: (f"^(never|{_DURATION})$", "A duration (`30s`, `1h30m`), or `never`."),
}
_SCALARS: dict[Any, Schema] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    NoneType: {"type": "null"},
    Any: {},
    object: {},
}
_BOUNDS = {"ge": "minimum", "le": "maximum", "gt": "exclusiveMinimum", "lt": "exclusiveMaximum", "pattern": "pattern"}


class SchemaMaker:
    """Makes schemas and collects the definitions of the structs in use in `defs`; `ref` is the pattern of references to
    them.
    """

    def __init__(self, ref: str = "#/$defs/{name}") -> None:
        self.ref = ref
        self.defs: dict[str, Schema] = {}

    def schema(self, kind: Any) -> Schema:
        if kind in _SCALARS:
            return dict(_SCALARS[kind])
        if kind in QUANTITIES:
            return _quantity(kind)
        origin, args = get_origin(kind), get_args(kind)
        if origin is Annotated:
            return self._annotated(args)
        if origin in {Union, UnionType}:
            return self._union(args)
        if origin is Literal:
            return {"enum": list(args)}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.schema(args[1])}
        if origin in {tuple, list, set, frozenset}:
            return {"type": "array", "items": self.schema(args[0])}
        if isinstance(kind, type) and issubclass(kind, Enum):
            return {"enum": [each.value for each in kind]}
        if isinstance(kind, type) and issubclass(kind, Struct):
            return self._struct(kind)
        raise TypeError(f"no schema for {kind!r}")

    def _annotated(self, args: tuple[Any, ...]) -> Schema:
        found = self.schema(args[0])
        for bounds in args[1:]:
            if not isinstance(bounds, msgspec.Meta):
                continue
            found |= {word: value for key, word in _BOUNDS.items() if (value := getattr(bounds, key)) is not None}
            if bounds.max_length is not None:
                found["maxLength" if found.get("type") == "string" else "maxItems"] = bounds.max_length
        return found

    def _union(self, args: tuple[Any, ...]) -> Schema:
        options = [self.schema(each) for each in args]
        if all(option.keys() == {"type"} and isinstance(option["type"], str) for option in options):
            return {"type": [option["type"] for option in options]}
        return {"anyOf": options}

    def _struct(self, kind: type[Struct]) -> Schema:
        name = kind.__name__
        if name not in self.defs:
            made: Schema = self.defs.setdefault(name, {"type": "object"})
            own = inspect.cleandoc(kind.__dict__.get("__doc__") or "")
            if own:
                made["description"] = own
            made["properties"] = self._properties(kind)
            required = [each.encode_name for each in msgspec.structs.fields(kind) if _required(each)]
            config = kind.__struct_config__
            if config.tag is not None and config.tag_field is not None:
                made["properties"] = {config.tag_field: {"const": config.tag}} | made["properties"]
                required = [config.tag_field, *required]
            if required:
                made["required"] = required
            if config.forbid_unknown_fields:
                made["additionalProperties"] = False
        return {"$ref": self.ref.format(name=name)}

    def _properties(self, kind: type[Struct]) -> dict[str, Schema]:
        docs = field_docs(kind)
        found: dict[str, Schema] = {}
        for each in msgspec.structs.fields(kind):
            schema = self.schema(each.type)
            if each.name in docs:
                schema["description"] = docs[each.name]
            if each.default is not NODEFAULT and each.default is not None and not isinstance(each.default, Struct):
                default = to_plain(each.default)
                # An empty list or mapping is the same as an absent one.
                schema |= {"default": default} if default or not isinstance(default, list | tuple | dict) else {}
            found[each.encode_name] = schema
        return found


def _required(each: msgspec.structs.FieldInfo) -> bool:
    return each.default is NODEFAULT and each.default_factory is NODEFAULT


def _quantity(kind: type) -> Schema:
    pattern, description = QUANTITIES[kind]
    return {
        "anyOf": [{"type": "string", "pattern": pattern}, {"type": "number", "minimum": 0}],
        "description": description,
    }


@cache
def field_docs(kind: type[Struct]) -> dict[str, str]:
    """Map each field to the docstring below it in the source; empty if the source is not available."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not isinstance(base, type(Struct)) or base is Struct:
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError):
            continue
        body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
        for line, doc in pairwise(body):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                found |= _doc(line.target.id, doc)
    return found


def _doc(name: str, after: ast.stmt) -> dict[str, str]:
    if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
        return {name: inspect.cleandoc(after.value.value)}
    return {}


def schemas(kinds: Iterable[Any], ref: str = "#/$defs/{name}") -> dict[str, Schema]:
    """Return the definitions of these structs and of all types that they use."""
    maker = SchemaMaker(ref)
    for kind in kinds:
        maker.schema(kind)
    return maker.defs
