"""Placement of a pod: node selectors, affinity, spread constraints, tolerations.

A hard rule stays hard: a rule that a manifest cannot express is refused, not weakened.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from mandor.importers.base import filled
from mandor.importers.kubernetes.amounts import seconds
from mandor.importers.kubernetes.selector import cut, read_selector, word
from mandor.importers.part import Part
from mandor.lib.quantity import Seconds
from mandor.model.kubernetes_names import fact
from mandor.model.placement import EVERY, RELEASE

RULES_MOST = 32
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
_ALL = "*"
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_PRESSURE = {
    "node.kubernetes.io/memory-pressure": ("memory-pressure",),
    "node.kubernetes.io/disk-pressure": ("disk-pressure", "inode-pressure"),
}
"""Keys of Kubernetes' pressure taints, and of the taints that replace them: DiskPressure includes inodes."""
_PID_PRESSURE = "node.kubernetes.io/pid-pressure"
_POLICIES = {"nodeAffinityPolicy": ("Honor", "where"), "nodeTaintsPolicy": ("Ignore", "taints")}
"""Policies of spread constraints for nodes that are closed to a pod: the default, and the word for `honor`."""
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_RELEASE_KEYS = frozenset({"pod-template-hash", "controller-revision-hash", "pod-template-generation"})
"""Labels that Kubernetes sets to the release of a pod."""

FindNamespaces = Callable[[Mapping[str, str]], tuple[str, ...]]
"""Returns the namespaces with these labels."""
Unsayable = Callable[[Part, str, str], None]
"""Called with the part, the key and the reason of a hard rule that a manifest cannot express; raises, or drops the
rule."""
Clause = tuple[str, ...]
"""Rules of which one must hold."""


def refuse(part: Part, key: str, why: str) -> None:
    raise part.wrong(
        key, f"a manifest cannot say this hard rule: {why}", "leave it out, or make it a preference, and import again"
    )


