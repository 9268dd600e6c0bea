"""Placement: where a group may go, in the author's words."""

from typing import Annotated, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.model.rule import Rule, parse_rule

Strength = Literal["must", "should", "prefer"]
Weight = Annotated[int, Bounds(ge=1, le=100)]


class Where(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A rule on nodes: one `rule`, or `any` of several."""

    rule: str | None = None
    """`FACT == VALUE`, `FACT in [A, B]`, `FACT exists`, `FACT >= 4`, `FACT version >= 5.4`, `FACT =~ /REGEX/`;
    against it `!=`, `not in`, `not exists`."""
    any: tuple[str, ...] = ()
    """One of these rules is enough."""
    strength: Strength = "must"
    """`must`: never elsewhere; `should`: elsewhere rather than not at all; `prefer`: better there."""
    weight: Weight | None = None
    """How much better, with `prefer`."""

    def __post_init__(self) -> None:
        if (self.rule is None) == (not self.any):
            raise ValueError("write either `rule: TEXT` or `any: [TEXT, …]`")
        if self.weight is not None and self.strength != "prefer":
            raise ValueError("`weight` belongs to `strength: prefer`")
        for text in self.texts:
            parse_rule(text)

    @property
    def texts(self) -> tuple[str, ...]:
        return self.any or ((self.rule,) if self.rule is not None else ())

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Any of these is enough."""
        return tuple(parse_rule(text) for text in self.texts)


class Toleration(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Lets a group onto nodes with such a taint; no `key`: all, no `value`: any, no `effect`: every."""

    key: str = ""
    value: str | None = None
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None


class Placement(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    pool: str | None = None
    """Only nodes of this pool."""
    where: tuple[Where, ...] = ()
    """Rules on nodes; all of them count."""
    tolerate: tuple[Toleration, ...] = ()
    """Taints that do not keep it away."""
