"""Parser for HCL: blocks and expressions, each with its line.

Native syntax only: attributes, blocks, templates, heredocs, operators, calls, `for`. Nothing is evaluated here.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from mandor.errors import Invalid
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
    Step,
    Template,
)

DEPTH_MOST = 64
BYTES_MOST = 1 << 20

_SPACE = re.compile(r"(?:[ \t\r]+|#[^\n]*|//[^\n]*|/\*.*?\*/)+", re.DOTALL)
_SPACE_LINES = re.compile(r"(?:\s+|#[^\n]*|//[^\n]*|/\*.*?\*/)+", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_][\w-]*")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_HEREDOC = re.compile(r"<<(-?)([A-Za-z_]\w*)\r?\n")
_BINARY = (("||",), ("&&",), ("==", "!="), ("<=", ">=", "<", ">"), ("+", "-"), ("*", "/", "%"))
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\"}


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
        pieces = TemplatePieces(self)
        while True:
            here = self.text[self.at : self.at + 1]
            if not here or here == "\n":
                raise self.wrong("a quote is not closed", start)
            if here == '"':
                self.at += 1
                return pieces.template()
            if here == "\\":
                pieces.add(self.escaped())
            elif not self.interpolated(pieces):
                pieces.add(here)
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

    def interpolated(self, pieces: "TemplatePieces") -> bool:
        """Parse `$${`, `%%{`, `${…}` and directives (`%{if …}`)."""
        for sign in ("$", "%"):
            if self.text.startswith(f"{sign}{sign}{{", self.at):
                pieces.add(f"{sign}{{")
                self.at += 3
                return True
        if not self.text.startswith(("${", "%{"), self.at):
            return False
        start, directive = self.at, self.text[self.at] == "%"
        self.at += 2
        if self.takes("~"):
            pieces.trim_left()
        if directive:
            self.directive(pieces, start)
        else:
            inner = self.expression()
        self.skip(lines=True)
        trims = self.takes("~")
        self.expect("}")
        if not directive:
            pieces.put(Interpolation(inner, self.text[start : self.at]))
        pieces.trims = trims
        return True

    def directive(self, pieces: "TemplatePieces", start: int) -> None:
        self.skip(lines=True)
        name = self.word()
        if name == "if":
            pieces.open(name, self.expression())
        elif name == "for":
            names = [self.bound_name()]
            self.skip(lines=True)
            if self.takes(","):
                names.append(self.bound_name())
            self.skip(lines=True)
            if self.word() != "in":
                raise self.wrong("`%{for NAME in LIST}`", start)
            pieces.open(name, (names[0] if len(names) == 2 else "", names[-1], self.expression()))
        elif name in {"else", "endif", "endfor"}:
            pieces.close(name, start)
        else:
            raise self.wrong("a directive is `%{if …}` or `%{for …}`; write `%%{` for the signs themselves", start)

    def bound_name(self) -> str:
        self.skip(lines=True)
        name = self.word()
        if name is None:
            raise self.wrong("expected a name after `for`")
        return name

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
        pieces = TemplatePieces(inner)
        while inner.at < len(text):
            if not inner.interpolated(pieces):
                pieces.add(text[inner.at])
                inner.at += 1
        return pieces.template()


@dataclass(slots=True)
class TemplatePieces:
    """Collects the parts of a template; directives nest."""

    reader: _Reader
    plain: list[str] = field(default_factory=list)
    trims: bool = False
    """The `~` of the last sequence removes the space after it, up to the end of the line."""
    levels: list[list[Part]] = field(default_factory=lambda: [[]])
    opened: list[tuple[str, Any, list[Part]]] = field(default_factory=list)
    """Open directives: `if`, `else` or `for`, the expression, and the parts of the first branch."""

    def add(self, letter: str) -> None:
        if self.trims and letter.isspace():
            self.trims = letter != "\n"
            return
        self.trims = False
        self.plain.append(letter)

    def trim_left(self) -> None:
        """Remove the space at the end of the text, back to the start of the line."""
        while self.plain and self.plain[-1] in {" ", "\t"}:
            self.plain.pop()

    def put(self, part: Part) -> None:
        self.flush()
        self.levels[-1].append(part)

    def flush(self) -> None:
        if self.plain:
            self.levels[-1].append("".join(self.plain))
            self.plain.clear()

    def open(self, name: str, given: Any) -> None:
        self.flush()
        self.reader.deeper()
        self.opened.append((name, given, []))
        self.levels.append([])

    def close(self, name: str, start: int) -> None:
        self.flush()
        expected = {"else": ("if",), "endif": ("if", "else"), "endfor": ("for",)}[name]
        if not self.opened or self.opened[-1][0] not in expected:
            raise self.reader.wrong(f"`%{{{name}}}` has no `%{{{expected[0]} …}}`", start)
        kind, given, first = self.opened.pop()
        body = self.levels.pop()
        if name == "else":
            self.opened.append(("else", given, body))
            self.levels.append([])
            return
        self.reader.depth -= 1
        if kind == "for":
            key, value, over = given
            self.levels[-1].append(Loop(key, value, over, tuple(body)))
        else:
            yes, no = (body, []) if kind == "if" else (first, body)
            self.levels[-1].append(Branch(given, tuple(yes), tuple(no)))

    def template(self) -> Any:
        self.flush()
        if self.opened:
            raise self.reader.wrong(f"`%{{{self.opened[-1][0]} …}}` has no end")
        parts = self.levels[0]
        if not parts:
            return Literal("")
        return Literal(parts[0]) if len(parts) == 1 and isinstance(parts[0], str) else Template(tuple(parts))
