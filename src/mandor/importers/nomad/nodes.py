"""Nodes of a parsed HCL file: blocks, attributes and expressions."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Literal:
    value: Any


@dataclass(frozen=True, slots=True)
class Interpolation:
    """`${…}` inside a template, and how it was written."""

    inner: Any
    source: str


@dataclass(frozen=True, slots=True)
class Branch:
    """`%{if …}` inside a template."""

    condition: Any
    yes: "Parts"
    no: "Parts"


@dataclass(frozen=True, slots=True)
class Loop:
    """`%{for …}` inside a template."""

    key: str
    value: str
    over: Any
    body: "Parts"


Part = str | Interpolation | Branch | Loop
Parts = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Template:
    parts: Parts


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
