"""Evaluates templates of Nomad (Go's text/template with functions of consul-template), as far as values are known.

A value that only a node knows stays a reference (`${MANDOR_…}`, `${secret:NAME/KEY}`): a template can print it, but not
compare or change it. Queries to Consul or the cluster have no counterpart.
"""

import base64
import json
import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mandor.importers.base import fitting_name
from mandor.importers.nomad.functions import FUNCTIONS

Names = ChainMap[str, Any]
"""Variables of a template; blocks have scopes of their own."""
Known = Callable[[str], str | None]
ITEMS_MOST = 1024
STEPS_MOST = 100_000
"""Evaluated actions of one template."""
TEXT_MOST = 1 << 20
"""Characters of a result."""
DEPTH_MOST = 32
NUMBER_MOST = 1 << 63
_TOKEN = re.compile(
    r'\s*(?:(?P<text>"(?:[^"\\\n]|\\.)*"|`[^`]*`)|(?P<number>-?\d+(?:\.\d+)?)'
    r"|(?P<variable>\$\w*(?:\.[\w-]+)*)|(?P<dots>\.(?:[\w-]+(?:\.[\w-]+)*)?)|(?P<word>\w+)|(?P<sign>:=|[=|(),]))"
)
_LATER = re.compile(r"\$\{(?:secret:|MANDOR_)")


class NoCounterpart(Exception):
    """Raised for a template without a counterpart; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Secret:
    """A secret, or a part of it that Vault adds around the keys (`.Data.data`)."""

    name: str


@dataclass(slots=True)
class Rendered:
    text: str
    secrets: dict[str, set[str]] = field(default_factory=dict)
    """Keys of the secrets in the text, by name of the secret."""


@dataclass(slots=True)
class _Block:
    """`if`, `with` or `range`: branches with their condition; the branch of `else` has none."""

    kind: str
    branches: list[tuple[str | None, list["_Node"]]]


_Node = str | tuple[str] | _Block
"""A text, an action in a tuple of one, or a block."""


def rendered(data: str, left: str, right: str, known: Known) -> Rendered:
    """Return the text with every action replaced; raise `NoCounterpart` for an action without a counterpart."""
    nodes = _parsed(data, left, right)
    evaluation = _Evaluation(known)
    made = Rendered(evaluation.run(nodes, ChainMap({"$": None}), None))
    made.secrets = evaluation.secrets
    return made


def secret_name(path: str) -> str:
    """Return the secret name for a path of Vault or of Nomad variables; `data` of Vault's paths is left out."""
    words = [word for word in path.strip("/").split("/") if word]
    if len(words) > 2 and words[1] == "data":
        del words[1]
    return fitting_name("-".join(words))


# Structure.


def _pieces(data: str, left: str, right: str) -> Iterator[tuple[str, str | None]]:
    """Return pairs of a text and the action after it, without the space that `{{-` and `-}}` remove."""
    at, trims = 0, False
    for match in re.finditer(rf"{re.escape(left)}(-?)(.*?)(-?){re.escape(right)}", data, re.DOTALL):
        text = data[at : match.start()]
        text = text.lstrip() if trims else text
        yield text.rstrip() if match[1] else text, match[2].strip()
        at, trims = match.end(), bool(match[3])
    rest = data[at:]
    if left in rest:
        raise NoCounterpart(f"`{left}` is not closed")
    yield rest.lstrip() if trims else rest, None


def _parsed(data: str, left: str, right: str) -> list[_Node]:
    top: list[_Node] = []
    opened: list[_Block] = []
    into = top
    for text, action in _pieces(data, left, right):
        if text:
            into.append(text)
        word = (action or "").partition(" ")[0]
        if action is None or action.startswith("/*"):
            continue
        if word in {"if", "with", "range"}:
            if len(opened) >= DEPTH_MOST:
                raise NoCounterpart(f"blocks are nested deeper than {DEPTH_MOST} levels")
            block = _Block(word, [(action.removeprefix(word).strip(), [])])
            into.append(block)
            opened.append(block)
            into = block.branches[-1][1]
        elif word == "else" and opened:
            rest = action.removeprefix("else").strip()
            condition = rest.removeprefix("if").removeprefix("with").strip() if rest else None
            opened[-1].branches.append((condition, []))
            into = opened[-1].branches[-1][1]
        elif word == "end" and opened:
            opened.pop()
            into = opened[-1].branches[-1][1] if opened else top
        else:
            into.append((action,))
    if opened:
        raise NoCounterpart(f"`{opened[-1].kind}` has no `end`")
    return top


