"""The small platform that has only itself: strategies through everything that can go wrong, in any order of arrival.

The scenario is `examples/idp`; here it runs with 20 orders of arrival, and `make soak` runs it with hundreds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median

import pytest
from msgspec import structs

from mandor.model.meta import Object
from mandor.model.placement import Apart
from mandor.model.priority import PriorityClass
from mandor.model.workload import Workload
from mandor.sim.compare import load_scenario, narrowed, run_all
from mandor.sim.result import PhaseResult, RunResult
from mandor.sim.run import LoadedScenario, run_scenario

SCENARIO = Path(__file__).parents[2] / "examples" / "idp" / "scenario.yaml"
MI = 1 << 20
SEEDS = range(20)
"""Orders of arrival; seed 0 is the order of the files."""
ARGOCD = ("argocd-controller", "argocd-server", "argocd-repo-server", "argocd-redis")
OBSERVABILITY = ("prometheus", "loki", "grafana", "alertmanager", "pyrra")
HEALTHY = ("healthy", "agent-0 back", "agent-1 back", "both back", "calm", "agent-1 whole", "limits changed")
PRESSED = (
    *("memory pressure", "disk pressure", "SonarQube spike", "cardinality explosion", "log storm"),
    *("everything at once", "smaller agent-1"),
)
LOST = ("agent-0 down", "agent-1 down", "both down")
SIZES = {
    **{"cilium": 512, "fluent-bit": 128, "node-exporter": 50},
    **{"vault": 256, "external-secrets": 128, "cert-manager": 128},
    **{"argocd-controller": 512, "argocd-server": 256, "argocd-repo-server": 256, "argocd-redis": 128},
    **{"argo-events": 128, "prometheus": 1024, "grafana": 384, "loki": 384, "alertmanager": 128, "pyrra": 128},
    **{"sonarqube": 1024, "postgresql": 256, "argo-workflows": 256, "trivy-operator": 256},
}
"""Requested memory in MiB of every workload of the platform."""
CLASSES = {
    "platform-critical": (10000, {"cilium", "fluent-bit", "node-exporter"}),
    "platform-infrastructure": (9000, {"vault", "external-secrets", "cert-manager", *ARGOCD, "argo-events"}),
    "platform-observability": (8000, set(OBSERVABILITY)),
    "platform-security": (7000, {"trivy-operator"}),
    "platform-cicd": (6000, {"sonarqube", "postgresql", "argo-workflows"}),
    "platform-low": (5000, set()),
}


@pytest.fixture(scope="module")
def loaded() -> LoadedScenario:
    return load_scenario(SCENARIO)


@cache
def answer(seed: int) -> RunResult:
    """Mandor's answer in one order of arrival, computed once."""
    return run_scenario(narrowed(load_scenario(SCENARIO), ["should"]), "should", seed)


@pytest.fixture(scope="module")
def answers() -> list[RunResult]:
    """Mandor's answer, in several orders of arrival."""
    return [answer(seed) for seed in SEEDS]


@pytest.fixture(scope="module")
def others(loaded: LoadedScenario) -> dict[str, RunResult]:
    return {each.strategy: each for each in run_all(narrowed(loaded, ["must", "prefer"]), [1], workers=1)}


def phase(run: RunResult, name: str) -> PhaseResult:
    return next(each for each in run.phases if each.name == name)


def running(state: PhaseResult) -> set[str]:
    return {name for name, each in state.workloads.items() if each.running}


def node_of(state: PhaseResult, workload: str) -> str:
    return next(
        name for name, node in state.nodes.items() for each in node.instances if each.rpartition("-")[0] == workload
    )


