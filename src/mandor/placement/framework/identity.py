"""Identity of an instance: namespace, workload, group, release and labels, which rules of other instances select."""

from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

from mandor.lib.words import counted
from mandor.model.meta import Key
from mandor.model.placement import EVERY, EVERYWHERE, RELEASE, SELF, Apart, Near, Spread, Strength
from mandor.model.rule import Rule, parse_label_rule

ANY = ""
"""Index key of selectors without a workload or an equal label; all identities have it."""
NAMESPACE_NAME = "kubernetes.io/metadata.name"
"""Label that every namespace has, as in Kubernetes: its name."""
_RELEASE = "mandor/release"
"""Fact with the release of an instance, for `same: [release]`."""


class Identity:
    """Namespace, workload, group, release and labels; equal instances share one object."""

    __slots__ = (
        "_hash",
        "facts",
        "group",
        "handles",
        "labels",
        "namespace",
        "namespace_labels",
        "priority_class",
        "release",
        "workload",
    )

    def __init__(
        self,
        namespace: str,
        workload: str,
        group: str,
        labels: Mapping[str, str] | None = None,
        priority_class: str = "",
        release: str = "",
        namespace_labels: Mapping[str, str] | None = None,
    ) -> None:
        self.namespace = namespace
        self.workload = workload
        self.group = group
        self.labels = frozenset((labels or {}).items())
        self.priority_class = priority_class
        """Priority class of the workload; empty: none."""
        self.release = release
        """Release of the instance; empty: not known."""
        self.facts = {**(labels or {}), _RELEASE: release}
        """Values that the conditions of selectors test."""
        self.namespace_labels = frozenset((namespace_labels or {}).items())
        self.handles: tuple[Hashable, ...] = (workload, *self.labels, ANY)
        """Index keys under which selectors that may match are stored."""
        self._hash = hash((namespace, workload, group, self.labels, priority_class, release, self.namespace_labels))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Identity)
            and self._hash == other._hash
            and (self.namespace, self.workload, self.group, self.release, self.labels, self.priority_class)
            == (other.namespace, other.workload, other.group, other.release, other.labels, other.priority_class)
            and self.namespace_labels == other.namespace_labels
        )

    def __repr__(self) -> str:
        return f"Identity({self.namespace}/{self.workload}/{self.group} {dict(self.labels)})"

    @property
    def owner(self) -> tuple[str, str]:
        return self.namespace, self.workload


NO_IDENTITY = Identity("", "", "")
"""Identity that no rule selects; such an instance only takes room."""


class Selector(NamedTuple):
    """The instances that a rule selects."""

    namespaces: frozenset[str] | None
    """None: all namespaces."""
    workload: str = ""
    group: str = ""
    labels: frozenset[tuple[str, str]] = frozenset()
    conditions: tuple[Rule, ...] = ()
    """Conditions on labels, which must all hold."""
    namespace_conditions: tuple[Rule, ...] = ()
    """Conditions on the labels of namespaces; a namespace that fulfils them all is selected, too."""

    def matches(self, identity: Identity) -> bool:
        return (
            self._in_namespace(identity)
            and (not self.workload or self.workload == identity.workload)
            and (not self.group or self.group == identity.group)
            and self.labels <= identity.labels
            and identity is not NO_IDENTITY
            and all(each.test(identity.facts.get(each.fact)) for each in self.conditions)
        )

    def _in_namespace(self, identity: Identity) -> bool:
        if self.namespaces is None or identity.namespace in self.namespaces:
            return True
        if not self.namespace_conditions:
            return False
        known = {NAMESPACE_NAME: identity.namespace, **dict(identity.namespace_labels)}
        return all(each.test(known.get(each.fact)) for each in self.namespace_conditions)

    @property
    def handle(self) -> Hashable:
        """Index key that all matching identities have: the workload or one label."""
        return self.workload or min(self.labels, default=ANY)

    def __str__(self) -> str:
        if self.workload:
            return f"{self.workload}/{self.group}" if self.group else self.workload
        labels = [f"{key}={value}" for key, value in sorted(self.labels)]
        conditions = [str(each) for each in self.conditions if each.fact != _RELEASE]
        return ", ".join([*labels, *conditions]) or "all instances"


class AffinityTerm(NamedTuple):
    """A `near` or `apart` rule with its selector resolved."""

    kind: Literal["near", "apart"]
    strength: Strength
    weight: int
    selector: Selector
    over: str
    limit: int = 1
    """Number of selected instances, with the new one, that a domain may have; for `apart`."""


def selector_of(rule: Near | Apart | Spread, identity: Identity) -> Selector:
    """Return the selector of a rule that belongs to this identity."""
    own = frozenset({identity.namespace})
    different = () if isinstance(rule, Spread) else rule.different
    conditions = (
        *map(parse_label_rule, rule.labels),
        *_compared(rule.same, "==", identity),
        *_compared(different, "!=", identity),
    )
    labels = frozenset(rule.match.items())
    if isinstance(rule, Spread):
        if rule.match or rule.labels:
            return Selector(own, labels=labels, conditions=conditions)
        return Selector(own, identity.workload, identity.group, conditions=conditions)
    if rule.workload == SELF:
        return Selector(own, identity.workload, identity.group, conditions=conditions)
    namespaces = None if EVERYWHERE in rule.namespaces else frozenset(rule.namespaces)
    if namespaces is not None and not namespaces and not rule.namespace_labels:
        namespaces = own
    workload = "" if rule.workload in {None, EVERY} else rule.workload or ""
    there = tuple(map(parse_label_rule, rule.namespace_labels))
    return Selector(namespaces, workload, rule.group or "", labels, conditions, there)


def _compared(keys: Iterable[str], op: str, identity: Identity) -> Iterator[Rule]:
    """Yield conditions that compare labels with those of an identity; labels that it does not have are left out."""
    for key in keys:
        fact = _RELEASE if key == RELEASE else key
        value = identity.facts.get(fact)
        if value is not None:
            yield Rule(fact, op, (value,))


def affinity_term(rule: Near | Apart, identity: Identity) -> AffinityTerm:
    kind: Literal["near", "apart"] = "near" if isinstance(rule, Near) else "apart"
    limit = rule.limit if isinstance(rule, Apart) else 1
    return AffinityTerm(kind, rule.strength, rule.weight or 1, selector_of(rule, identity), rule.over, limit)


def names_shown(keys: Iterable[Key], namespace: str) -> str:
    """Return the instances as a message in this namespace may list them: names of its own, the number of others.

    Messages of decisions and events are stored in the namespace of the instance that they are about, and are read by
    users who see only that namespace.
    """
    own, others = list[str](), 0
    for key in keys:
        if key.namespace == namespace:
            own.append(key.name)
        else:
            others += 1
    return ", ".join([*own, *([counted(others, "instance") + " of other namespaces"] if others else [])])
