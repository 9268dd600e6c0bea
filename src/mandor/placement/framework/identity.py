"""Identity of an instance: namespace, workload, group and labels, which the rules of other instances select."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Literal, NamedTuple

from mandor.lib.words import counted
from mandor.model.meta import Key
from mandor.model.placement import EVERYWHERE, SELF, Apart, Near, Spread, Strength


class Identity:
    """Namespace, workload, group and labels; equal instances share one object."""

    __slots__ = ("_hash", "group", "handles", "labels", "namespace", "priority_class", "workload")

    def __init__(
        self,
        namespace: str,
        workload: str,
        group: str,
        labels: Mapping[str, str] | None = None,
        priority_class: str = "",
    ) -> None:
        self.namespace = namespace
        self.workload = workload
        self.group = group
        self.labels = frozenset((labels or {}).items())
        self.priority_class = priority_class
        """Priority class of the workload; empty: none."""
        self.handles: tuple[Hashable, ...] = (workload, *self.labels)
        """Index keys under which selectors that may match are stored."""
        self._hash = hash((namespace, workload, group, self.labels, priority_class))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Identity)
            and self._hash == other._hash
            and (self.namespace, self.workload, self.group, self.labels, self.priority_class)
            == (other.namespace, other.workload, other.group, other.labels, other.priority_class)
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

    def matches(self, identity: Identity) -> bool:
        return (
            (self.namespaces is None or identity.namespace in self.namespaces)
            and (not self.workload or self.workload == identity.workload)
            and (not self.group or self.group == identity.group)
            and self.labels <= identity.labels
            and identity is not NO_IDENTITY
        )

    @property
    def handle(self) -> Hashable:
        """Index key that all matching identities have: the workload or one label."""
        return self.workload or min(self.labels, default="")


class AffinityTerm(NamedTuple):
    """A `near` or `apart` rule with its selector resolved."""

    kind: Literal["near", "apart"]
    strength: Strength
    weight: int
    selector: Selector
    over: str


def selector_of(rule: Near | Apart | Spread, identity: Identity) -> Selector:
    """Return the selector of a rule that belongs to this identity."""
    own = frozenset({identity.namespace})
    if isinstance(rule, Spread):
        if rule.match:
            return Selector(own, labels=frozenset(rule.match.items()))
        return Selector(own, identity.workload, identity.group)
    if rule.workload == SELF:
        return Selector(own, identity.workload, identity.group)
    namespaces = None if EVERYWHERE in rule.namespaces else frozenset(rule.namespaces) or own
    return Selector(namespaces, rule.workload or "", rule.group or "", frozenset(rule.match.items()))


def affinity_term(rule: Near | Apart, identity: Identity) -> AffinityTerm:
    kind: Literal["near", "apart"] = "near" if isinstance(rule, Near) else "apart"
    return AffinityTerm(kind, rule.strength, rule.weight or 1, selector_of(rule, identity), rule.over)


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