@pytest.mark.req("S3-1", "S3-2", "S3-3", "S3-4", "S3-6", "S3-13", "S3-26", "S3-28")
def test_the_scenario_is_the_platform_as_it_is_described(loaded: LoadedScenario) -> None:
    lines = {line.name: line for line in loaded.scenario.nodes}
    assert [each.memory for each in lines.values()] == [4 << 30] * 3
    assert {name: line.labels["role"] for name, line in lines.items()} == {
        "server": "server",
        "agent-0": "infra",
        "agent-1": "apps",
    }
    workloads = {each.meta.name: each for each in loaded.first if isinstance(each, Workload)}
    sizes = {name: each.spec.groups["main"].request.memory_bytes // MI for name, each in workloads.items()}
    daemons = {name: size for name, size in sizes.items() if workloads[name].spec.type == "daemon"}
    assert daemons == {"cilium": 512, "fluent-bit": 128, "node-exporter": 50}
    usable = (4 << 30) // MI - int(lines["agent-0"].reserved.memory) // MI - sum(daemons.values())
    assert usable == 3072, "about 3 GB a worker"
    assert sizes == SIZES
    assert sum(sizes[name] for name in OBSERVABILITY) == 2048
    classes = {each.meta.name: each.spec.value for each in loaded.first if isinstance(each, PriorityClass)}
    members = {
        name: (value, {each for each, workload in workloads.items() if workload.spec.priority == name})
        for name, value in classes.items()
    }
    assert members == CLASSES
    for name in ("vault", "external-secrets", "cert-manager"):
        placement = workloads[name].spec.groups["main"].placement
        assert placement.where[0].rule == "role == server"
        assert placement.where[0].strength == "should"
        assert placement.tolerate


@pytest.mark.req("S3-44", "S3-45", "S3-23", "S3-36")
@pytest.mark.parametrize("seed", SEEDS)
def test_the_answer_keeps_everything_that_is_expected_of_it_in_every_order_of_arrival(seed: int) -> None:
    assert answer(seed).failures == ()


@pytest.mark.req("S3-20")
def test_the_same_order_of_arrival_gives_the_same_history(loaded: LoadedScenario) -> None:
    assert run_scenario(narrowed(loaded, ["should"]), "should", 1).digest == answer(1).digest


@pytest.mark.req("S3-47")
def test_gitops_has_service_levels_whose_error_budgets_the_answer_keeps_and_hard_rules_spend(
    loaded: LoadedScenario, answers: list[RunResult], others: dict[str, RunResult]
) -> None:
    levels = [each for each in loaded.scenario.expect if each.availability_least]
    assert {name for each in levels for name in each.availability_least} == CLASSES["platform-infrastructure"][1]

    def spent(run: RunResult) -> list[tuple[str, str]]:
        """Which service, in which phase, was down for longer than its budget."""
        return [
            (name, state.name)
            for each in levels
            for state in run.phases
            if state.name in each.phase
            for name, least in each.availability_least.items()
            if state.workloads[name].down_seconds > (100 - least) / 100 * (state.end - state.begin)
        ]

    for run in answers:
        assert spent(run) == []
        # A failure is part of life: it costs a part of the budget, and is over before all of it is gone.
        assert phase(run, "both down").workloads["argocd-redis"].down_seconds > 0
    assert ("argocd-server", "both down") in spent(others["must"])


@pytest.mark.req("S3-6", "S3-14", "S3-20", "S3-44")
def test_while_all_nodes_are_up_the_whole_platform_runs_and_prometheus_is_not_beside_loki(
    answers: list[RunResult],
) -> None:
    for run in answers:
        for name in HEALTHY:
            state = phase(run, name)
            assert state.pending == ()
            assert node_of(state, "prometheus") != node_of(state, "loki")
            for each in ("vault", "external-secrets", "cert-manager"):
                assert node_of(state, each) == "server"


@pytest.mark.req("S3-17", "S3-18", "S3-19", "S3-15", "S3-16", "S3-48")
@pytest.mark.parametrize("name", ["agent-0 down", "agent-1 down"])
def test_the_loss_of_either_worker_leaves_monitoring_and_gitops_and_costs_the_least_important(
    answers: list[RunResult], name: str
) -> None:
    for run in answers:
        state = phase(run, name)
        assert {*ARGOCD, "argo-events"} <= running(state)
        assert {"prometheus", "loki"} & running(state), "infrastructure and all of observability are 128 MiB too many"
        assert len(set(OBSERVABILITY) & running(state)) >= 3
        waiting = {each.instance.rpartition("-")[0]: each.priority for each in state.pending}
        assert waiting["sonarqube"] == min(waiting.values())
        assert max(waiting.values()) <= 8000, "infrastructure never waits"
        assert state.inversions == ()
        assert state.cascade <= 2


@pytest.mark.req("S3-5", "S3-8", "S3-15", "S3-46")
def test_with_both_workers_gone_the_server_still_heals_by_gitops(answers: list[RunResult]) -> None:
    for run in answers:
        state = phase(run, "both down")
        assert {*ARGOCD, "argo-events", "vault", "external-secrets", "cert-manager"} <= running(state)
        assert state.nodes["server"].peak_percent < 94


@pytest.mark.req("S3-39", "S3-2")
def test_kernel_and_cache_memory_is_reserved_and_causes_no_eviction(
    loaded: LoadedScenario, answers: list[RunResult]
) -> None:
    lines = {line.name: line for line in loaded.scenario.nodes}
    assert all(0 < int(line.overhead.memory) < int(line.reserved.memory) for line in lines.values())
    for run in answers:
        for name in HEALTHY:
            state = phase(run, name)
            assert state.evictions == (), name
            assert all(node.peak_percent < 94 for node in state.nodes.values()), "overhead and work together fit"


@pytest.mark.req("S3-46")
@pytest.mark.parametrize("name", ["agent-0 down", "agent-1 down", "both down"])
def test_without_capacity_from_outside_those_that_are_left_carry_what_they_can_and_show_what_waits(
    loaded: LoadedScenario, answers: list[RunResult], name: str
) -> None:
    for run in answers:
        state = phase(run, name)
        assert state.nodes.keys() == {line.name for line in loaded.scenario.nodes}, "nobody joined"
        assert not [each for node in state.nodes.values() if not node.ready for each in node.instances]
        assert state.pending, "there is not room for all"
        assert all(node.memory_percent <= 100 for node in state.nodes.values())
        waiting = {each.instance.rpartition("-")[0] for each in state.pending}
        assert running(state) | waiting >= {each for each, state in state.workloads.items() if state.wanted}


@pytest.mark.req("S3-21", "S3-22")
def test_packing_and_traffic_are_judged_in_every_phase(loaded: LoadedScenario) -> None:
    for phase_name, _, _ in loaded.scenario.phases:
        here = [each for each in loaded.scenario.expect if phase_name in each.phase]
        assert any(each.crossing_most is not None for each in here), phase_name
        assert any(each.utilisation for each in here), phase_name
        assert any(each.running or each.any_running for each in here), phase_name
        assert any(each.evicted is not None for each in here), phase_name


@pytest.mark.req("S3-22")
def test_traffic_over_all_orders_of_arrival_is_what_the_strategy_page_reports(answers: list[RunResult]) -> None:
    def crossing(name: str) -> list[float]:
        found = [phase(run, name).crossing_percent for run in answers]
        return sorted(each for each in found if each is not None)

    assert len(crossing("healthy")) == len(SEEDS)
    assert median(crossing("healthy")) <= 33.4
    assert crossing("healthy")[0] == pytest.approx(11.1), "Loki to Grafana alone: Prometheus is beside Grafana"
    assert median(crossing("both back")) <= 22.3
    assert set(crossing("both down")) == {0.0}, "there is one node"


def healthy(folder: Path, text: str) -> LoadedScenario:
    """The platform as it comes up, and nothing else."""
    path = folder / "scenario.yaml"
    before, _, _ = text.replace("file: manifests", f"file: {SCENARIO.parent / 'manifests'}").partition("timeline:")
    path.write_text(before + "end: 5m\n")
    return narrowed(load_scenario(path), ["should"])


PACKING = "profiles: [{plugins: {multiPoint: {enabled: [{name: BinPack, weight: 20}]}}}]\n"


@pytest.mark.req("S3-21")
def test_with_a_quarter_more_memory_bin_packing_fills_both_workers_to_two_thirds(tmp_path: Path) -> None:
    larger = SCENARIO.read_text().replace("memory: 4Gi", "memory: 5Gi")
    assert larger != SCENARIO.read_text()
    (tmp_path / "packing.yaml").write_text(PACKING)
    found: dict[str, list[float]] = {}
    for name, text in (
        ("usual", larger),
        ("packed", larger.replace("should: {}", "should: {profile: packing.yaml}")),
    ):
        loaded = healthy(tmp_path, text)
        for seed in range(8):
            state = run_scenario(loaded, "should", seed).phases[0]
            assert state.pending == ()
            found.setdefault(name, []).extend(state.nodes[each].memory_percent for each in ("agent-0", "agent-1"))
    assert all(65 <= share <= 70 for share in found["packed"][:2]), "in the order of the files"
    distance = {name: sum(abs(share - 67.5) for share in shares) for name, shares in found.items()}
    assert distance["packed"] < distance["usual"]


@pytest.mark.req("S3-22")
def test_the_wish_to_be_near_spares_traffic_over_all_orders_of_arrival(tmp_path: Path) -> None:
    loaded = healthy(tmp_path, SCENARIO.read_text())
    careless = replace(loaded, first=tuple(_without_near(each) for each in loaded.first))
    crossing = [
        sum(run_scenario(each, "should", seed).phases[0].crossing_percent or 0.0 for seed in range(12))
        for each in (loaded, careless)
    ]
    assert crossing[0] < 0.9 * crossing[1]


def _without_near(value: Object) -> Object:
    if not isinstance(value, Workload):
        return value
    groups = {
        name: structs.replace(group, placement=structs.replace(group.placement, near=()))
        for name, group in value.spec.groups.items()
    }
    return value.changed(spec=structs.replace(value.spec, groups=groups))


@pytest.mark.req("S3-7", "S3-9", "S3-35")
@pytest.mark.parametrize(("name", "node"), [("memory pressure", "agent-0"), ("disk pressure", "agent-1")])
def test_a_host_that_runs_short_is_relieved_within_minutes_by_evictions_of_low_priority(
    answers: list[RunResult], name: str, node: str
) -> None:
    assert sum(node in phase(run, name).short_seconds for run in answers) >= 0.9 * len(answers), "the host is short"
    for run in answers:
        state = phase(run, name)
        assert bool(state.short_seconds) == bool(state.evictions)
        assert all(seconds <= 180 for seconds in state.short_seconds.values())
        assert {each for _, each in state.evictions} <= {node}
        evicted = {who.rpartition("-")[0] for who, _ in state.evictions}
        assert not evicted & CLASSES["platform-infrastructure"][1]
        assert not evicted & CLASSES["platform-critical"][1]


@pytest.mark.req("S3-40", "S3-35")
def test_a_spike_of_sonarqube_makes_its_host_short_and_costs_sonarqube_alone(answers: list[RunResult]) -> None:
    for run in answers:
        state = phase(run, "SonarQube spike")
        assert state.short_seconds, "it uses more memory than its host has left"
        assert {who.rpartition("-")[0] for who, _ in state.evictions} == {"sonarqube"}
        down = {name for name, each in state.workloads.items() if each.down_seconds > 0}
        assert down == {"sonarqube"}
        assert phase(run, "cardinality explosion").workloads["sonarqube"].running == 1, "it is back afterwards"


@pytest.mark.req("S3-41")
def test_a_cardinality_explosion_kills_prometheus_in_its_place_and_costs_no_other(answers: list[RunResult]) -> None:
    for run in answers:
        state = phase(run, "cardinality explosion")
        killed = [
            each
            for each in run.notes
            if each.kind == "restart" and "OOMKilled" in each.text and state.begin <= each.at < state.end
        ]
        assert len(killed) >= 2, "its limit holds while the spike lasts"
        assert all("prometheus" in each.text for each in killed)
        assert state.evictions == ()
        down = {name for name, each in state.workloads.items() if each.down_seconds > 0}
        assert down == {"prometheus"}
        assert phase(run, "log storm").workloads["prometheus"].down_seconds < 60, "it recovers"


@pytest.mark.req("S3-42")
def test_a_log_storm_within_the_limit_of_loki_interrupts_nothing(answers: list[RunResult]) -> None:
    for run in answers:
        state = phase(run, "log storm")
        assert state.evictions == ()
        assert {name for name, each in state.workloads.items() if each.down_seconds > 0} <= {"prometheus"}
        peaks = [state.nodes[name].peak_percent for name in ("agent-0", "agent-1")]
        before = [phase(run, "cardinality explosion").nodes[name].peak_percent for name in ("agent-0", "agent-1")]
        assert max(now - then for now, then in zip(peaks, before, strict=True)) > 3, "the storm uses memory"


@pytest.mark.req("S3-43", "S3-8")
def test_with_every_spike_at_once_gitops_and_half_of_monitoring_go_on(answers: list[RunResult]) -> None:
    for run in answers:
        state = phase(run, "everything at once")
        assert state.short_seconds
        down = {name for name, each in state.workloads.items() if each.down_seconds > 0}
        assert down <= {"prometheus", "sonarqube"}
        assert {
            name for name, each in phase(run, "calm").workloads.items() if each.wanted and not each.running
        } == set()


@pytest.mark.req("S3-23", "S3-24", "S3-25", "S3-32", "S3-49")
def test_everything_must_paralyses_and_costs_more_downtime_than_the_answer(
    answers: list[RunResult], others: dict[str, RunResult]
) -> None:
    must, prefer, should = others["must"], others["prefer"], answers[1]
    assert {*ARGOCD, "argo-events"} <= running(phase(should, "both down")), "rules are given up for survival"
    assert not {*ARGOCD, "argo-events"} & running(phase(must, "both down"))
    assert {rule for _, rule in phase(should, "both down").relaxed} == {"role != server"}
    blocked = phase(must, "agent-0 down").blocked or phase(must, "agent-1 down").blocked
    waiting = len(phase(must, "agent-0 down").pending) + len(phase(must, "agent-1 down").pending)
    answered = len(phase(should, "agent-0 down").pending) + len(phase(should, "agent-1 down").pending)
    assert blocked or waiting > answered, "rules that are `must` keep work waiting that could run"
    assert sum(each.down_seconds for each in must.phases) > sum(each.down_seconds for each in should.phases)
    assert {rule for each in must.phases for _, rule in each.relaxed} <= {"avoid nodes where it failed"}
    assert len(prefer.phases) == len(should.phases)


@pytest.mark.req("S3-31", "S3-44")
def test_both_show_that_they_want_to_be_apart_and_neither_must(loaded: LoadedScenario) -> None:
    for one, other in (("prometheus", "loki"), ("loki", "prometheus")):
        (workload,) = (each for each in loaded.workloads if each.meta.name == one)
        assert workload.spec.groups["main"].placement.apart == (Apart(workload=other, strength="should"),)
