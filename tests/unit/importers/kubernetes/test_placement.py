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
        [{"labels": ["app in [a, b]"], "over": "node"}],
    ),
    (
        f"affinity: {{podAffinity: {{{HARD}: [{{topologyKey: zone, labelSelector: {{matchExpressions: ["
        "{key: app, operator: In, values: [a]}, {key: tier, operator: NotIn, values: [x, y]}, "
        "{key: team, operator: Exists}, {key: canary, operator: DoesNotExist}]}}]}}",
        "near",
        [
            {
                "match": {"app": "a"},
                "labels": ["tier not in [x, y]", "team exists", "canary not exists"],
                "over": "zone",
            }
        ],
    ),
    (
        f"affinity: {{podAntiAffinity: {{{HARD}: [{{topologyKey: zone, labelSelector: {{}}, "
        "matchLabelKeys: [pod-template-hash], mismatchLabelKeys: [tenant]}]}}",
        "apart",
        [{"workload": "*", "same": ["release"], "different": ["tenant"], "over": "zone"}],
    ),
    (
        f"affinity: {{podAntiAffinity: {{{HARD}: [{{topologyKey: zone, labelSelector: {{matchLabels: {{a: b}}}}, "
        "namespaces: [x], namespaceSelector: {matchLabels: {team: t}, "
        "matchExpressions: [{key: env, operator: NotIn, values: [dev]}]}}]}}",
        "apart",
        [
            {
                "match": {"a": "b"},
                "namespaces": ["x"],
                "namespace_labels": ["team == t", "env not in [dev]"],
                "over": "zone",
            }
        ],
    ),
    (
        f"affinity: {{podAffinity: {{{SOFT}: [{{weight: 2, podAffinityTerm: {{topologyKey: zone, "
        "labelSelector: {matchLabels: {a: b}}, "
        "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: other}}}}]}}",
        "near",
        [{"match": {"a": "b"}, "namespaces": ["other"], "over": "zone", "strength": "prefer", "weight": 2}],
    ),
    (
        f"affinity: {{nodeAffinity: {{{HARD}: {{nodeSelectorTerms: [{{matchExpressions: "
        "[{key: cores, operator: Gt, values: ['8']}, {key: age, operator: Lt, values: ['3']}]}]}}}",
        "where",
        [{"rule": "cores integer > 8"}, {"rule": "age integer < 3"}],
    ),
    (
        "topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, minDomains: 3, "
        "nodeAffinityPolicy: Ignore, nodeTaintsPolicy: Honor, matchLabelKeys: [pod-template-hash, app], "
        "labelSelector: {matchExpressions: [{key: app, operator: In, values: [a, b]}]}}]",
        "spread",
        [
            {
                "over": "zone",
                "max_skew": 1,
                "labels": ["app in [a, b]"],
                "same": ["release", "app"],
                "min_domains": 3,
                "honor": ["taints"],
            }
        ],
    ),
    (
        "topologySpreadConstraints: [{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule, "
        "nodeAffinityPolicy: Ignore, labelSelector: {matchLabels: {app: a}}}]",
        "spread",
        [{"over": "zone", "max_skew": 1, "match": {"app": "a"}, "honor": []}],
    ),
    (
        "tolerations: [{key: sla, operator: Gt, value: '950'}, "
        "{key: cost, operator: Lt, value: '5', effect: NoExecute}]",
        "tolerate",
        [{"key": "sla", "above": 950}, {"key": "cost", "below": 5, "effect": "NoExecute"}],
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


_MANY = ", ".join(f"value-{number:030}" for number in range(20))
_ONE_OF_MANY = f"{{key: a, operator: In, values: [{_MANY}]}}"
UNSAYABLE = [
    f"affinity: {{podAffinity: {{{HARD}: [{{topologyKey: a}}]}}}}",
    f"affinity: {{podAffinity: {{{HARD}: {_term(f'{{matchExpressions: [{_ONE_OF_MANY}]}}')}}}}}",
]


@pytest.mark.parametrize("spec", UNSAYABLE, ids=lambda each: each[:60])
def test_a_hard_rule_that_cannot_be_reported_is_refused_not_weakened(spec: str) -> None:
    with pytest.raises(Invalid, match="hard rule") as error:
        imported(pod(spec))
    assert error.value.facts["line"] == 5
    assert error.value.hint


def test_a_soft_rule_that_cannot_be_reported_is_in_the_report() -> None:
    wish = "[{weight: 1, podAffinityTerm: {topologyKey: a}}]"
    found = imported(pod(f"affinity: {{podAffinity: {{{SOFT}: {wish}}}}}"))
    assert "placement" not in found.made[0].manifest
    assert any(note.path.endswith("topologyKey") for note in found.report.notes)


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
