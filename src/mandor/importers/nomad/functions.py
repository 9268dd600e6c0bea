"""HCL's functions, as far as job files use them; each gets values and gives one."""

import base64
import hashlib
import ipaddress
import json
import math
import re
import uuid
from collections.abc import Callable, Mapping
from itertools import product
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote_plus

from mandor.lib.yaml12 import dump, load_all


def text(value: Any) -> str:
    """A value as it stands in a template."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        raise ValueError("null cannot be part of a text")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, dict | list):
        raise ValueError("a list or mapping cannot be part of a text")
    return str(value)


def number(value: Any) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{value!r} is not a number") from None
    return int(found) if found.is_integer() else found


def _format(pattern: str, *values: Any) -> str:
    rest = iter(values)

    def one(match: re.Match[str]) -> str:
        if match[2] == "%":
            return "%"
        try:
            value = next(rest)
        except StopIteration:
            raise ValueError(f"format: too few values for {pattern!r}") from None
        if match[2] in "sv":
            return ("%" + match[1] + "s") % (text(value) if not isinstance(value, dict | list) else json.dumps(value))
        if match[2] == "q":
            return json.dumps(text(value))
        return str(("%" + match[1] + match[2]) % number(value))

    return re.sub(r"%([-+ 0#]*\d*(?:\.\d+)?)([a-zA-Z%])", one, pattern)


def _element(values: list[Any], index: Any) -> Any:
    if not values:
        raise ValueError("element: the list is empty")
    return values[int(index) % len(values)]


def _flat(values: list[Any]) -> list[Any]:
    return [inner for each in values for inner in (_flat(each) if isinstance(each, list) else [each])]


def _lookup(source: Mapping[str, Any], key: Any, *otherwise: Any) -> Any:
    if key in source:
        return source[key]
    if not otherwise:
        raise ValueError(f"lookup: there is no {key!r}")
    return otherwise[0]


def _merge(*sources: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for each in sources:
        made |= each or {}
    return made


def _range(*bounds: Any) -> list[int]:
    found = list(range(*(int(each) for each in bounds)))
    if len(found) > 1024:
        raise ValueError("range: at most 1024 numbers")
    return found


def _replace(source: str, old: str, new: str) -> str:
    if len(old) > 1 and old[0] == old[-1] == "/":
        return re.sub(old[1:-1], re.sub(r"\$(\w+)", r"\\g<\1>", new), source)
    return source.replace(old, new)


def _substr(source: str, start: Any, length: Any) -> str:
    begin = int(start) if int(start) >= 0 else len(source) + int(start)
    return source[begin:] if int(length) < 0 else source[begin : begin + int(length)]


def _coalesce(*values: Any) -> Any:
    for each in values:
        if each not in (None, ""):
            return each
    raise ValueError("coalesce: there is no value")


def _distinct(values: list[Any]) -> list[Any]:
    return [each for index, each in enumerate(values) if each not in values[:index]]


def _bool(value: Any) -> bool:
    if text(value) not in {"true", "false"}:
        raise ValueError(f"{value!r} is not true or false")
    return text(value) == "true"


def _uuid(namespace: str, name: Any) -> str:
    spaces = {"dns": uuid.NAMESPACE_DNS, "url": uuid.NAMESPACE_URL, "oid": uuid.NAMESPACE_OID}
    spaces["x500"] = uuid.NAMESPACE_X500
    return str(uuid.uuid5(spaces.get(namespace) or uuid.UUID(namespace), text(name)))


def _regex(pattern: str, source: str) -> Any:
    found = re.search(pattern, source)
    if found is None:
        raise ValueError(f"regex: nothing in {source[:40]!r} fits {pattern!r}")
    return _groups(found)


def _groups(found: re.Match[str]) -> Any:
    if found.re.groupindex:
        return found.groupdict()
    return list(found.groups()) if found.groups() else found[0]


def _chunks(values: list[Any], size: Any) -> list[list[Any]]:
    step = max(1, int(size))
    return [values[start : start + step] for start in range(0, len(values), step)]


def _host(block: str, number_of: Any) -> str:
    return str(ipaddress.ip_network(block, strict=False)[int(number_of)])


def _subnet(block: str, bits: Any, number_of: Any) -> str:
    network = ipaddress.ip_network(block, strict=False)
    prefix = network.prefixlen + int(bits)
    step = 1 << (network.max_prefixlen - prefix)
    return f"{network[int(number_of) * step]}/{prefix}"


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": lambda value: abs(number(value)),
    "base64decode": lambda value: base64.b64decode(value).decode("utf-8"),
    "base64encode": lambda value: base64.b64encode(text(value).encode()).decode(),
    "basename": lambda path: PurePosixPath(path).name,
    "ceil": lambda value: math.ceil(number(value)),
    "chomp": lambda value: text(value).rstrip("\r\n"),
    "chunklist": _chunks,
    "cidrhost": _host,
    "cidrnetmask": lambda block: str(ipaddress.ip_network(block, strict=False).netmask),
    "cidrsubnet": _subnet,
    "coalesce": _coalesce,
    "coalescelist": lambda *lists: next((each for each in lists if each), []),
    "compact": lambda values: [each for each in values if each not in (None, "")],
    "concat": lambda *lists: [each for one in lists for each in one],
    "contains": lambda values, value: value in values,
    "dirname": lambda path: str(PurePosixPath(path).parent),
    "distinct": _distinct,
    "element": _element,
    "flatten": _flat,
    "floor": lambda value: math.floor(number(value)),
    "format": _format,
    "formatlist": lambda pattern, values: [_format(pattern, each) for each in values],
    "indent": lambda count, value: text(value).replace("\n", "\n" + " " * int(count)),
    "index": lambda values, value: values.index(value),
    "join": lambda sign, *lists: text(sign).join(text(each) for one in lists for each in one),
    "jsondecode": json.loads,
    "jsonencode": lambda value: json.dumps(value, separators=(",", ":")),
    "keys": sorted,
    "length": len,
    "log": lambda value, base: math.log(number(value), number(base)),
    "lookup": _lookup,
    "lower": lambda value: text(value).lower(),
    "max": lambda *values: max(number(each) for each in values),
    "md5": lambda value: hashlib.md5(text(value).encode(), usedforsecurity=False).hexdigest(),
    "merge": _merge,
    "min": lambda *values: min(number(each) for each in values),
    "parseint": lambda value, base: int(text(value), int(base)),
    "pow": lambda value, by: number(value) ** number(by),
    "range": _range,
    "regex": _regex,
    "regex_replace": lambda source, old, new: re.sub(old, re.sub(r"\$(\w+)", r"\\g<\1>", new), source),
    "regexall": lambda pattern, source: [_groups(each) for each in re.finditer(pattern, source)],
    "replace": _replace,
    "reverse": lambda values: values[::-1],
    "setintersection": lambda first, *others: [each for each in first if all(each in one for one in others)],
    "setproduct": lambda *lists: [list(each) for each in product(*lists)],
    "setsubtract": lambda first, other: [each for each in first if each not in other],
    "setunion": lambda *lists: _distinct([each for one in lists for each in one]),
    "sha1": lambda value: hashlib.sha1(text(value).encode(), usedforsecurity=False).hexdigest(),
    "sha256": lambda value: hashlib.sha256(text(value).encode()).hexdigest(),
    "sha512": lambda value: hashlib.sha512(text(value).encode()).hexdigest(),
    "signum": lambda value: (number(value) > 0) - (number(value) < 0),
    "slice": lambda values, start, end: values[int(start) : int(end)],
    "sort": sorted,
    "split": lambda sign, value: text(value).split(sign),
    "strlen": lambda value: len(text(value)),
    "strrev": lambda value: text(value)[::-1],
    "substr": _substr,
    "sum": lambda values: sum(number(each) for each in values),
    "title": lambda value: text(value).title(),
    "tobool": _bool,
    "tolist": list,
    "tomap": dict,
    "tonumber": number,
    "toset": _distinct,
    "tostring": text,
    "trim": lambda value, signs: text(value).strip(signs),
    "trimprefix": lambda value, start: text(value).removeprefix(start),
    "trimspace": lambda value: text(value).strip(),
    "trimsuffix": lambda value, end: text(value).removesuffix(end),
    "upper": lambda value: text(value).upper(),
    "urlencode": lambda value: quote_plus(text(value)),
    "uuidv5": _uuid,
    "values": lambda source: [source[key] for key in sorted(source)],
    "yamldecode": lambda value: load_all(value)[0].value,
    "yamlencode": dump,
    "zipmap": lambda keys, values: dict(zip(keys, values, strict=True)),
}
