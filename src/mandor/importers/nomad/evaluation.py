"""Evaluates HCL expressions: variables and functions are filled in, values that Nomad fills in later stay text."""

import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import PurePosixPath
from typing import Any

from mandor.errors import Invalid
from mandor.importers.base import Options
from mandor.importers.nomad.budget import Budget, bounded, check_length
from mandor.importers.nomad.functions import FUNCTIONS, number, text
from mandor.importers.nomad.nodes import (
    Attribute,
    Block,
    Body,
    Branch,
    Call,
    For,
    Interpolation,
    Items,
    Literal,
    Loop,
    Name,
    Operation,
    Pairs,
    Part,
    Parts,
    Step,
    Template,
)
from mandor.lib.words import did_you_mean
from mandor.lib.yaml12 import List, Map

ITEMS_MOST = 1024
_MISTAKES = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Exceptions of an invalid expression."""

_COMPUTED: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


class Titled(Map):
    """A block: a mapping with labels."""

    __slots__ = ("labels",)

    def __init__(self, line: int, labels: tuple[str, ...]) -> None:
        super().__init__(line)
        self.labels = labels

    @property
    def title(self) -> str:
        return ".".join(self.labels)


class Later(Exception):
    """Raised for an expression whose value only a node knows."""


@dataclass(slots=True)
class Evaluator:
    file: str
    options: Options
    names: dict[str, Any] = field(default_factory=dict)
    """`var`, `local`, and the names that `for` and `dynamic` bind."""
    budget: Budget = field(default_factory=Budget)
    """Remaining steps of the file."""

    def value(self, expression: Any, line: int) -> Any:
        """Return plain data with lines; raise `Later` for a value that only a node knows, outside a text."""
        try:
            return self._value(expression, line)
        except _MISTAKES as error:
            said = str(error.args[-1]) if error.args else type(error).__name__
            raise Invalid(f"this has no value: {said}", file=self.file, line=line) from None

    def _value(self, expression: Any, line: int) -> Any:
        self.budget.spend(1, line)
        match expression:
            case Literal(value):
                return value
            case Template(parts):
                return self._template(parts, line)
            case Name(name):
                if name not in self.names:
                    raise Later
                return self.names[name]
            case Step():
                return self._step(expression, line)
            case Call():
                return self._call(expression, line)
            case Operation(sign, operands):
                return self._operation(sign, operands, line)
            case Items(items):
                made = List(line)
                for each in items:
                    made.add(self._value(each, line), line)
                return made
            case Pairs(pairs):
                return self._pairs(pairs)
            case For():
                return self._for(expression, line)
        raise AssertionError(expression)

    def _template(self, parts: Parts, line: int) -> Any:
        if len(parts) == 1 and isinstance(parts[0], Interpolation):
            try:
                return self._value(parts[0].inner, line)
            except Later:
                return parts[0].source
        made, length = list[str](), 0
        for part in parts:
            made.append(self._part(part, line))
            length += len(made[-1])
            check_length(length)
        return "".join(made)

    def _part(self, part: Part, line: int) -> str:
        match part:
            case Interpolation(inner, source):
                try:
                    return text(self._value(inner, line))
                except Later:
                    return source
            case Branch(condition, yes, no):
                chosen = yes if self._value(condition, line) in (True, "true") else no
                return text(self._template(chosen, line)) if chosen else ""
            case Loop(key, value, over, body):
                found = self._value(over, line)
                items = list(found.items()) if isinstance(found, Mapping) else list(enumerate(found))
                if len(items) > ITEMS_MOST:
                    raise ValueError(f"more than {ITEMS_MOST} items")
                return "".join(self._turn({key: name, value: each}, body, line) for name, each in items)
        return str(part)

    def _turn(self, bound: dict[str, Any], body: Parts, line: int) -> str:
        bound.pop("", None)
        inner = Evaluator(self.file, self.options, {**self.names, **bound}, self.budget)
        inner.budget.spend(1, line)
        return text(inner._template(body, line)) if body else ""

    def _step(self, step: Step, line: int) -> Any:
        source = self._value(step.of, line)
        if step.every:
            keys = step.key.value
            items = source if isinstance(source, list) else [source]
            for key in keys:
                items = [_inside(each, key) for each in items]
            return items
        key = self._value(step.key, line)
        if isinstance(source, list):
            return source[int(number(key))]
        return _inside(source, key)

    def _call(self, call: Call, line: int) -> Any:
        if call.name in {"can", "try"}:
            return self._tried(call, line)
        arguments = [self._value(each, line) for each in call.arguments]
        if call.spread:
            arguments[-1:] = arguments[-1]
        if call.name in {"file", "fileset", "templatefile", "filebase64"}:
            beside = str(PurePosixPath(self.file).parent / str(arguments[0]))
            found = self.options.read(beside) if call.name == "file" else None
            if found is None:
                raise ValueError(f"{call.name}({arguments[0]!r}): the text file does not exist")
            return found
        if call.name == "pathexpand":
            return self._home(text(*arguments))
        function = FUNCTIONS.get(call.name)
        if function is None:
            raise ValueError(f"the function {call.name} is not known here")
        self.budget.spend_on(arguments, line)
        found = bounded(function(*arguments))
        self.budget.spend_on(found, line)
        return found

    def _home(self, path: str) -> str:
        """Return the path with `~` replaced by the home directory of the user that imports."""
        home = self.options.environment.get("HOME")
        if path.partition("/")[0] != "~":
            return path
        if not home:
            raise ValueError("pathexpand: the home directory is unknown here")
        return home.rstrip("/") + path[1:]

    def _tried(self, call: Call, line: int) -> Any:
        """Evaluate `can` (whether its argument has a value) and `try` (the first argument that has one)."""
        for each in call.arguments:
            with suppress(*_MISTAKES):
                found = self._value(each, line)
                return True if call.name == "can" else found
        if call.name == "can":
            return False
        raise ValueError("try: none of them has a value")

    def _operation(self, sign: str, operands: tuple[Any, ...], line: int) -> Any:
        first = self._value(operands[0], line)
        if sign == "?":
            return self._value(operands[1 if first in (True, "true") else 2], line)
        if sign == "!":
            return not first
        if len(operands) == 1:
            return -number(first)
        if sign in {"&&", "||"}:
            return (
                bool(first) and self._value(operands[1], line)
                if sign == "&&"
                else first or self._value(operands[1], line)
            )
        second = self._value(operands[1], line)
        if sign in {"==", "!="}:
            return (first == second) is (sign == "==")
        left, right = number(first), number(second)
        if sign == "/":
            return number(left / right)
        return bounded(left % right if sign == "%" else _COMPUTED[sign](left, right))

    def _pairs(self, pairs: tuple[tuple[Any, Any, int], ...]) -> Map:
        made = Map(pairs[0][2] if pairs else 0)
        for key, value, line in pairs:
            made.set(text(self._value(key, line)), self._value(value, line), line)
        return made

    def _for(self, loop: For, line: int) -> Any:
        over = self._value(loop.over, line)
        items = list(over.items()) if isinstance(over, Mapping) else list(enumerate(over))
        if len(items) > ITEMS_MOST:
            raise ValueError(f"more than {ITEMS_MOST} items")
        listed, mapped = List(line), Map(line)
        for key, value in items:
            inner = Evaluator(self.file, self.options, {**self.names, loop.value: value}, self.budget)
            if loop.key:
                inner.names[loop.key] = key
            if loop.condition is not None and not inner._value(loop.condition, line):
                continue
            made = inner._value(loop.made, line)
            if loop.made_key is None:
                listed.add(made, line)
                continue
            name = text(inner._value(loop.made_key, line))
            if loop.grouped:
                mapped.set(name, [*mapped.get(name, []), made], line)
            else:
                mapped.set(name, made, line)
        return listed if loop.made_key is None else mapped

    # Bodies.

    def body(self, body: Body, line: int, labels: tuple[str, ...] = ()) -> Titled:
        """Return attributes, and blocks as lists of mappings by kind."""
        made = Titled(line, labels)
        for attribute in body.attributes:
            made.set(attribute.name, self.needed(attribute), attribute.line)
        for block in body.blocks:
            for kind, inner in self._block(block):
                held = made.get(kind)
                if not isinstance(held, List) or not all(isinstance(each, Titled) for each in held):
                    held = List(block.line)
                    made.set(kind, held, block.line)
                held.add(inner, block.line)
        return made

    def needed(self, attribute: Attribute) -> Any:
        """Return the value; raise `Invalid` if only a node knows it."""
        try:
            found = self.value(attribute.value, attribute.line)
            self.budget.spend_on(found, attribute.line)
            return found
        except Later:
            hint = "the value is known on the node only: write it as text, with ${…}"
            raise Invalid(
                f"`{attribute.name}` has no value here", hint=hint, file=self.file, line=attribute.line
            ) from None

    def _block(self, block: Block) -> list[tuple[str, Titled]]:
        if block.kind != "dynamic":
            return [(block.kind, self.body(block.body, block.line, block.labels))]
        given = {each.name: each for each in block.body.attributes}
        content = next((each for each in block.body.blocks if each.kind == "content"), None)
        if content is None or "for_each" not in given or not block.labels:
            raise Invalid("a dynamic block has `for_each` and `content`", file=self.file, line=block.line)
        over = self.needed(given["for_each"])
        kind = block.labels[0]
        name = self.needed(given["iterator"]) if "iterator" in given else kind
        items = list(over.items()) if isinstance(over, Mapping) else list(enumerate(over or ()))
        if len(items) > ITEMS_MOST:
            raise Invalid(f"more than {ITEMS_MOST} items", file=self.file, line=block.line)
        made = []
        for key, value in items:
            bound = {"key": value if not isinstance(over, Mapping) else key, "value": value}
            inner = Evaluator(self.file, self.options, {**self.names, str(name): bound}, self.budget)
            labels = tuple(text(each) for each in inner.needed(given["labels"])) if "labels" in given else ()
            made.append((kind, inner.body(content.body, block.line, labels)))
        return made


def needs(expression: Any) -> set[str]:
    """Return the names of the locals that the expression uses."""
    if isinstance(expression, Step) and expression.of == Name("local") and isinstance(expression.key, Literal):
        return {str(expression.key.value)}
    if isinstance(expression, tuple):
        return {name for each in expression for name in needs(each)}
    return needs(tuple(getattr(expression, each.name) for each in fields(expression))) if _node(expression) else set()


def _node(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type)


def _inside(source: Any, key: Any) -> Any:
    if not isinstance(source, Mapping):
        raise ValueError(f"there is no {key!r} in a text or number")
    if key not in source:
        raise ValueError(f"there is no {key!r}" + (f" ({did_you_mean(str(key), source)})" if source else ""))
    return source[key]
