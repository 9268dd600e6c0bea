"""HCL functions that job files use."""

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

from mandor.importers.nomad.budget import TEXT_MOST, bounded, check_count, check_length
from mandor.lib import regex
from mandor.lib.yaml12 import dump, load_all

DIGITS_MOST = 64
"""Characters of a text that is read as a number."""
WIDTH_MOST = 1000
"""Maximum width in `%10d` and `%.10f`."""
PATTERN_MOST = 1000


def text(value: Any) -> str:
    """Return a value as text of a template."""
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
        if isinstance(value, str) and len(value) > DIGITS_MOST:
            raise ValueError
        found = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{str(value)[:DIGITS_MOST]!r} is not a number") from None
    bounded(found)
    return int(found) if found.is_integer() else found


def _parse_int(value: Any, base: Any) -> int:
    digits = text(value)
    if len(digits) > PATTERN_MOST:
        raise ValueError(f"parseint: a number of {len(digits):,} digits")
    return int(digits, int(number(base)))


def _pow(value: Any, by: Any) -> float:
    # As a float: a power of integers can have millions of digits.
    return number(math.pow(number(value), number(by)))


_VERB = re.compile(r"%([-+ 0#]*\d*(?:\.\d+)?)([a-zA-Z%])")


def _format(pattern: str, *values: Any) -> str:
    rest = iter(values)

    def one(match: re.Match[str]) -> str:
        if match[2] == "%":
            return "%"
        if any(len(digits) > 4 or int(digits) > WIDTH_MOST for digits in re.findall(r"\d+", match[1])):
            raise ValueError(f"format: a width of more than {WIDTH_MOST}")
        try:
            value = next(rest)
        except StopIteration:
            raise ValueError(f"format: too few values for {pattern!r}") from None
        if match[2] in "sv":
            return ("%" + match[1] + "s") % (text(value) if not isinstance(value, dict | list) else json.dumps(value))
        if match[2] == "q":
            return json.dumps(text(value))
        return str(("%" + match[1] + match[2]) % number(value))

    return _VERB.sub(one, pattern)


def _format_list(pattern: str, values: list[Any]) -> list[str]:
    made, letters = list[str](), 0
    for each in values:
        made.append(_format(pattern, each))
        letters += len(made[-1])
        check_length(letters)
    return made


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
    found = range(*(int(number(each)) for each in bounds))
    # `len` fails above 2^63.
    if found and abs((found[-1] - found[0]) // found.step) >= 1024:
        raise ValueError("range: at most 1024 numbers")
    return list(found)


def _replace(source: str, old: str, new: str) -> str:
    if len(old) > 1 and old[0] == old[-1] == "/":
        return _regex_replace(source, old[1:-1], new)
    check_length(len(source) + source.count(old) * len(new))
    return source.replace(old, new)


def _regex_replace(source: str, pattern: str, new: str) -> str:
    return regex.replaced(source, _pattern(pattern), new, most=TEXT_MOST)


def _pattern(pattern: str) -> str:
    if len(pattern) > PATTERN_MOST:
        raise ValueError(f"a regular expression has at most {PATTERN_MOST} characters")
    return pattern


def _substr(source: str, start: Any, length: Any) -> str:
    begin = int(start) if int(start) >= 0 else len(source) + int(start)
    return source[begin:] if int(length) < 0 else source[begin : begin + int(length)]


def _coalesce(*values: Any) -> Any:
    for each in values:
        if each not in (None, ""):
            return each
    raise ValueError("coalesce: there is no value")


def _distinct(values: list[Any]) -> list[Any]:
    check_count(len(values))
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
    found = next(regex.matches(source, _pattern(pattern)), None)
    if found is None:
        raise ValueError(f"regex: nothing in {source[:40]!r} fits {pattern!r}")
    return _groups(found)


def _regex_all(pattern: str, source: str) -> list[Any]:
    made = list[Any]()
    for each in regex.matches(source, _pattern(pattern)):
        made.append(_groups(each))
        check_count(len(made))
    return made


def _groups(found: Any) -> Any:
    named = found.groupdict()
    if named:
        return named
    return list(found.groups()) if found.groups() else found[0]


def _concat(*lists: list[Any]) -> list[Any]:
    check_count(sum(map(len, lists)))
    return [each for one in lists for each in one]


def _join(sign: Any, *lists: list[Any]) -> str:
    words = [text(each) for each in _concat(*lists)]
    check_length(sum(map(len, words)) + len(text(sign)) * len(words))
    return text(sign).join(words)


def _indent(count: Any, value: Any) -> str:
    whole, spaces = text(value), int(number(count))
    check_length(len(whole) + whole.count("\n") * max(0, spaces))
    return whole.replace("\n", "\n" + " " * spaces)


def _set_product(*lists: list[Any]) -> list[list[Any]]:
    check_count(math.prod(map(len, lists)))
    return [list(each) for each in product(*lists)]


def _chunks(values: list[Any], size: Any) -> list[list[Any]]:
    step = max(1, int(size))
    return [values[start : start + step] for start in range(0, len(values), step)]


def _host(block: str, number_of: Any) -> str:
    return str(ipaddress.ip_network(block, strict=False)[int(number(number_of))])


def _subnet(block: str, bits: Any, number_of: Any) -> str:
    network = ipaddress.ip_network(block, strict=False)
    prefix = network.prefixlen + int(number(bits))
    if not 0 <= prefix <= network.max_prefixlen:
        raise ValueError(f"cidrsubnet: a prefix of {prefix} bits")
    step = 1 << (network.max_prefixlen - prefix)
    return f"{network[int(number(number_of)) * step]}/{prefix}"


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
    "concat": _concat,
    "contains": lambda values, value: value in values,
    "dirname": lambda path: str(PurePosixPath(path).parent),
    "distinct": _distinct,
    "element": _element,
    "flatten": _flat,
    "floor": lambda value: math.floor(number(value)),
    "format": _format,
    "formatlist": _format_list,
    "indent": _indent,
    "index": lambda values, value: values.index(value),
    "join": _join,
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
    "parseint": _parse_int,
    "pow": _pow,
    "range": _range,
    "regex": _regex,
    "regex_replace": _regex_replace,
    "regexall": _regex_all,
    "replace": _replace,
    "reverse": lambda values: values[::-1],
    "setintersection": lambda first, *others: [each for each in first if all(each in one for one in others)],
    "setproduct": _set_product,
    "setsubtract": lambda first, other: [each for each in first if each not in other],
    "setunion": lambda *lists: _distinct(_concat(*lists)),
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
    "uuidv4": lambda: str(uuid.uuid4()),
    "uuidv5": _uuid,
    "values": lambda source: [source[key] for key in sorted(source)],
    "yamldecode": lambda value: load_all(value)[0].value,
    "yamlencode": dump,
    "zipmap": lambda keys, values: dict(zip(keys, values, strict=True)),
}
