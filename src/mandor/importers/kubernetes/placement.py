"""Placement of a pod: node selectors, affinity, spread constraints, tolerations.

A hard rule stays hard: a rule that a manifest cannot express is refused, not weakened.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from mandor.importers.base import filled
from mandor.importers.kubernetes.amounts import seconds
from mandor.importers.kubernetes.selector import read_selector
from mandor.importers.kubernetes.words import fact
from mandor.importers.part import Part
from mandor.lib.quantity import Seconds

RULES_MOST = 32
RULE_MOST = 480
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
_POLICIES = {"nodeaffinitypolicy": "Honor", "nodetaintspolicy": "Ignore"}
"""Policies of spread constraints for nodes that are closed to a pod, and the value that equals Mandor's behaviour."""

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


def no_namespaces(labels: Mapping[str, str]) -> tuple[str, ...]:
    return ()


@dataclass(frozen=True, slots=True)
class PlacementReader:
    namespaces: FindNamespaces = no_namespaces
    unsayable: Unsayable = refuse

    def read(self, spec: Part) -> dict[str, Any]:
        affinity = spec.part("affinity")
        where: list[dict[str, Any]] = [
            {"rule": f"{fact(key)} == {_word(value)}"} for key, value in spec.text_map("nodeSelector").items()
        ]
        node = spec.text("nodeName")
        where += [{"rule": f"node == {_word(node)}"}] if node else []
        where += self._node_rules(affinity.part("nodeAffinity"))
        return filled(
            where=where,
            tolerate=list(self._tolerations(spec)),
            near=list(self._ties(affinity.part("podAffinity"), near=True)),
            apart=list(self._ties(affinity.part("podAntiAffinity"), near=False)),
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

    def _ties(self, source: Part, *, near: bool) -> Iterator[dict[str, Any]]:
        for term in source.parts(REQUIRED):
            yield from self._tie(term, hard=True, near=near)
        for wish in source.parts(PREFERRED):
            weight = wish.whole("weight") or 1
            for tie in self._tie(wish.part("podAffinityTerm"), hard=False, near=near):
                yield {**tie, "strength": "prefer", "weight": weight}

    def _tie(self, term: Part, *, hard: bool, near: bool) -> list[dict[str, Any]]:
        selector = read_selector(term.part("labelSelector"))
        over = fact(term.text("topologyKey") or "")
        namespaces = self._namespaces_of(term)
        why = selector.beyond or ("a selector of everything" if selector.everything else "")
        if not why and near and len(selector.ways) > 1 and hard:
            why = f"one of {len(selector.ways)} sets of labels"
        for key in ("matchLabelKeys", "mismatchLabelKeys"):
            if key in term:
                self._lost(term, key, "labels whose values are known later", hard=hard)
        if why:
            self._lost(term, "labelSelector", why, hard=hard)
            return []
        return [filled(match=match, namespaces=namespaces, over=over) for match in selector.ways]

    def _namespaces_of(self, term: Part) -> list[str]:
        found = term.texts("namespaces")
        if "namespaceSelector" not in term or term.peek("namespaceSelector") is None:
            return found
        selector = read_selector(term.part("namespaceSelector"))
        if selector.everything:
            return [*found, _ALL]
        if selector.beyond or len(selector.ways) > 1:
            self.unsayable(term, "namespaceSelector", selector.beyond or "several sets of labels")
            return found
        known = self.namespaces(selector.ways[0])
        if not known:
            self.unsayable(term, "namespaceSelector", "no namespace among these files has these labels")
        return [*found, *known]

    def _lost(self, part: Part, key: str, why: str, *, hard: bool) -> None:
        if hard:
            self.unsayable(part, key, why)
        part.drop(key, why)

    # Spreading.

    def _spread(self, spec: Part) -> Iterator[dict[str, Any]]:
        for each in spec.parts("topologySpreadConstraints"):
            hard = each.text("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
            for key in each.keys():  # noqa: SIM118 - a part is no dict
                usual = _POLICIES.get(key.lower())
                if usual is not None and each.text(key) != usual:
                    self._lost(each, key, f"{each.peek(key)}; it is always {usual}", hard=hard)
            if (each.whole("minDomains") or 1) != 1:
                self._lost(each, "minDomains", "domains that do not exist are not counted", hard=hard)
            each.drop("matchLabelKeys", "all releases of a workload are counted together")
            selector = read_selector(each.part("labelSelector"))
            over, skew = fact(each.text("topologyKey") or ""), each.whole("maxSkew") or 1
            if selector.beyond or len(selector.ways) > 1:
                self._lost(each, "labelSelector", selector.beyond or "one of several sets of labels", hard=hard)
                continue
            if selector.everything:
                self._everybody(each)
            yield filled(over=over, max_skew=skew, match=selector.ways[0], strength=None if hard else "prefer")

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
            if operator not in {"Equal", "Exists"}:
                each.drop_all("operator", f"there is no operator {operator}")
                continue
            for name in _PRESSURE.get(key or "", (key,)):
                yield filled(
                    key=name or None,
                    value=value if operator == "Equal" else None,
                    effect=effect or None,
                    seconds=str(Seconds(stay)) if stay is not None and effect in {None, "", "NoExecute"} else None,
                )


def _where(clause: Clause) -> dict[str, Any]:
    return {"rule": clause[0]} if len(clause) == 1 else {"any": list(clause)}


def _clauses(expression: Part) -> list[Clause]:
    """Return one expression as clauses that must all hold; long lists are split, as rules have a maximum length."""
    name, operator = fact(expression.text("key") or ""), expression.text("operator")
    values = expression.texts("values")
    if operator in {"In", "NotIn"} and values:
        word = "in" if operator == "In" else "not in"
        rules = [f"{name} {word} [{', '.join(each)}]" for each in _cut([_word(value) for value in values])]
        return [tuple(rules)] if operator == "In" else [(rule,) for rule in rules]
    if operator in {"Exists", "DoesNotExist"}:
        return [(f"{name} {'exists' if operator == 'Exists' else 'not exists'}",)]
    if operator in {"Gt", "Lt"} and len(values) == 1:
        return [(f"{name} {'>' if operator == 'Gt' else '<'} {values[0]}",)]
    raise expression.wrong("operator", f"{operator} of {len(values)} values is no rule")


def _cut(words: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for word in words:
        if part and sum(len(each) + 2 for each in part) + len(word) > RULE_MOST - 140:
            yield part
            part = []
        part.append(word)
    yield part


def _word(value: str) -> str:
    """Return a value as text of a rule."""
    return f'"{value}"' if not value or any(each in value for each in ",[]= ") else value
