"""Placement: where a group may go, in the author's words."""

from typing import Annotated, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Seconds
from mandor.model.meta import Misfit, check_name
from mandor.model.node import Effect, Taint
from mandor.model.rule import Rule, parse_rule

Strength = Literal["must", "should", "prefer"]
Weight = Annotated[int, Bounds(ge=1, le=100)]
Skew = Annotated[int, Bounds(ge=1, le=100_000)]

SELF = "self"
EVERYWHERE = "*"
DEFAULT_POOL = "default"
KINDS = ("pool", "where", "near", "apart", "spread")
"""Kinds of rules, in the order in which they count when nobody says otherwise."""
RuleKind = Literal["pool", "where", "near", "apart", "spread"]


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
        _check_weight(self.strength, self.weight)
        for text in self.texts:
            parse_rule(text)

    @property
    def texts(self) -> tuple[str, ...]:
        return self.any or ((self.rule,) if self.rule is not None else ())

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Any of these is enough."""
        return tuple(parse_rule(text) for text in self.texts)


class Pool(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A pool that is not a must; `pool: NAME` alone is one."""

    name: str
    """The pool's name."""
    strength: Strength = "must"
    """`must`: only there; `should`: elsewhere rather than not at all; `prefer`: better there."""
    weight: Weight | None = None
    """How much better, with `prefer`."""

    def __post_init__(self) -> None:
        check_name(self.name, "pool")
        _check_weight(self.strength, self.weight)


class Neighbours(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Certain instances, and what counts as standing where they stand."""

    workload: str | None = None
    """Instances of this workload; `self`: the other instances of this group."""
    group: str | None = None
    """Only this group of it."""
    match: dict[str, str] = {}
    """Instances of workloads that have all these labels."""
    namespaces: tuple[str, ...] = ()
    """Where those live; absent: in the own namespace, `*`: anywhere."""
    over: str = "node"
    """The fact that makes two nodes one place: `node`, `zone`, `rack` …"""
    strength: Strength = "must"
    """`must`: never otherwise; `should`: otherwise rather than not at all; `prefer`: better so."""
    weight: Weight | None = None
    """How much better, with `prefer`."""

    def __post_init__(self) -> None:
        self._check_subject()
        _check_weight(self.strength, self.weight)
        _check_over(self.over)

    def _check_subject(self) -> None:
        if (self.workload is None) == (not self.match):
            raise ValueError("write either `workload: NAME` (or `self`) or `match: {LABEL: VALUE}`")
        if self.group is not None and self.workload in {None, SELF}:
            raise ValueError("`group` belongs to `workload: NAME`")
        if self.namespaces and self.workload == SELF:
            raise ValueError("`namespaces` does not belong to `workload: self`")

    @property
    def subject(self) -> str:
        """Who they are, in short."""
        if self.workload is None:
            return ",".join(f"{key}={value}" for key, value in sorted(self.match.items()))
        return f"{self.workload}/{self.group}" if self.group else self.workload


class Near(Neighbours, frozen=True):
    """To stand where certain instances stand: in the same domain of `over`."""

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"near {self.subject} over {self.over}",)


class Apart(Neighbours, frozen=True):
    """To stand where certain instances do not stand: in another domain of `over`."""

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"apart from {self.subject} over {self.over}",)


class Spread(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """To stand in equal numbers in all domains of `over`."""

    over: str
    """The fact that makes two nodes one place: `node`, `zone`, `rack` …"""
    max_skew: Skew = 1
    """One domain may have so many more than the one with fewest."""
    match: dict[str, str] = {}
    """Whom to count: instances of the namespace's workloads that have all these labels; absent: of this group."""
    strength: Strength = "must"
    """`must`: never otherwise; `should`: otherwise rather than not at all; `prefer`: better so."""

    def __post_init__(self) -> None:
        _check_over(self.over)

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"spread over {self.over}",)


PlacementRule = Where | Near | Apart | Spread


class Toleration(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Lets a group onto nodes with such a taint; no `key`: all, no `value`: any, no `effect`: every."""

    key: str = ""
    """The taint's key; absent: any."""
    value: str | None = None
    """The taint's value; absent: any."""
    effect: Effect | None = None
    """`NoSchedule`, `PreferNoSchedule` or `NoExecute`; absent: every."""
    seconds: Seconds | None = None
    """So long it may stay when a `NoExecute` taint comes; absent: for good."""

    def __post_init__(self) -> None:
        if self.seconds is not None and self.effect not in {None, "NoExecute"}:
            raise Misfit(
                f"`seconds` belongs to `effect: NoExecute`: {self.effect} drives nobody off",
                "seconds",
                hint="leave `seconds` out, or `effect`",
            )

    def covers(self, taint: Taint) -> bool:
        return self.key in {"", taint.key} and self.value in {None, taint.value} and self.effect in {None, taint.effect}


class Placement(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    pool: str | Pool | None = None
    """Only nodes of this pool; `{name: …, strength: should}`: if that can be."""
    where: tuple[Where, ...] = ()
    """Rules on nodes; all of them count."""
    tolerate: tuple[Toleration, ...] = ()
    """Taints that do not keep it away."""
    dedicated: bool = False
    """Its node is its workload's alone: it goes where nobody else is, and nobody else goes there."""
    near: tuple[Near, ...] = ()
    """Instances to be close to."""
    apart: tuple[Apart, ...] = ()
    """Instances to keep away from."""
    spread: tuple[Spread, ...] = ()
    """Domains to fill evenly."""
    order: tuple[RuleKind, ...] = ()
    """The kinds of rules, the dearest first: `should` rules are given up from the end. Absent: as they are written."""

    patience: Seconds = Seconds(30)
    """So long it waits for room that others are about to free, before it gives a `should` rule up."""
    relax: Literal["before-preemption", "after-preemption"] = "before-preemption"
    """What comes first when nothing fits: giving up `should` rules, or taking the place of lower priorities."""

    def __post_init__(self) -> None:
        if len(set(self.order)) != len(self.order):
            raise ValueError("`order` names a kind of rules twice")
        for name in ("where", "near", "apart", "spread"):
            if len(getattr(self, name)) > 32:
                raise ValueError(f"at most 32 rules are allowed under `{name}`")

    @property
    def rules(self) -> tuple[PlacementRule, ...]:
        """All rules as declared, the first declared first; a pool is a rule on the node's `pool`."""
        found: list[PlacementRule] = []
        for kind in (*self.order, *(each for each in KINDS if each not in self.order)):
            found += self._pool_rule if kind == "pool" else getattr(self, kind)
        return tuple(found)

    @property
    def home(self) -> str:
        """The pool it names, with whatever strength, or the default one."""
        return (self.pool.name if isinstance(self.pool, Pool) else self.pool) or DEFAULT_POOL

    @property
    def only_pool(self) -> str | None:
        """The pool it must be in."""
        if isinstance(self.pool, Pool):
            return self.pool.name if self.pool.strength == "must" else None
        return self.pool

    @property
    def _pool_rule(self) -> tuple[Where, ...]:
        pool = self.pool
        if not isinstance(pool, Pool) or pool.strength == "must":
            return ()
        return (Where(rule=f"pool == {pool.name}", strength=pool.strength, weight=pool.weight),)


def _check_weight(strength: Strength, weight: int | None) -> None:
    if weight is not None and strength != "prefer":
        raise ValueError("`weight` belongs to `strength: prefer`")


def _check_over(over: str) -> None:
    if not over or len(over) > 128 or any(each.isspace() for each in over):
        raise ValueError(f"{over[:40]!r} is not a fact; `over` is `node`, `zone`, `rack` …")
