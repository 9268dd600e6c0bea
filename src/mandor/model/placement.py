"""Placement: rules about the nodes on which a group's instances may run."""

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta as Bounds
from msgspec import Struct

from mandor.lib.quantity import Seconds
from mandor.model.features import needs
from mandor.model.meta import InvalidField, check_labels, check_name
from mandor.model.node import Effect, Taint
from mandor.model.rule import Rule, parse_label_rule, parse_rule

Strength = Literal["must", "should", "prefer"]
Weight = Annotated[int, Bounds(ge=1, le=100)]
Skew = Annotated[int, Bounds(ge=1, le=100_000)]

SELF = "self"
CONDITIONS = "placement-conditions"
"""Feature of the fields that a scheduler of an earlier version would ignore."""
EVERY = "*"
"""Workload of a rule that selects the instances of all workloads."""
RELEASE = "release"
"""Name in `same` and `different` for the release of an instance."""
EVERYWHERE = "*"
DEFAULT_POOL = "default"
KINDS = ("pool", "where", "near", "apart", "spread")
"""Kinds of rules in their default order of importance."""
RuleKind = Literal["pool", "where", "near", "apart", "spread"]


class Where(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A rule on nodes: one `rule`, or `any` of several."""

    rule: str | None = None
    """The condition: `FACT == VALUE`, `FACT in [A, B]`, `FACT exists`, `FACT >= 4`, `FACT version >= 5.4` or `FACT =~
    /REGEX/`; negated with `!=`, `not in` or `not exists`. `FACT integer > 4` compares whole numbers only, as Kubernetes
    does: no other value matches.
    """
    any: tuple[str, ...] = ()
    """Conditions of which at least one must hold."""
    strength: Strength = "must"
    """`must`: never violated. `should`: violated only if the instance would otherwise stay pending. `prefer`: matching
    nodes score higher. Defaults to `must`.
    """
    weight: Weight | None = None
    """Weight of a `prefer` rule, 1 to 100."""

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
        """The parsed conditions, of which one must hold."""
        return tuple(parse_rule(text) for text in self.texts)


class Pool(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """A pool with a strength; `pool: NAME` alone means `must`."""

    name: str
    """Name of the pool."""
    strength: Strength = "must"
    """`must`: only nodes of the pool. `should`: other nodes only if the instance would otherwise stay pending.
    `prefer`: nodes of the pool score higher. Defaults to `must`.
    """
    weight: Weight | None = None
    """Weight of a `prefer` rule, 1 to 100."""

    def __post_init__(self) -> None:
        check_name(self.name, "pool")
        _check_weight(self.strength, self.weight)


class InstanceSelector(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Selects instances, and the topology domain in which they are counted."""

    workload: str | None = None
    """Workload whose instances are selected; `self` selects the other instances of this group, `*` those of all
    workloads.
    """
    group: str | None = None
    """Group of that workload. Defaults to all its groups."""
    match: dict[str, str] = {}
    """Labels that the workloads of selected instances must all have."""
    labels: Annotated[tuple[str, ...], needs(CONDITIONS)] = ()
    """Conditions on the labels of the workloads of selected instances, for example `tier in [web, api]` or `canary not
    exists`; all of them apply.
    """
    same: Annotated[tuple[str, ...], needs(CONDITIONS)] = ()
    """Labels whose values must equal those of this workload; `release` selects instances of the same release. Labels
    that this workload does not have are ignored.
    """
    different: Annotated[tuple[str, ...], needs(CONDITIONS)] = ()
    """Labels whose values must differ from those of this workload, or be absent."""
    namespaces: tuple[str, ...] = ()
    """Namespaces of the selected instances; `*` means all. Defaults to the workload's own namespace, if
    `namespace_labels` is absent, too.
    """
    namespace_labels: Annotated[tuple[str, ...], needs(CONDITIONS)] = ()
    """Conditions on the labels of namespaces, for example `team == web`: namespaces that fulfil them all are added to
    `namespaces`, also later ones.
    """
    over: str = "node"
    """Fact that defines the domains: nodes with the same value are in one domain, for example `node`, `zone` or `rack`.
    Defaults to `node`.
    """
    strength: Strength = "must"
    """`must`: never violated. `should`: violated only if the instance would otherwise stay pending. `prefer`: matching
    nodes score higher. Defaults to `must`.
    """
    weight: Weight | None = None
    """Weight of a `prefer` rule, 1 to 100."""

    def __post_init__(self) -> None:
        self._check_subject()
        _check_weight(self.strength, self.weight)
        _check_over(self.over)
        _check_labels((*self.labels, *self.namespace_labels), (*self.same, *self.different))

    def _check_subject(self) -> None:
        chosen = self.match or self.labels
        if (self.workload is None) == (not chosen):
            raise ValueError(
                "set either `workload: NAME` (or `self`, `*`) or `match: {LABEL: VALUE}` or `labels: [RULE]`"
            )
        if self.group is not None and self.workload in {None, SELF, EVERY}:
            raise ValueError("`group` requires `workload: NAME`")
        if (self.namespaces or self.namespace_labels) and self.workload == SELF:
            raise ValueError("`namespaces` and `namespace_labels` cannot be combined with `workload: self`")

    @property
    def subject(self) -> str:
        """Short text that names the selected instances."""
        chosen = f"{self.workload}/{self.group}" if self.group else self.workload
        if self.workload is None:
            chosen = ", ".join([*(f"{key}={value}" for key, value in sorted(self.match.items())), *self.labels])
        same = f" of the same {' and '.join(self.same)}" if self.same else ""
        return f"{chosen}{same}" + (f" of a different {' and '.join(self.different)}" if self.different else "")

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels of a workload fulfil `match` and `labels`."""
        return self.match.items() <= labels.items() and all(
            each.test(labels.get(each.fact)) for each in map(parse_label_rule, self.labels)
        )


class Near(InstanceSelector, frozen=True):
    """Places instances in a domain of `over` that contains one of the selected instances."""

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"near {self.subject} over {self.over}",)


class Apart(InstanceSelector, frozen=True):
    """Places instances in a domain of `over` that contains none of the selected instances, or few."""

    limit: Annotated[Skew, needs(CONDITIONS)] = 1
    """Number of selected instances, this one included, that a domain may contain. Defaults to 1. A rule with a higher
    limit does not keep other instances away from this one.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.limit > 1 and self.strength == "prefer":
            raise InvalidField("`limit` requires `strength: must` or `should`", "limit", hint="remove `limit`")

    @property
    def texts(self) -> tuple[str, ...]:
        most = f" (at most {self.limit})" if self.limit > 1 else ""
        return (f"apart from {self.subject} over {self.over}{most}",)


class Spread(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Distributes instances evenly over the domains of `over`."""

    over: str
    """Fact that defines the domains: nodes with the same value are in one domain, for example `node`, `zone` or `rack`.
    """
    max_skew: Skew = 1
    """Maximum difference between the instance counts of a domain and of the emptiest domain. Defaults to 1."""
    match: dict[str, str] = {}
    """Labels of the workloads in the namespace whose instances are counted. Defaults to the instances of this group."""
    labels: Annotated[tuple[str, ...], needs(CONDITIONS)] = ()
    """Conditions on the labels of the workloads in the namespace whose instances are counted, for example `tier in
    [web, api]`; all of them apply, and those of `match`.
    """
    same: Annotated[tuple[str, ...], needs(CONDITIONS)] = ()
    """Labels whose values must equal those of this workload; `release` counts the instances of the same release. Labels
    that this workload does not have are ignored.
    """
    min_domains: Annotated[Annotated[int, Bounds(ge=1, le=100_000)], needs(CONDITIONS)] = 1
    """Number of domains to use at least: while there are fewer, the emptiest domain counts as empty. Defaults to 1."""
    honor: Annotated[tuple[Literal["where", "taints"], ...], needs(CONDITIONS)] = ("where",)
    """Nodes that count: `where`: those that match the `where` rules that must hold. `taints`: those whose taints are
    tolerated. Defaults to `[where]`.
    """
    targets: Annotated[dict[str, Annotated[int, Bounds(ge=0, le=100)]], needs(CONDITIONS)] = {}
    """Share of the instances by domain, in percent; the rest is divided equally among the other domains. `max_skew` is
    then the number of instances that a domain may have above its share. Defaults to equal shares.
    """
    strength: Strength = "must"
    """`must`: never violated. `should`: violated only if the instance would otherwise stay pending. `prefer`: more even
    nodes score higher. Defaults to `must`.
    """

    def __post_init__(self) -> None:
        _check_over(self.over)
        _check_labels(self.labels, self.same)
        if len(self.targets) > 64:
            raise InvalidField(f"{len(self.targets)} targets; at most 64 are allowed", "targets")
        if sum(self.targets.values()) > 100:
            raise InvalidField(
                f"the targets add up to {sum(self.targets.values())} %", "targets", hint="they are at most 100 in total"
            )
        if self.targets and self.min_domains > 1:
            raise InvalidField("`min_domains` cannot be combined with `targets`", "min_domains")
        if self.min_domains > 1 and self.strength == "prefer":
            raise InvalidField(
                "`min_domains` requires `strength: must` or `should`", "min_domains", hint="remove `min_domains`"
            )

    @property
    def texts(self) -> tuple[str, ...]:
        return (f"spread over {self.over}",)


PlacementRule = Where | Near | Apart | Spread


class Toleration(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    """Allows instances on nodes with a matching taint. Unset fields match every key, value or effect."""

    key: str = ""
    """Key of the taint. Defaults to any key."""
    value: str | None = None
    """Value of the taint. Defaults to any value."""
    effect: Effect | None = None
    """`NoSchedule`, `PreferNoSchedule` or `NoExecute`. Defaults to any effect."""
    seconds: Seconds | None = None
    """Time that an instance stays on its node after a `NoExecute` taint is added. Defaults to no limit."""
    above: Annotated[int | None, needs(CONDITIONS)] = None
    """Tolerates taints whose value is a whole number above this one."""
    below: Annotated[int | None, needs(CONDITIONS)] = None
    """Tolerates taints whose value is a whole number below this one."""

    def __post_init__(self) -> None:
        if self.seconds is not None and self.effect not in {None, "NoExecute"}:
            raise InvalidField(
                f"`seconds` requires `effect: NoExecute`, because {self.effect} evicts no instances",
                "seconds",
                hint="remove `seconds` or `effect`",
            )

        if (self.above is not None or self.below is not None) and (not self.key or self.value is not None):
            raise InvalidField("`above` and `below` require `key`, and exclude `value`", "key", hint="set `key`")

    def covers(self, taint: Taint) -> bool:
        return (
            self.key in {"", taint.key}
            and self.value in {None, taint.value}
            and self.effect in {None, taint.effect}
            and (self.above is None or Rule(taint.key, "integer >", (str(self.above),)).test(taint.value))
            and (self.below is None or Rule(taint.key, "integer <", (str(self.below),)).test(taint.value))
        )


class Placement(Struct, frozen=True, gc=False, omit_defaults=True, forbid_unknown_fields=True):
    pool: str | Pool | None = None
    """Pool whose nodes are allowed, as `NAME` or `{name: NAME, strength: should}`."""
    where: tuple[Where, ...] = ()
    """Rules on nodes; all of them apply."""
    tolerate: tuple[Toleration, ...] = ()
    """Taints that the instances tolerate."""
    dedicated: bool = False
    """Whether nodes are used exclusively: instances are placed on nodes without other workloads, and no other workload
    is placed there.
    """
    near: tuple[Near, ...] = ()
    """Instances to be placed close to."""
    apart: tuple[Apart, ...] = ()
    """Instances to be kept apart from."""
    spread: tuple[Spread, ...] = ()
    """Domains to distribute instances over."""
    order: tuple[RuleKind, ...] = ()
    """Kinds of rules from most to least important. `should` rules are relaxed starting with the least important.
    Defaults to the order in the manifest.
    """

    patience: Seconds = Seconds(30)
    """Time to wait for room that stopping instances will free before a `should` rule is relaxed. Defaults to 30s."""
    relax: Literal["before-preemption", "after-preemption"] = "before-preemption"
    """Order of the scheduler's steps if no node fits: relaxing `should` rules before or after preempting instances of
    lower priority. Defaults to `before-preemption`.
    """

    def __post_init__(self) -> None:
        if len(set(self.order)) != len(self.order):
            raise ValueError("`order` lists a kind of rules twice")
        for name in ("where", "near", "apart", "spread"):
            if len(getattr(self, name)) > 32:
                raise ValueError(f"{len(getattr(self, name))} rules under `{name}`; at most 32 are allowed")

    @property
    def rules(self) -> tuple[PlacementRule, ...]:
        """All rules, the most important first; a pool that is not a must is a rule on the fact `pool`."""
        found: list[PlacementRule] = []
        for kind in (*self.order, *(each for each in KINDS if each not in self.order)):
            found += self._pool_rule if kind == "pool" else getattr(self, kind)
        return tuple(found)

    @property
    def home(self) -> str:
        """The pool in the manifest, of any strength, or the default pool."""
        return (self.pool.name if isinstance(self.pool, Pool) else self.pool) or DEFAULT_POOL

    @property
    def only_pool(self) -> str | None:
        """The only pool whose nodes are allowed; None if there is no such restriction."""
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
        raise ValueError("`weight` requires `strength: prefer`")


def _check_labels(conditions: tuple[str, ...], keys: tuple[str, ...]) -> None:
    if len(conditions) + len(keys) > 32:
        raise ValueError(f"{len(conditions) + len(keys)} conditions on labels; at most 32 are allowed")
    for text in conditions:
        parse_label_rule(text)
    check_labels(dict.fromkeys(keys, ""))


def _check_over(over: str) -> None:
    if not over or len(over) > 128 or any(each.isspace() for each in over):
        raise ValueError(f"{over[:40]!r} is not a fact; set `over` to `node`, `zone`, `rack` or another fact")
