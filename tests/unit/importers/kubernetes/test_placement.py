"""Where a pod may go, in both languages; and that no hard rule becomes a soft one."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.errors import Invalid
from mandor.importers.kubernetes.placement import PlacementReader
from mandor.importers.part import Ledger
from mandor.lib.yaml12 import dump, load_all
from mandor.model.rule import parse_rule
from tests.unit.importers.kubernetes.imports import imported, only, pod

HARD = "requiredDuringSchedulingIgnoredDuringExecution"
SOFT = "preferredDuringSchedulingIgnoredDuringExecution"

RULES: list[tuple[str, str, Any]] = [
    ("nodeSelector: {disk: ssd, kubernetes.io/os: linux}", "where", [{"rule": "disk == ssd"}, {"rule": "os == linux"}]),
    ('nodeSelector: {node-role.kubernetes.io/edge: ""}', "where", [{"rule": 'node-role.kubernetes.io/edge == ""'}]),
    ("nodeName: n1", "where", [{"rule": "node == n1"}]),
    (
        f"affinity: {{nodeAffinity: {{{SOFT}: [{{weight: 7, preference: "
        "{matchExpressions: [{key: a, operator: Exists}]}}]}}",
        "where",
        [{"rule": "a exists", "strength": "prefer", "weight": 7}],
    ),
    (
        f"affinity: {{podAntiAffinity: {{{HARD}: [{{topologyKey: kubernetes.io/hostname, labelSelector: "
        "{matchExpressions: [{key: app, operator: In, values: [a, b]}]}}]}}",
        "apart",
        [{"match": {"app": "a"}, "over": "node"}, {"match": {"app": "b"}, "over": "node"}],
    ),
    (
        f"affinity: {{podAffinity: {{{SOFT}: [{{weight: 3, podAffinityTerm: {{"
        "topologyKey: topology.kubernetes.io/zone, namespaces: [x], labelSelector: {matchLabels: {app: a}}}}]}}",
        "near",
        [{"match": {"app": "a"}, "namespaces": ["x"], "over": "zone", "strength": "prefer", "weight": 3}],
    ),
    (
        "topologySpreadConstraints: [{maxSkew: 2, topologyKey: topology.kubernetes.io/zone, "
        "whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}]",
        "spread",
        [{"over": "zone", "max_skew": 2, "match": {"app": "web"}, "strength": "prefer"}],
    ),
    (
        "tolerations: [{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 60}, {operator: Exists}]",
        "tolerate",
        [{"key": "a", "effect": "NoExecute", "seconds": "1m"}, {}],
    ),
    (
        "tolerations: [{key: node.kubernetes.io/memory-pressure, operator: Exists, effect: NoSchedule}, "
        "{key: node.kubernetes.io/disk-pressure, operator: Exists}, "
        "{key: node.kubernetes.io/pid-pressure, operator: Exists}]",
        "tolerate",
        [{"key": "memory-pressure", "effect": "NoSchedule"}, {"key": "disk-pressure"}, {"key": "inode-pressure"}],
    ),
]


@pytest.mark.req("S0-32")
@pytest.mark.parametrize(("spec", "key", "wanted"), RULES, ids=lambda each: str(each)[:50])
def test_a_rule_of_placement_has_its_counterpart(spec: str, key: str, wanted: Any) -> None:
    assert only(pod(spec))["placement"][key] == wanted


def _term(selector: str, more: str = "") -> str:
    return f"[{{topologyKey: a, labelSelector: {selector}{more}}}]"


_TEAM = ", namespaceSelector: {matchLabels: {t: x}}"
_SPREAD = "maxSkew: 1, topologyKey: a, whenUnsatisfiable: DoNotSchedule"
UNSAYABLE = [
    f"affinity: {{podAffinity: {{{HARD}: {_term('{matchExpressions: [{key: a, operator: Exists}]}')}}}}}",
    f"affinity: {{podAffinity: {{{HARD}: {_term('{matchExpressions: [{key: a, operator: In, values: [b, c]}]}')}}}}}",
    f"affinity: {{podAntiAffinity: {{{HARD}: {_term('{}')}}}}}",
    f"affinity: {{podAntiAffinity: {{{HARD}: {_term('{matchLabels: {a: b}}', _TEAM)}}}}}",
    f"topologySpreadConstraints: [{{{_SPREAD}, minDomains: 3}}]",
    f"topologySpreadConstraints: [{{{_SPREAD}, nodeTaintsPolicy: Honor}}]",
]


@pytest.mark.parametrize("spec", UNSAYABLE, ids=lambda each: each[:60])
def test_a_hard_rule_that_cannot_be_reported_is_refused_not_weakened(spec: str) -> None:
    with pytest.raises(Invalid, match="hard rule") as error:
        imported(pod(spec))
    assert error.value.facts["line"] == 5
    assert error.value.hint


def test_a_soft_rule_that_cannot_be_reported_is_in_the_report() -> None:
    selector = "{matchExpressions: [{key: a, operator: Exists}]}"
    wish = f"[{{weight: 1, podAffinityTerm: {{topologyKey: a, labelSelector: {selector}}}}}]"
    found = imported(pod(f"affinity: {{podAffinity: {{{SOFT}: {wish}}}}}"))
    assert "placement" not in found.made[0].manifest
    assert any(note.path.endswith("labelSelector") for note in found.report.notes)


def test_namespaces_are_chosen_by_their_labels_among_the_files() -> None:
    namespaces = "".join(
        f"apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{team: {team}}}}}\n---\n"
        for name, team in (("a", "x"), ("b", "y"), ("c", "x"))
    )
    spec = UNSAYABLE[3].replace("{t: x}", "{team: x}")
    made = imported(namespaces + pod(spec)).made[-1].manifest
    assert made["placement"]["apart"][0]["namespaces"] == ["a", "c"]


# One of several terms, each all of its expressions: whatever is written, the same nodes are chosen.

_VALUES = ["x", "y", "z"]
_EXPRESSION = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["a", "b"]),
        "operator": st.sampled_from(["In", "NotIn"]),
        "values": st.lists(st.sampled_from(_VALUES), min_size=1, max_size=2, unique=True),
    }
) | st.fixed_dictionaries({"key": st.sampled_from(["a", "b"]), "operator": st.sampled_from(["Exists", "DoesNotExist"])})
_TERMS = st.lists(st.lists(_EXPRESSION, min_size=1, max_size=3), min_size=1, max_size=3)


def _fits(expression: dict[str, Any], node: dict[str, str]) -> bool:
    value = node.get(expression["key"])
    return {
        "In": value in expression.get("values", ()),
        "NotIn": value not in expression.get("values", ()),
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[expression["operator"]]


@given(_TERMS)
def test_terms_of_node_affinity_choose_the_same_nodes(terms: list[list[dict[str, Any]]]) -> None:
    selector = {"nodeSelectorTerms": [{"matchExpressions": term} for term in terms]}
    text = dump({"affinity": {"nodeAffinity": {HARD: selector}}})
    where = PlacementReader().read(Ledger().open(load_all(text)[0].value, "")).get("where", [])
    for a, b in product([None, *_VALUES], repeat=2):
        node = {key: value for key, value in (("a", a), ("b", b)) if value is not None}
        wanted = any(all(_fits(each, node) for each in term) for term in terms)
        found = all(
            any((rule := parse_rule(text)).test(node.get(rule.fact)) for text in each.get("any") or [each["rule"]])
            for each in where
        )
        assert found == wanted


@given(st.lists(st.integers(10**20, 10**40).map(str), min_size=1, max_size=40, unique=True))
def test_a_long_list_of_values_is_cut_into_rules_that_have_their_bound(values: list[str]) -> None:
    expression = {"key": "a", "operator": "NotIn", "values": values}
    text = dump({"affinity": {"nodeAffinity": {HARD: {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}}})
    where = PlacementReader().read(Ledger().open(load_all(text)[0].value, ""))["where"]
    rules = [parse_rule(each["rule"]) for each in where]
    assert [value for rule in rules for value in rule.values] == values
