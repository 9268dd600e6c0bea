"""Converts Nomad's constraint, affinity and spread blocks into placement rules; `${attr.…}` into node facts."""

import re
from collections.abc import Iterable
from typing import Any

from mandor.importers.base import filled
from mandor.importers.nomad.blocks import blocks, label
from mandor.importers.part import Part

FACTS = {
    "attr.kernel.name": "os",
    "attr.os.signals": "os.signals",
    "attr.cpu.arch": "arch",
    "attr.cpu.numcores": "cpu.count",
    "attr.cpu.modelname": "cpu.model",
    "attr.unique.hostname": "hostname",
    "node.datacenter": "datacenter",
    "node.unique.name": "node",
    "node.unique.id": "node",
    "node.class": "class",
    "node.pool": "pool",
}
_DRIVERS = {"docker": "docker", "podman": "podman", "raw_exec": "process", "exec": "process", "java": "process"}
_SUGAR = ("distinct_hosts", "distinct_property", "regexp", "version", "semver", "set_contains", "set_contains_any")
_PLAIN = {"=": "==", "==": "==", "is": "==", "!=": "!=", "not": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_AGAINST = {"==": "!=", "!=": "==", "<": ">=", "<=": ">", ">": "<=", ">=": "<", "exists": "not exists", "in": "not in"}
_VERSION = re.compile(r"\s*(?P<op>~>|>=|<=|!=|=|>|<|)\s*v?(?P<version>\d[\w.+~-]*)\s*")

Placement = dict[str, Any]
"""Lists of rules by kind, and a `pool`."""


def fact_of(target: str) -> tuple[str, bool]:
    """Return the fact of `${attr.x}`, and whether every node has it by default."""
    bare = target.strip()
    if bare.startswith("${") and bare.endswith("}"):
        bare = bare[2:-1].strip()
    if bare in FACTS:
        return FACTS[bare], bare not in {"node.datacenter", "node.class"}
    for prefix in ("meta.", "node.meta.", "attr.", "node."):
        if bare.startswith(prefix):
            rest = bare.removeprefix(prefix)
            if prefix == "attr." and rest.startswith("driver."):
                return _driver(rest.removeprefix("driver.")), True
            return rest, rest in {"kernel.version", "os.name", "os.version"}
    return bare, False


def _driver(rest: str) -> str:
    name, _, detail = rest.partition(".")
    engine = _DRIVERS.get(name, name)
    return f"engine.{engine}.{detail or 'up'}"


def read_rules(placement: Placement, part: Part, workload: str) -> None:
    """Read the rules of a job, a group or a task; all of them apply to the group."""
    for each in blocks(part, "constraint"):
        _constraint(placement, each, workload)
    for each in blocks(part, "affinity"):
        _affinity(placement, each)
    for each in blocks(part, "spread"):
        _spread(placement, each)


def _constraint(placement: Placement, part: Part, workload: str) -> None:
    kind, target, value = _read(part)
    if kind == "distinct_hosts":
        if value.lower() != "false":
            _add(placement, "apart", workload=workload)
        return
    if kind == "distinct_property":
        fact, known = fact_of(target or value)
        if not known:
            _note_label(part, fact)
        most = int(value) if target and value.isdecimal() else 1
        _add(placement, "apart", workload=workload, over=fact, limit=most if most > 1 else None)
        return
    for rule in _rules(part, kind, target, value):
        _add(placement, "where", rule=rule)


def _affinity(placement: Placement, part: Part) -> None:
    weight = part.whole("weight", 50) or 0
    kind, target, value = _read(part)
    rules = list(_rules(part, kind, target, value))
    if not rules or weight == 0:
        return
    if weight < 0:
        against = [_inverted(rule) for rule in rules]
        if len(rules) > 1 or against[0] is None:
            for key in part:
                part.drop(key, "a negative affinity has no counterpart")
            return
        rules = [each for each in against if each is not None]
    for rule in rules:
        _add(placement, "where", rule=rule, strength="prefer", weight=min(100, abs(weight)))


def _spread(placement: Placement, part: Part) -> None:
    fact, known = fact_of(part.text("attribute") or "")
    if not known:
        _note_label(part, fact)
    part.drop("weight", "spreads have equal weight")
    targets: dict[str, int] = {}
    for each in blocks(part, "target"):
        named = each.text("value") or label(each, "target")
        percent = each.whole("percent") or 0
        if not 0 <= percent <= 100 - sum(targets.values()):
            raise each.wrong("percent", f"{percent} %: the targets of a spread add up to at most 100")
        targets[named] = percent
    if not fact:
        raise part.wrong("attribute", "a spread has an `attribute`")
    _add(placement, "spread", over=fact, targets=targets, strength="prefer")


def _read(part: Part) -> tuple[str, str, str]:
    """Return operator, target and value, also of the short forms."""
    target = part.text("attribute", "") or ""
    for key in _SUGAR:
        if key in part:
            return key, target, part.text(key) or ""
    return part.text("operator", "=") or "=", target, part.text("value", "") or ""


def _rules(part: Part, kind: str, target: str, value: str) -> Iterable[str]:
    fact, known = fact_of(target)
    if not fact:
        raise part.wrong("attribute", "an `attribute` is missing")
    if not known:
        _note_label(part, fact)
    if fact.endswith(".up"):
        value = {"1": "true", "0": "false"}.get(value, value)
    if kind in _PLAIN:
        sign = _PLAIN[kind]
        if sign in {"<", "<=", ">", ">="} and not re.fullmatch(r"-?\d+(\.\d+)?", value):
            yield f"{fact} version {sign} {value}"
        else:
            yield f"{fact} {sign} {_quoted(value)}"
    elif kind == "regexp":
        yield f"{fact} =~ /{value}/"
    elif kind in {"version", "semver"}:
        yield from _versions(part, fact, value)
    elif kind in {"set_contains", "set_contains_all"}:
        for word in value.split(","):
            yield f"{fact} =~ /(^|,) *{re.escape(word.strip())} *(,|$)/"
    elif kind == "set_contains_any":
        words = "|".join(re.escape(word.strip()) for word in value.split(","))
        yield f"{fact} =~ /(^|,) *({words}) *(,|$)/"
    elif kind == "is_set":
        yield f"{fact} exists"
    elif kind == "is_not_set":
        yield f"{fact} not exists"
    else:
        raise part.wrong("operator", f"there is no operator {kind!r}")


def _versions(part: Part, fact: str, text: str) -> Iterable[str]:
    for each in text.split(","):
        match = _VERSION.fullmatch(each)
        if match is None:
            raise part.wrong("value", f"{each.strip()[:40]!r} is not a version; write `>= 1.2`")
        version, sign = match["version"], match["op"]
        if sign == "~>":
            yield f"{fact} version >= {version}"
            numbers = [int(found) for found in re.findall(r"\d+", version.partition("-")[0])]
            upper = [*numbers[:-2], numbers[-2] + 1] if len(numbers) > 1 else [numbers[0] + 1]
            yield f"{fact} version < {'.'.join(str(number) for number in upper)}"
        else:
            yield f"{fact} version {'==' if sign in {'', '='} else sign} {version}"


def _inverted(rule: str) -> str | None:
    match = re.fullmatch(r"(\S+) (==|!=|<=|>=|<|>|exists)( .*)?", rule)
    return f"{match[1]} {_AGAINST[match[2]]}{match[3] or ''}" if match else None


def _quoted(value: str) -> str:
    return f'"{value}"' if not value or value[0] in "[]=\"' " or value != value.strip() else value


def _note_label(part: Part, fact: str) -> None:
    key = "attribute" if "attribute" in part else next(iter(part), "attribute")
    part.guess(key, f"a label `{fact}` of the node is required", f"mandor label NODE {fact}=…")


def _add(placement: Placement, kind: str, **rule: Any) -> None:
    made = filled(**rule)
    held = placement.setdefault(kind, [])
    if made not in held:
        held.append(made)