# Evaluation.


@dataclass(slots=True)
class _Evaluation:
    known: Known
    secrets: dict[str, set[str]] = field(default_factory=dict)
    steps: int = 0
    length: int = 0

    def run(self, nodes: Sequence[_Node], names: Names, dot: Any) -> str:
        made = []
        for node in nodes:
            self._spend()
            if isinstance(node, str):
                made.append(self._counted(node))
            elif isinstance(node, _Block):
                made.append(self._block(node, names, dot))
            else:
                made.append(self._counted(self._action(node[0], names, dot)))
        return "".join(made)

    def _spend(self) -> None:
        self.steps += 1
        if self.steps > STEPS_MOST:
            raise NoCounterpart(f"it takes more than {STEPS_MOST:,} steps")

    def _counted(self, text: str) -> str:
        self.length += len(text)
        if self.length > TEXT_MOST:
            raise NoCounterpart(f"it makes more than {TEXT_MOST:,} characters")
        return text

    def _block(self, block: _Block, names: Names, dot: Any) -> str:
        for condition, body in block.branches:
            if condition is None:
                return self.run(body, names.new_child(), dot)
            given = _Expression(condition, self, names, dot)
            bound = given.bound()
            value = given.pipeline()
            given.finish()
            if block.kind == "range":
                items = _items(value)
                if items:
                    return "".join(self._turn(body, names, bound, key, each) for key, each in items)
            elif _true(value):
                inner = names.new_child({bound[-1]: value} if bound else {})
                return self.run(body, inner, value if block.kind == "with" else dot)
        return ""

    def _turn(self, body: Sequence[_Node], names: Names, bound: list[str], key: Any, value: Any) -> str:
        inner = names.new_child()
        if len(bound) == 2:
            inner |= {bound[0]: key, bound[1]: value}
        elif bound:
            inner[bound[0]] = value
        return self.run(body, inner, value)

    def _action(self, action: str, names: Names, dot: Any) -> str:
        given = _Expression(action, self, names, dot)
        bound = given.bound()
        value = given.pipeline()
        given.finish()
        if bound:
            held = next((each for each in names.maps if bound[-1] in each), names.maps[0])
            (names.maps[0] if given.declares else held)[bound[-1]] = value
            return ""
        return _shown(value)

    def value_of_secret(self, secret: Secret, key: str) -> str:
        self.secrets.setdefault(secret.name, set()).add(key)
        return f"${{secret:{secret.name}/{key}}}"

    def env(self, name: str) -> str:
        found = self.known(name)
        if found is None:
            raise NoCounterpart(f"the variable {name} has no value here")
        return found


