"""Small scenarios through the simulator: each thing that can happen has the effect it has in a cluster."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from mandor.errors import Invalid
from mandor.sim.compare import load_scenario, run_all
from mandor.sim.report import make_report
from mandor.sim.result import RunResult
from mandor.sim.run import run_scenario

BASE = """\
name: small
nodes:
  - {name: n0, cpu: 2, memory: 2Gi, disk: 20Gi}
  - {name: n1, cpu: 2, memory: 2Gi, disk: 20Gi}
workloads:
  - {name: web, image: nginx, replicas: 2, resources: {cpu: 200m, memory: 256Mi}}
  - {name: db, image: pg, resources: {cpu: 200m, memory: 512Mi, disk: 2Gi, limits: {memory: 1536Mi}}, priority: 10}
arrival: {within: 5s}
end: 8m
"""


def simulate(folder: Path, more: str, seed: int = 0, base: str = BASE) -> RunResult:
    path = folder / "s.yaml"
    path.write_text(base + more)
    loaded = load_scenario(path)
    return run_scenario(loaded, next(iter(loaded.scenario.plans)), seed)


def notes(result: RunResult, kind: str) -> list[str]:
    return [each.text for each in result.notes if each.kind == kind]


def where(result: RunResult, workload: str, phase: int = -1) -> list[str]:
    nodes = result.phases[phase].nodes.items()
    return [name for name, node in nodes for each in node.instances if each.rpartition("-")[0] == workload]


def test_a_node_that_loses_power_gives_its_work_to_the_other_and_downtime_is_counted(tmp_path: Path) -> None:
    result = simulate(tmp_path, "timeline:\n  - {at: 2m, phase: loss, down: n0}\n")
    first, loss = result.phases
    assert sorted(where(result, "web")) == ["n1", "n1"]
    assert where(result, "db") == ["n1"]
    assert first.nodes["n0"].ready
    assert not loss.nodes["n0"].ready
    short = sum(each.short_seconds for each in loss.workloads.values())
    assert 60 < short < 240, "from the loss until it is noticed and made good"


def test_a_node_that_is_cut_off_is_replaced_and_stops_what_was_replaced_when_it_is_back(tmp_path: Path) -> None:
    more = "timeline:\n  - {at: 2m, phase: cut, partition: n0}\n  - {at: 5m, phase: back, up: n0}\n"
    result = simulate(tmp_path, more)
    assert sorted(where(result, "web", 1)) == ["n1", "n1"]
    last = [each for node in result.phases[-1].nodes.values() for each in node.instances]
    assert len(last) == len(set(last)) == 3
    assert result.phases[-1].nodes["n0"].ready


@pytest.mark.req("S3-7", "S3-33", "S3-40")
def test_a_spike_evicts_instances_above_their_request(tmp_path: Path) -> None:
    base = BASE.replace("limits: {memory: 1536Mi}", "limits: {memory: 2Gi}")
    result = simulate(
        tmp_path, "timeline:\n  - {at: 2m, phase: spike, spike: {workload: db, memory: 1900Mi, for: 3m}}\n", base=base
    )
    assert {who for who, _ in result.phases[1].evictions} == {"db-0"}
    assert len(result.phases[1].evictions) <= 6, "it does not come back to a host that is still short"
    assert max(result.phases[1].short_seconds.values()) < 60


@pytest.mark.req("S3-41", "S3-42")
def test_a_spike_over_its_limit_kills_it_where_it_is(tmp_path: Path) -> None:
    result = simulate(
        tmp_path, "timeline:\n  - {at: 2m, phase: spike, spike: {workload: db, memory: 1700Mi, for: 1m}}\n"
    )
    assert any("OOMKilled" in each for each in notes(result, "restart"))
    assert result.phases[1].evictions == ()
    assert result.phases[1].workloads["db"].running == 1, "it is over: it runs again"


@pytest.mark.req("S3-9")
def test_disk_pressure_evicts_instances_that_use_the_disk(tmp_path: Path) -> None:
    base = BASE.replace("- {name: n1, cpu: 2", "- {name: n1, cpu: 0.1")
    more = "timeline:\n  - {at: 1m, phase: full, pressure: {node: n0, disk: 17Gi, for: 5m}}\n"
    result = simulate(tmp_path, more, base=base)
    assert {each for each, _ in result.phases[1].evictions} == {"db-0"}, "nobody goes for nothing"


LOOP = """\
name: loop
nodes:
  - {name: n0, cpu: 2, memory: 4Gi, disk: 20Gi}
  - {name: n1, cpu: 2, memory: 4Gi, disk: 20Gi, off: true}
