"""Parser for HCL: blocks and expressions, each with its line.

Native syntax only: attributes, blocks, templates, heredocs, operators, calls, `for`. Nothing is evaluated here.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from mandor.errors import Invalid

DEPTH_MOST = 64
BYTES_MOST = 1 << 20

_SPACE = re.compile(r"(?:[ \t\r]+|#[^\n]*|//[^\n]*|/\*.*?\*/)+", re.DOTALL)
_SPACE_LINES = re.compile(r"(?:\s+|#[^\n]*|//[^\n]*|/\*.*?\*/)+", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][\w-]*")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_HEREDOC = re.compile(r"<<(-?)([A-Za-z_]\w*)\r?\n")
_BINARY = (("||",), ("&&",), ("==", "!="), ("<=", ">=", "<", ">"), ("+", "-"), ("*", "/", "%"))
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}


@dataclass(frozen=True, slots=True)
class Literal:
    value: Any


@dataclass(frozen=True, slots=True)
class Interpolation:
    """`${…}` inside a template, and how it was written."""

    inner: Any
    source: str


@dataclass(frozen=True, slots=True)
class Template:
    parts: tuple[str | Interpolation, ...]


@dataclass(frozen=True, slots=True)
class Name:
    name: str


@dataclass(frozen=True, slots=True)
class Step:
    """`of.key` or `of[key]`; `every`: applied to each item (`of[*].key`)."""

    of: Any
    key: Any
    every: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: tuple[Any, ...]
    spread: bool
    """The last argument is a list of arguments."""


@dataclass(frozen=True, slots=True)
class Operation:
    operator: str
    operands: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Items:
    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Pairs:
    pairs: tuple[tuple[Any, Any, int], ...]
    """Key, value and line."""


@dataclass(frozen=True, slots=True)
class For:
    key: str
    value: str
    over: Any
    made_key: Any
    made: Any
    condition: Any
    grouped: bool


@dataclass(frozen=True, slots=True)
class Attribute:
    name: str
    value: Any
    line: int


@dataclass(slots=True)
class Body:
    attributes: list[Attribute] = field(default_factory=list)
    blocks: list["Block"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Block:
    kind: str
    labels: tuple[str, ...]
    body: Body
    line: int


def parse(text: str, file: str) -> Body:
    """Parse HCL; raise `Invalid` with file and line."""
    if len(text) > BYTES_MOST:
        raise Invalid(f"more than {BYTES_MOST:,} characters", file=file, line=1)
    reader = _Reader(text.removeprefix("\ufeff"), file)
    return reader.body(end="")


class _Reader:
    def __init__(self, text: str, file: str, first_line: int = 1) -> None:
        self.text = text
        self.file = file
        self.at = 0
        self.first_line = first_line
        self.depth = 0

    # Position.

    def line(self, at: int | None = None) -> int:
        return self.first_line + self.text.count("\n", 0, self.at if at is None else at)

    def wrong(self, message: str, at: int | None = None) -> Invalid:
        return Invalid(f"not HCL: {message}", file=self.file, line=self.line(at))

    def skip(self, *, lines: bool) -> None:
        found = (_SPACE_LINES if lines else _SPACE).match(self.text, self.at)
        if found:
            self.at = found.end()

    def takes(self, sign: str) -> bool:
        if self.text.startswith(sign, self.at):
            self.at += len(sign)
            return True
        return False

    def expect(self, sign: str) -> None:
        self.skip(lines=True)
        if not self.takes(sign):
            raise self.wrong(f"`{sign}` is missing before {self.text[self.at : self.at + 12]!r}")

    def word(self) -> str | None:
        found = _WORD.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found[0]

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > DEPTH_MOST:
            raise self.wrong(f"nested deeper than {DEPTH_MOST} levels")

    # Bodies.

    def body(self, end: str) -> Body:
        self.deeper()
        found = Body()
        while True:
            self.skip(lines=True)
            if self.at >= len(self.text):
                if end:
                    raise self.wrong(f"`{end}` is missing at the end")
                break
            if end and self.takes(end):
                break
            self.entry(found)
        self.depth -= 1
        return found

    def entry(self, body: Body) -> None:
        start = self.at
        name = self.word()
        if name is None and self.text.startswith('"', self.at):
            name = self.plain()
        if name is None:
            raise self.wrong(f"expected a name, not {self.text[self.at : self.at + 12]!r}")
        self.skip(lines=False)
        if self.text.startswith("=", self.at) and not self.text.startswith("==", self.at):
            self.at += 1
            body.attributes.append(Attribute(name, self.expression(), self.line(start)))
            return
        labels = []
        while not self.text.startswith("{", self.at):
            label = self.plain() if self.text.startswith('"', self.at) else self.word()
            if label is None:
                raise self.wrong(f"after `{name}` comes `=` or a block in braces", start)
            labels.append(label)
            self.skip(lines=False)
        self.at += 1
        body.blocks.append(Block(name, tuple(labels), self.body("}"), self.line(start)))

    def plain(self) -> str:
        value = self.quoted()
        if isinstance(value, Literal) and isinstance(value.value, str):
            return value.value
        raise self.wrong("expected plain text")

    # Expressions.

    def expression(self) -> Any:
        self.deeper()
        self.skip(lines=True)
        condition = self.binary(0)
        self.skip(lines=False)
        ahead = _SPACE_LINES.match(self.text, self.at)
        after = ahead.end() if ahead else self.at
        if self.text.startswith("?", after):
            self.at = after + 1
            yes = self.expression()
            self.expect(":")
            condition = Operation("?", (condition, yes, self.expression()))
        self.depth -= 1
        return condition

    def binary(self, level: int) -> Any:
        if level == len(_BINARY):
            return self.unary()
        left = self.binary(level + 1)
        while True:
            self.skip(lines=False)
            sign = next((each for each in _BINARY[level] if self.text.startswith(each, self.at)), None)
            if sign is None:
                return left
            self.at += len(sign)
            self.skip(lines=True)
            left = Operation(sign, (left, self.binary(level + 1)))

    def unary(self) -> Any:
        self.skip(lines=True)
        for sign in ("!", "-"):
            if self.text.startswith(sign, self.at):
                self.at += 1
                self.deeper()
                found = Operation(sign, (self.unary(),))
                self.depth -= 1
                return found
        return self.steps(self.primary())

    def steps(self, value: Any) -> Any:
        while True:
            if self.takes(".*"):
                value = self.each(value, dots=True)
            elif self.takes("[*]"):
                value = self.each(value, dots=False)
            elif self.text.startswith(".", self.at) and not self.text.startswith("...", self.at):
                self.at += 1
                number = _NUMBER.match(self.text, self.at)
                name = self.word() if number is None else None
                if number is not None:
                    self.at = number.end()
                    value = Step(value, Literal(int(float(number[0]))))
                elif name is None:
                    raise self.wrong("expected a name after `.`")
                else:
                    value = Step(value, Literal(name))
            elif self.takes("["):
                key = self.expression()
                self.expect("]")
                value = Step(value, key)
            else:
                return value

    def each(self, value: Any, *, dots: bool) -> Any:
        keys = []
        while self.takes("."):
            name = self.word()
            if name is None:
                raise self.wrong("expected a name after `.`")
            keys.append(name)
        return Step(value, Literal(tuple(keys)), every=True)

    def primary(self) -> Any:
        self.skip(lines=True)
        here = self.text[self.at : self.at + 1]
        if here == '"':
            return self.quoted()
        if here == "<" and (found := _HEREDOC.match(self.text, self.at)):
            return self.heredoc(found)
        if number := _NUMBER.match(self.text, self.at):
            self.at = number.end()
            whole = number[0].isdecimal()
            if len(number[0]) > 40:
                raise self.wrong("a number of too many digits")
            return Literal(int(number[0]) if whole else float(number[0]))
        if here == "(":
            self.at += 1
            inner = self.expression()
            self.expect(")")
            return inner
        if here == "[":
            return self.items()
        if here == "{":
            return self.pairs()
        name = self.word()
        if name is None:
            raise self.wrong(f"expected a value, not {self.text[self.at : self.at + 12]!r}")
        if name in {"true", "false", "null"}:
            return Literal({"true": True, "false": False}.get(name))
        while self.takes("::"):
            name = f"{name}::{self.word()}"
        if self.takes("("):
            return self.call(name)
        return Name(name)

    def call(self, name: str) -> Call:
        arguments: list[Any] = []
        spread = False
        while True:
            self.skip(lines=True)
            if self.takes(")"):
                return Call(name, tuple(arguments), spread)
            arguments.append(self.expression())
            self.skip(lines=True)
            spread = self.takes("...")
            self.skip(lines=True)
            if not self.takes(","):
                self.expect(")")
                return Call(name, tuple(arguments), spread)

    def items(self) -> Any:
        self.at += 1
        if found := self.for_each("]"):
            return found
        made: list[Any] = []
        while True:
            self.skip(lines=True)
            if self.takes("]"):
                return Items(tuple(made))
            made.append(self.expression())
            self.skip(lines=True)
            if not self.takes(","):
                self.expect("]")
                return Items(tuple(made))

    def pairs(self) -> Any:
        self.at += 1
        if found := self.for_each("}"):
            return found
        made: list[tuple[Any, Any, int]] = []
        while True:
            self.skip(lines=True)
            if self.takes("}"):
                return Pairs(tuple(made))
            line = self.line()
            key = self.expression()
            self.skip(lines=True)
            if not self.takes("=") and not self.takes(":"):
                raise self.wrong("`=` is missing in an object")
            made.append((Literal(key.name) if isinstance(key, Name) else key, self.expression(), line))
            self.skip(lines=False)
            self.takes(",")

    def for_each(self, end: str) -> Any:
        start = self.at
        self.skip(lines=True)
        if self.word() != "for":
            self.at = start
            return None
        names = []
        while True:
            self.skip(lines=True)
            name = self.word()
            if name is None:
                raise self.wrong("expected a name after `for`")
            names.append(name)
            self.skip(lines=True)
            if not self.takes(","):
                break
        self.skip(lines=True)
        if self.word() != "in" or len(names) > 2:
            raise self.wrong("`for NAME in LIST : VALUE`")
        over = self.expression()
        self.expect(":")
        first = self.expression()
        self.skip(lines=True)
        made_key, made = (first, self.expression()) if self.takes("=>") else (None, first)
        self.skip(lines=True)
        grouped = self.takes("...")
        self.skip(lines=True)
        here, condition = self.at, None
        if self.word() == "if":
            condition = self.expression()
        else:
            self.at = here
        self.expect(end)
        return For(names[0] if len(names) == 2 else "", names[-1], over, made_key, made, condition, grouped)

    # Templates.

    def quoted(self) -> Any:
        start = self.at
        self.at += 1
        parts: list[str | Interpolation] = []
        plain: list[str] = []
        while True:
            here = self.text[self.at : self.at + 1]
            if not here or here == "\n":
                raise self.wrong("a quote is not closed", start)
            if here == '"':
                self.at += 1
                return _template(parts, plain)
            if here == "\\":
                plain.append(self.escaped())
            elif not self.interpolated(parts, plain):
                plain.append(here)
                self.at += 1

    def escaped(self) -> str:
        letter = self.text[self.at + 1 : self.at + 2]
        if letter in {"u", "U"}:
            digits = self.text[self.at + 2 : self.at + (6 if letter == "u" else 10)]
            try:
                found = chr(int(digits, 16))
            except (ValueError, OverflowError):
                raise self.wrong(f"\\{letter}{digits} is no character") from None
            self.at += 2 + len(digits)
            return found
        self.at += 2
        return _ESCAPES.get(letter, "\\" + letter)

    def interpolated(self, parts: list[str | Interpolation], plain: list[str]) -> bool:
        """Parse `$${`, `${…}` and `%%{`; directives (`%{if …}`) are refused."""
        for sign in ("$", "%"):
            if self.text.startswith(f"{sign}{sign}{{", self.at):
                plain.append(f"{sign}{{")
                self.at += 3
                return True
        if self.text.startswith("%{", self.at):
            raise self.wrong("`%{…}` in a text is not supported; write `%%{` for the signs themselves")
        if not self.text.startswith("${", self.at):
            return False
        start = self.at
        self.at += 2
        self.takes("~")
        inner = self.expression()
        self.skip(lines=True)
        self.takes("~")
        self.expect("}")
        if plain:
            parts.append("".join(plain))
            plain.clear()
        parts.append(Interpolation(inner, self.text[start : self.at]))
        return True

    def heredoc(self, found: re.Match[str]) -> Any:
        first = self.line() + 1
        self.at = found.end()
        end = re.compile(rf"^[ \t]*{re.escape(found[2])}[ \t]*\r?$", re.MULTILINE).search(self.text, self.at)
        if end is None:
            raise self.wrong(f"the text that begins with <<{found[2]} has no end", found.start())
        text = self.text[self.at : end.start()]
        self.at = end.end()
        if found[1]:
            lines = text.split("\n")
            margin = min((len(each) - len(each.lstrip()) for each in lines if each.strip()), default=0)
            text = "\n".join(each[margin:] for each in lines)
        inner = _Reader(text, self.file, first)
        inner.depth = self.depth
        parts: list[str | Interpolation] = []
        plain: list[str] = []
        while inner.at < len(text):
            if not inner.interpolated(parts, plain):
                plain.append(text[inner.at])
                inner.at += 1
        return _template(parts, plain)


def _template(parts: list[str | Interpolation], plain: list[str]) -> Any:
    if plain:
        parts.append("".join(plain))
    if not parts:
        return Literal("")
    return Literal(parts[0]) if len(parts) == 1 and isinstance(parts[0], str) else Template(tuple(parts))