class _Expression:
    """One action or condition: a pipeline of calls."""

    def __init__(self, text: str, evaluation: _Evaluation, names: Names, dot: Any) -> None:
        self.text, self.evaluation, self.names, self.dot = text, evaluation, names, dot
        self.tokens = list(self._tokens())
        self.at = 0
        self.depth = 0
        self.declares = False
        """The variables before `:=` are new."""

    def _tokens(self) -> Iterator[tuple[str, str]]:
        at = 0
        while at < len(self.text.rstrip()):
            match = _TOKEN.match(self.text, at)
            if match is None or match.lastgroup is None:
                raise self.unknown()
            yield match.lastgroup, match[match.lastgroup]
            at = match.end()

    def unknown(self) -> NoCounterpart:
        return NoCounterpart(f"`{self.text[:40]}` is evaluated by Nomad's template language at run time")

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("", "")

    def take(self, sign: str) -> bool:
        if self.peek() == ("sign", sign):
            self.at += 1
            return True
        return False

    def finish(self) -> None:
        if self.at < len(self.tokens):
            raise self.unknown()

    def bound(self) -> list[str]:
        """Return the variables before `:=` or `=`."""
        kinds = [kind if kind != "sign" else word for kind, word in self.tokens[:4]]
        self.declares = ":=" in kinds
        for sign in (":=", "="):
            if kinds[:2] == ["variable", sign]:
                self.at = 2
                return [self.tokens[0][1]]
            if kinds == ["variable", ",", "variable", sign]:
                self.at = 4
                return [self.tokens[0][1], self.tokens[2][1]]
        return []

    def pipeline(self) -> Any:
        self.depth += 1
        if self.depth > DEPTH_MOST:
            raise NoCounterpart(f"an expression is nested deeper than {DEPTH_MOST} levels")
        value = self.call(())
        while self.take("|"):
            value = self.call((value,))
        self.depth -= 1
        return value

    def call(self, piped: tuple[Any, ...]) -> Any:
        self.evaluation._spend()
        kind, word = self.peek()
        if kind == "word" and word not in {"true", "false", "nil"}:
            self.at += 1
            arguments = []
            while self.peek()[0] and self.peek() not in {("sign", "|"), ("sign", ")")}:
                arguments.append(self.operand())
            return self.apply(word, [*arguments, *piped])
        if piped:
            raise self.unknown()
        return self.operand()

    def operand(self) -> Any:
        kind, word = self.peek()
        self.at += 1
        if kind == "text":
            return word[1:-1] if word[0] == "`" else _unquoted(word)
        if kind == "number":
            return float(word) if "." in word else int(word[:40])
        if kind == "variable":
            name, *path = word.split(".")
            if name not in self.names:
                raise self.unknown()
            return self.inside(self.names[name], path)
        if kind == "dots":
            return self.inside(self.dot, [each for each in word.split(".") if each])
        if kind == "word" and word in {"true", "false", "nil"}:
            return {"true": True, "false": False}.get(word)
        if kind == "word":
            return self.apply(word, [])
        if (kind, word) == ("sign", "("):
            inner = self.pipeline()
            if not self.take(")"):
                raise self.unknown()
            following = self.peek()
            if following[0] == "dots" and following[1] != ".":
                self.at += 1
                return self.inside(inner, [each for each in following[1].split(".") if each])
            return inner
        raise self.unknown()

    def inside(self, value: Any, path: Sequence[str]) -> Any:
        if isinstance(value, Secret):
            keys = [each for each in path if each not in {"Data", "data"}]
            if keys[1:] == ["Value"]:
                keys = keys[:1]
            if len(keys) > 1:
                raise self.unknown()
            return self.evaluation.value_of_secret(value, keys[0]) if keys else value
        for key in path:
            if not isinstance(value, dict) or key not in value:
                raise self.unknown()
            value = value[key]
        return value

    def apply(self, name: str, arguments: list[Any]) -> Any:
        if name in {"env", "mustEnv"} and len(arguments) == 1:
            return self.evaluation.env(str(arguments[0]))
        if name == "envOrDefault" and len(arguments) == 2:
            found = self.evaluation.known(str(arguments[0]))
            return arguments[1] if found in {None, ""} else found
        if name in {"secret", "nomadVar"} and len(arguments) == 1 and isinstance(arguments[0], str):
            return Secret(secret_name(arguments[0]))
        if name == "index" and len(arguments) == 2 and isinstance(arguments[0], Secret):
            return self.evaluation.value_of_secret(arguments[0], str(arguments[1]))
        function = _FUNCTIONS.get(name)
        if function is None:
            raise self.unknown()
        if any(_later(each) for each in arguments) and name not in {"print", "println"}:
            raise NoCounterpart(f"`{self.text[:40]}` needs a value that is known on the node only")
        try:
            found = function(*arguments)
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
            raise NoCounterpart(f"`{self.text[:40]}`: {error}") from None
        if isinstance(found, int) and abs(found) > NUMBER_MOST:
            raise NoCounterpart(f"`{self.text[:40]}` makes a number of more than 64 bits")
        if isinstance(found, str) and len(found) > TEXT_MOST:
            raise NoCounterpart(f"it makes more than {TEXT_MOST:,} characters")
        return found