workloads:
  - {name: logs, image: logs, type: daemon, resources: {cpu: 1m, memory: REQUEST}, priority: PRIORITY, TOLERATE}
  - {name: big, image: big, resources: {cpu: 50m, memory: 2Gi}}
usage: {logs: {memory: 500Mi}, big: {memory: 100%}}
arrival: {within: 5s}
end: 14m
timeline:
  - {at: 2m, phase: pressure, up: n1, pressure: {node: n0, memory: 1450Mi, for: 12m}}
"""
TOLERANT = "placement: {tolerate: [{key: memory-pressure}]}"


def evictions(folder: Path, request: str, priority: int, tolerate: str) -> tuple[RunResult, list[str]]:
    base = LOOP.replace("REQUEST", request).replace("PRIORITY", str(priority)).replace("TOLERATE", tolerate)
    result = simulate(folder, "", base=base)
    return result, [name for phase in result.phases for name, _ in phase.evictions]


@pytest.mark.req("S3-7", "S3-37")
@pytest.mark.parametrize("tolerate", ["", TOLERANT])
def test_pressure_evicts_a_service_that_can_run_elsewhere_and_not_a_daemon(tmp_path: Path, tolerate: str) -> None:
    result, evicted = evictions(tmp_path, "500Mi", 0, tolerate)
    assert evicted == ["big-0"]
    assert where(result, "big") == ["n1"]
    assert result.phases[-1].workloads["logs"].running == 2


@pytest.mark.req("S3-7", "S3-37")
@pytest.mark.parametrize(("request_", "priority"), [("500Mi", -1), ("400Mi", 0)])
@pytest.mark.parametrize("tolerate", ["", TOLERANT])
def test_a_daemon_that_pressure_evicts_repeatedly_returns_after_growing_delays(
    tmp_path: Path, request_: str, priority: int, tolerate: str
) -> None:
    """A daemon with a lower priority than the service, or that uses more than it requests, causes the pressure."""
    _, evicted = evictions(tmp_path, request_, priority, tolerate)
    assert set(evicted) == {"logs-n0"}
    assert 2 <= len(evicted) <= 6, "the delays are 30 s, 60 s, 2 min and 4 min"


def test_scaling_rolling_out_limits_and_cordons_do_what_they_show(tmp_path: Path) -> None:
    more = """\
timeline:
  - {at: 1m, phase: more, scale: {workload: web, replicas: 4}}
  - {at: 2m, phase: new, rollout: {workload: web, image: "nginx:2"}}
  - {at: 4m, phase: closed, cordon: n0, submit: {name: late, image: x, resources: {memory: 128Mi}}}
  - {at: 5m, phase: smaller, uncordon: n0, limit: {node: n1, memory: 4Gi}, delete: late}
  - {at: 6m, slow: {node: n0, times: 5}, restart_agent: n1, rollout: {workload: db}}