@dataclass(frozen=True, slots=True)
class PlacementReader:
    namespaces: FindNamespaces | None = None
    """Finds namespaces by labels now; None: a manifest has the labels, and they are compared at each decision."""
    unsayable: Unsayable = refuse

    def read(self, spec: Part) -> dict[str, Any]:
        affinity = spec.part("affinity")
        where: list[dict[str, Any]] = [
            {"rule": f"{fact(key)} == {word(value)}"} for key, value in spec.text_map("nodeSelector").items()
        ]
        node = spec.text("nodeName")
        where += [{"rule": f"node == {word(node)}"}] if node else []
        where += self._node_rules(affinity.part("nodeAffinity"))
        return filled(
            where=where,
            tolerate=list(self._tolerations(spec)),
            near=list(self._ties(affinity.part("podAffinity"))),
            apart=list(self._ties(affinity.part("podAntiAffinity"))),
            spread=list(self._spread(spec)),
        )

    # Nodes.

    def _node_rules(self, source: Part) -> Iterator[dict[str, Any]]:
        required = source.part(REQUIRED)
        terms = [clauses for each in required.parts("nodeSelectorTerms") if (clauses := self._term(each))]
        if "nodeSelectorTerms" in required and not terms:
            self.unsayable(required, "nodeSelectorTerms", "terms that no node can meet")
        yield from (_where(each) for each in self._any_of(terms, required))
        for wish in source.parts(PREFERRED):
            clauses = self._term(wish.part("preference"))
            weight = wish.whole("weight") or 1
            if len(clauses) > 1:
                wish.guess("preference", "its expressions count one by one, each with its part of the weight")
            for each in clauses:
                yield _where(each) | {"strength": "prefer", "weight": max(1, weight // len(clauses))}

    def _any_of(self, terms: list[list[Clause]], required: Part) -> list[Clause]:
        """Return clauses that must all hold, for several terms of which one must hold."""
        count = 1
        for each in terms:
            count *= len(each)
        if not terms:
            return []
        if count > RULES_MOST:
            self.unsayable(required, "nodeSelectorTerms", f"its terms come to {count} rules")
            return []
        found = [tuple(dict.fromkeys(rule for clause in chosen for rule in clause)) for chosen in product(*terms)]
        return list(dict.fromkeys(found))

    def _term(self, source: Part) -> list[Clause]:
        return [
            clause
            for each in (*source.parts("matchExpressions"), *source.parts("matchFields"))
            for clause in _clauses(each)
        ]

    # Other pods.

    def _ties(self, source: Part) -> Iterator[dict[str, Any]]:
        for term in source.parts(REQUIRED):
            yield from self._tie(term, hard=True)
        for wish in source.parts(PREFERRED):
            weight = wish.whole("weight") or 1
            for tie in self._tie(wish.part("podAffinityTerm"), hard=False):
                yield {**tie, "strength": "prefer", "weight": weight}

    def _tie(self, term: Part, *, hard: bool) -> list[dict[str, Any]]:
        selector = read_selector(term.part("labelSelector"))
        over = fact(term.text("topologyKey") or "")
        why = selector.beyond
        if term.peek("labelSelector") is None:
            why = "a term without `labelSelector`, which selects nothing"
        if why:
            self._lost(term, "labelSelector" if "labelSelector" in term else "topologyKey", why, hard=hard)
            return []
        return [
            filled(
                workload=EVERY if selector.everything else None,
                match=selector.match,
                labels=list(selector.labels),
                same=_keys(term, "matchLabelKeys"),
                different=_keys(term, "mismatchLabelKeys"),
                **self._namespaces_of(term, hard=hard),
                over=over,
            )
        ]

    def _namespaces_of(self, term: Part, *, hard: bool) -> dict[str, Any]:
        found = term.texts("namespaces")
        if term.peek("namespaceSelector") is None:
            term.take("namespaceSelector")
            return {"namespaces": found}
        selector = read_selector(term.part("namespaceSelector"))
        if selector.everything:
            return {"namespaces": [*found, _ALL]}
        if selector.beyond:
            self._lost(term, "namespaceSelector", selector.beyond, hard=hard)
            return {"namespaces": found}
        if selector.match.keys() == {_NAMESPACE_NAME} and not selector.labels:
            return {"namespaces": [*found, selector.match[_NAMESPACE_NAME]]}
        if self.namespaces is not None and not selector.labels:
            return {"namespaces": [*found, *self.namespaces(selector.match)]}
        equal = [f"{key} == {word(value)}" for key, value in selector.match.items()]
        return {"namespaces": found, "namespace_labels": [*equal, *selector.labels]}

    def _lost(self, part: Part, key: str, why: str, *, hard: bool) -> None:
        if hard:
            self.unsayable(part, key, why)
        part.drop(key, why)

    # Spreading.

    def _spread(self, spec: Part) -> Iterator[dict[str, Any]]:
        for each in spec.parts("topologySpreadConstraints"):
            hard = each.text("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
            honor = self._honored(each)
            domains = each.whole("minDomains") or 1
            if domains > 1 and not hard:
                each.drop("minDomains", "preferences have no minimum number of domains")
                domains = 1
            selector = read_selector(each.part("labelSelector"))
            over, skew = fact(each.text("topologyKey") or ""), each.whole("maxSkew") or 1
            if selector.beyond:
                self._lost(each, "labelSelector", selector.beyond, hard=hard)
                continue
            if selector.everything:
                self._everybody(each)
            yield filled(
                over=over,
                max_skew=skew,
                match=selector.match,
                labels=list(selector.labels),
                same=_keys(each, "matchLabelKeys"),
                min_domains=domains if domains > 1 else None,
                strength=None if hard else "prefer",
            ) | ({} if honor == ["where"] else {"honor": honor})

    def _honored(self, each: Part) -> list[str]:
        """Return the policies for nodes that are closed to the pod."""
        found = []
        spelled = {key.lower(): key for key in each.keys()}  # noqa: SIM118 - a part is no dict
        for known, (usual, name) in _POLICIES.items():
            key = spelled.get(known.lower(), known)
            given = each.text(key) or usual
            if given not in {"Honor", "Ignore"}:
                raise each.wrong(key, f"{given[:40]!r} is neither Honor nor Ignore")
            found += [name] if given == "Honor" else []
        return found

    def _everybody(self, each: Part) -> None:
        key = "labelSelector" if "labelSelector" in each else "topologyKey"
        each.guess(key, "a selector of everything: the instances of this group are counted")

    # Taints.

    def _tolerations(self, spec: Part) -> Iterator[dict[str, Any]]:
        for each in spec.parts("tolerations"):
            key, operator, value = each.text("key", ""), each.text("operator", "Equal"), each.text("value", "")
            effect, stay = each.text("effect"), seconds(each, "tolerationSeconds")
            if key == _UNSCHEDULABLE:
                each.drop_all("key", "a cordoned node takes nothing new, whatever is tolerated")
                continue
            if key == _PID_PRESSURE:
                each.drop_all("key", "agents do not measure the number of processes, so there is no such taint")
                continue
            if operator not in {"Equal", "Exists", "Gt", "Lt"}:
                each.drop_all("operator", f"there is no operator {operator}")
                continue
            for name in _PRESSURE.get(key or "", (key,)):
                yield filled(
                    key=name or None,
                    value=value if operator == "Equal" else None,
                    above=_whole(each) if operator == "Gt" else None,
                    below=_whole(each) if operator == "Lt" else None,
                    effect=effect or None,
                    seconds=str(Seconds(stay)) if stay is not None and effect in {None, "", "NoExecute"} else None,
                )


def _keys(part: Part, key: str) -> list[str]:
    """Return the names for `same` and `different` of label keys; the hash of a template is the release."""
    return list(dict.fromkeys(RELEASE if each in _RELEASE_KEYS else fact(each) for each in part.texts(key)))


def _whole(toleration: Part) -> int:
    text = toleration.text("value") or ""
    try:
        return int(text)
    except ValueError:
        raise toleration.wrong("value", f"{text[:40]!r} is not a whole number") from None


def _where(clause: Clause) -> dict[str, Any]:
    return {"rule": clause[0]} if len(clause) == 1 else {"any": list(clause)}


def _clauses(expression: Part) -> list[Clause]:
    """Return one expression as clauses that must all hold; long lists are split, as rules have a maximum length."""
    name, operator = fact(expression.text("key") or ""), expression.text("operator")
    values = expression.texts("values")
    if operator in {"In", "NotIn"} and values:
        op = "in" if operator == "In" else "not in"
        rules = [f"{name} {op} [{', '.join(each)}]" for each in cut([word(value) for value in values])]
        return [tuple(rules)] if operator == "In" else [(rule,) for rule in rules]
    if operator in {"Exists", "DoesNotExist"}:
        return [(f"{name} {'exists' if operator == 'Exists' else 'not exists'}",)]
    if operator in {"Gt", "Lt"} and len(values) == 1:
        return [(f"{name} integer {'>' if operator == 'Gt' else '<'} {values[0]}",)]
    raise expression.wrong("operator", f"{operator} of {len(values)} values is no rule")