# Values and functions.


def _later(value: Any) -> bool:
    if isinstance(value, list):
        return any(_later(each) for each in value)
    return isinstance(value, Secret) or (isinstance(value, str) and _LATER.search(value) is not None)


def _true(value: Any) -> bool:
    """Return whether a condition holds; a secret that is named has to exist."""
    if isinstance(value, str) and _later(value):
        raise NoCounterpart("a condition needs a value that is known on the node only")
    return isinstance(value, Secret) or bool(value)


def _items(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, dict):
        found = sorted(value.items())
    elif isinstance(value, list):
        found = list(enumerate(value))
    else:
        raise NoCounterpart("`range` needs a list that is known")
    if len(found) > ITEMS_MOST:
        raise NoCounterpart(f"`range` has more than {ITEMS_MOST} items")
    return found


def _shown(value: Any) -> str:
    if isinstance(value, Secret):
        raise NoCounterpart("a secret is printed by its keys")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | dict):
        raise NoCounterpart("a list or mapping is not printed")
    return "" if value is None else str(value)


def _unquoted(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text[1:-1].replace('\\"', '"')


def _loop(*bounds: Any) -> list[int]:
    found = range(*(int(each) for each in bounds))
    if len(found) > ITEMS_MOST:
        raise ValueError(f"more than {ITEMS_MOST} items")
    return list(found)


def _last_true(*values: Any) -> Any:
    return next((each for each in values if not each), values[-1])


def _first_true(*values: Any) -> Any:
    return next((each for each in values if each), values[-1])


def _replaced(old: str, new: str, text: str) -> str:
    if len(text) + text.count(old) * len(new) > TEXT_MOST:
        raise ValueError(f"more than {TEXT_MOST:,} characters")
    return text.replace(old, new)


def _joined(sign: str, values: list[Any]) -> str:
    return str(FUNCTIONS["join"](sign, [_shown(each) for each in values]))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": lambda second, first: first + second,
    "and": _last_true,
    "base64Decode": lambda text: base64.b64decode(text, validate=True).decode(),
    "base64Encode": lambda text: base64.b64encode(text.encode()).decode(),
    "contains": lambda value, values: value in values,
    "divide": lambda second, first: first // second,
    "eq": lambda first, *others: first in others,
    "ge": lambda first, second: first >= second,
    "gt": lambda first, second: first > second,
    "index": lambda values, key: values[key],
    "indent": lambda spaces, text: FUNCTIONS["indent"](spaces, " " * min(64, int(spaces)) + text),
    "join": _joined,
    "le": lambda first, second: first <= second,
    "len": len,
    "loop": _loop,
    "lt": lambda first, second: first < second,
    "modulo": lambda second, first: first % second,
    "multiply": lambda second, first: float(first) * second if isinstance(first, float) else int(first) * int(second),
    "ne": lambda first, second: first != second,
    "not": lambda value: not value,
    "or": _first_true,
    "parseBool": lambda text: {"true": True, "1": True, "false": False, "0": False}[text.lower()],
    "parseFloat": lambda text: float(text[:64]),
    "parseInt": lambda text: int(text[:64]),
    "parseJSON": json.loads,
    "print": lambda *values: "".join(_shown(each) for each in values),
    "printf": FUNCTIONS["format"],
    "println": lambda *values: " ".join(_shown(each) for each in values) + "\n",
    "replaceAll": _replaced,
    "sha256Hex": FUNCTIONS["sha256"],
    "split": lambda sign, text: text.split(sign)[: ITEMS_MOST + 1],
    "subtract": lambda second, first: first - second,
    "toJSON": json.dumps,
    "toLower": lambda text: text.lower(),
    "toTitle": lambda text: text.title(),
    "toUpper": lambda text: text.upper(),
    "trim": lambda signs, text: text.strip(signs),
    "trimPrefix": lambda start, text: text.removeprefix(start),
    "trimSpace": lambda text: text.strip(),
    "trimSuffix": lambda end, text: text.removesuffix(end),
    "urlquery": FUNCTIONS["urlencode"],
}
"""Functions of Go's templates and of consul-template; the piped value is the last argument."""