"""
    result = simulate(tmp_path, more)
    by_name = {each.name: each for each in result.phases}
    assert by_name["more"].workloads["web"].running == 4
    assert by_name["new"].workloads["web"].down_seconds == 0
    assert any("nginx:2" in each for each in notes(result, "rollout"))
    assert "late-0" in by_name["closed"].nodes["n1"].instances
    assert by_name["smaller"].workloads["late"].wanted == 0
    assert by_name["smaller"].nodes["n1"].memory_percent < by_name["closed"].nodes["n1"].memory_percent
    assert by_name["smaller"].workloads["db"].running == 1


@pytest.mark.req("S3-27", "S3-37")
def test_preemptions_are_reported_with_victim_and_preemptor(tmp_path: Path) -> None:
    big = "{name: big, image: x, priority: 50, resources: {memory: 1900Mi}}"
    more = f"timeline:\n  - {{at: 2m, phase: big, submit: {big}}}\n"
    result = simulate(tmp_path, more)
    phase = result.phases[1]
    assert phase.preemptions
    assert {each.by for each in phase.preemptions} == {"big-0"}
    assert {each.depth for each in phase.preemptions} == {1}
    assert phase.inversions == ()
    assert phase.workloads["big"].running == 1


def test_an_agent_is_not_restarted_on_a_machine_without_power(tmp_path: Path) -> None:
    """Its units would run again as if the power had never failed."""
    more = "timeline:\n  - {at: 2m, down: n0}\n  - {at: 2m10s, restart_agent: [n0, n1]}\n"
    assert notes(simulate(tmp_path, more), "restart") == ["the agent of n1 is started again"]


def test_expectations_that_do_not_hold_are_failures_with_the_phase_and_the_time(tmp_path: Path) -> None:
    more = """\
timeline:
  - {at: 2m, phase: loss, down: [n0, n1]}
expect:
  - {phase: loss, after: 10s, running: db}
  - {phase: loss, after: 2m, any_running: [db, web]}
  - {phase: start, pending_most: 0}
  - {phase: loss, downtime_most: {web: 10s}}
  - {phase: start, utilisation: {n0: {least: 99}}}
"""
    result = simulate(tmp_path, more)
    told = [(each.phase, each.message) for each in result.failures]
    assert ("loss", "db does not run at 2m10s") in told, "from when it is so, not from when it is noticed"
    assert any(message.startswith("none of db, web runs at") for _, message in told)
    assert any(message.startswith("web was down for") for _, message in told)
    assert any("not between 99 % and 100 %" in message for _, message in told)
    assert not any("pending" in message for _, message in told)


def test_the_report_counts_over_seeds_and_names_the_worst_and_a_typical_one(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(BASE + "strategies: {a: {}, b: {priorities: {web: 20}}}\ntraffic: [{from: web, to: db}]\n")
    loaded = load_scenario(path)
    results = run_all(loaded, [0, 1, 2], workers=1)
    report: dict[str, Any] = make_report(loaded, results, [0, 1, 2])
    assert [each["name"] for each in report["strategies"]] == ["a", "b"]
    for each in report["strategies"]:
        assert each["runs"] == 3
        assert each["worst_seed"] in (0, 1, 2)
        assert each["phases"][0]["pending"] == {"least": 0, "median": 0, "most": 0}
        assert each["phases"][0]["crossing_percent"]["most"] <= 100
    assert report["passed"]


SCRIPT = """
import sys
from pathlib import Path
from mandor.sim.compare import load_scenario
from mandor.sim.run import run_scenario
loaded = load_scenario(Path(sys.argv[1]))
print(run_scenario(loaded, "as written", int(sys.argv[2])).digest)
"""


@pytest.mark.req("S3-20")
def test_the_same_seed_gives_the_same_history_in_any_process_and_another_seed_another(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        BASE
        + """\
timeline:
  - {at: 90s, down: n0, spike: {workload: web, memory: 900Mi, for: 1m}}
  - {at: 3m, up: n0, scale: {workload: web, replicas: 6}, partition: n1}
  - {at: 5m, up: n1, rollout: {workload: web}}
"""
    )

    def digest(seed: int, hashes: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hashes}
        command = [sys.executable, "-c", SCRIPT, str(path), str(seed)]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()

    first = digest(3, "1")
    assert len(first) == 64
    assert digest(3, "2") == first
    assert digest(4, "1") != first


def test_copies_of_this_process_and_fresh_ones_come_to_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(BASE + "timeline: [{at: 90s, down: n0}]\n")
    begun: list[str] = []
    context = multiprocessing.get_context

    def remembered(way: str) -> Any:
        begun.append(way)
        return context(way)

    monkeypatch.setattr(multiprocessing, "get_context", remembered)
    found = []
    for threads in (1, 2):
        monkeypatch.setattr(threading, "active_count", lambda threads=threads: threads)
        found.append([each.digest for each in run_all(load_scenario(path), range(3), workers=2)])
    assert begun == ["fork", "spawn"]
    assert found[0] == found[1]


PROBED = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: shop}
spec:
  selector: {matchLabels: {app: shop}}
  template:
    metadata: {labels: {app: shop}}
    spec:
      containers:
      - name: shop
        image: shop
        readinessProbe: {httpGet: {path: /, port: 9}}
        livenessProbe: {tcpSocket: {port: 9}}
"""


@pytest.mark.req("S0-32")
def test_a_simulated_program_answers_its_probes_while_it_runs(tmp_path: Path) -> None:
    (tmp_path / "shop.yaml").write_text(PROBED)
    base = "name: probed\nnodes: [{name: n0}]\nworkloads: [{file: shop.yaml}]\narrival: {within: 5s}\nend: 3m\n"
    result = simulate(tmp_path, "", base=base)
    assert result.phases[0].workloads["shop"].running == 1
    assert result.phases[0].workloads["shop"].down_seconds < 30
    assert notes(result, "restart") == []


COMPOSE = """
services:
  proxy:
    image: traefik
    volumes: ["/var/run/nowhere.sock:/run/engine.sock:ro"]
"""


@pytest.mark.parametrize(("line", "running"), [("", 1), ("host_paths: [/srv, /var/run]", 1), ("host_paths: [/srv]", 0)])
def test_nodes_allow_the_host_paths_that_work_asks_for_or_those_that_they_are_reported_to(
    tmp_path: Path, line: str, running: int
) -> None:
    (tmp_path / "compose.yaml").write_text(COMPOSE)
    node = ", ".join(filter(None, ("name: n0", line)))
    base = f"name: paths\nnodes: [{{{node}}}]\nworkloads: [{{file: compose.yaml}}]\narrival: {{within: 5s}}\nend: 3m\n"
    result = simulate(tmp_path, "", base=base)
    assert result.phases[0].workloads["proxy"].running == running


NOMAD = (
    'job "cache" {\n  group "redis" {\n    task "redis" {\n      driver = "docker"\n      config { image = "redis" }\n'
)


def test_an_error_in_an_imported_file_names_its_line(tmp_path: Path) -> None:
    (tmp_path / "cache.nomad").write_text(NOMAD)
    base = "name: broken\nnodes: [{name: n0}]\nworkloads: [{file: cache.nomad, format: nomad}]\nend: 3m\n"
    with pytest.raises(Invalid) as caught:
        simulate(tmp_path, "", base=base)
    assert str(caught.value.facts["file"]).endswith("cache.nomad")
    assert int(str(caught.value.facts["line"])) >= 1


def test_work_that_stands_in_two_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache.nomad").write_text(NOMAD + "    }\n  }\n}\n")
    base = "name: twice\nnodes: [{name: n0}]\nend: 3m\nworkloads: [{file: cache.nomad}, {name: cache, image: x}]\n"
    with pytest.raises(Invalid, match="defined twice"):
        simulate(tmp_path, "", base=base)


LABELS = """\
name: labels
nodes:
  - {name: n0, cpu: 64, memory: 256Gi, labels: {zone: a}}
  - {name: n1, cpu: 2, memory: 2Gi, labels: {zone: b}}
workloads:
  - &store
    name: first
    image: x
    labels: {app: store}
    resources: {cpu: 100m}
    placement: {apart: [{match: {app: store}, strength: must}]}
  - {<<: *store, name: second}
  - &web
    name: a
    image: x
    replicas: 3
    labels: {tier: web}
    resources: {cpu: 100m}
    placement: {spread: [{over: zone, match: {tier: web}}]}
  - {<<: *web, name: b}
arrival: {within: 5s}
end: 2m
"""


def test_rules_that_match_labels_hold_in_a_simulation_as_they_do_in_a_cluster(tmp_path: Path) -> None:
    result = simulate(tmp_path, "", base=LABELS)
    assert sorted(where(result, "first") + where(result, "second")) == ["n0", "n1"]
    together = where(result, "a") + where(result, "b")
    assert together.count("n0") == together.count("n1") == 3
