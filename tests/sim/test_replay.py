"""Recordings, replayed: the simulator's own come out as they went in, and another policy shows what it would change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mandor.errors import Invalid
from mandor.lib.clock import SystemClock
from mandor.model.codec import KINDS as ALL_KINDS
from mandor.model.recording import KINDS, NOT_RECORDED, RecordingStart
from mandor.sim.agreement import agreement
from mandor.sim.cluster import SimCluster
from mandor.sim.compare import load_scenario, run_all
from mandor.sim.node import inline
from mandor.sim.recorded import read_recorded
from mandor.sim.replay import RECORDED, load_replay
from mandor.sim.report import make_report
from mandor.sim.result import RunResult
from mandor.sim.run import run_scenario
from mandor.store.base import Put
from mandor.store.memory import MemoryStore
from mandor.store.recording import Recording, check_recordable
from tests.scenarios.make import make_node

BASE = """\
name: small
nodes:
  - {name: n0, cpu: 2, memory: 2Gi, disk: 20Gi}
  - {name: n1, cpu: 2, memory: 2Gi, disk: 20Gi, labels: {zone: b}}
  - {name: n2, cpu: 2, memory: 4Gi, disk: 20Gi, off: true}
workloads:
  - {kind: priority-class, name: high, value: 100}
  - {name: web, image: nginx, replicas: 3, resources: {cpu: 200m, memory: 256Mi}}
  - {name: db, image: pg, resources: {memory: 512Mi}, priority: high, env: {PASSWORD: hidden}}
  - {name: job, type: batch, image: job, replicas: 2, resources: {memory: 128Mi}}
usage: {web: {memory: 200Mi}}
endings: {job: [{after: 1m}], job-1: [{after: 30s, exit_code: 1}, {after: 40s}]}
arrival: {within: 5s}
end: 8m
"""
LOSS = """\
timeline:
  - {at: 2m, phase: loss, down: n0}
  - {at: 3m40s, up: n2, submit: {name: late, image: x, replicas: 2, resources: {memory: 256Mi}}}
  - {at: 4m, scale: {workload: web, replicas: 5}, cordon: n1}
  - {at: 5m, phase: back, up: n0, uncordon: n1, delete: db}
"""
SPREAD = """\
name: spread
nodes: [{name: "n{n}", count: 3, cpu: 4, memory: 4Gi}]
workloads:
  - {name: a, image: x, resources: {memory: 512Mi, cpu: 500m}}
  - {name: b, image: x, resources: {memory: 512Mi, cpu: 500m}}
  - {name: c, image: x, resources: {memory: 512Mi, cpu: 500m}}
end: 3m
"""
PACKED = """\
profiles:
  - pluginConfig:
      - {name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}
"""


def record(
    folder: Path,
    more: str,
    *,
    seed: int = 0,
    base: str = BASE,
    most: int = 1 << 20,
    profiles: str = "",
    after: float = 0.0,
) -> tuple[Path, RunResult]:
    """A simulated cluster, recorded while it runs."""
    scenario, path = folder / "s.yaml", folder / "recording"
    scenario.write_text(base + more)

    async def follow(cluster: SimCluster) -> None:
        await cluster.clock.sleep(after)
        began = RecordingStart(at=cluster.clock.now())
        uses = lambda: [each.instances for each in cluster.heartbeats.all_usage()]  # noqa: E731
        await Recording(
            *(cluster.store, cluster.clock, path, began),
            uses=uses,
            bytes_most=most,
            blocking=inline,
            profiles=lambda: profiles,
        ).run()

    loaded = load_scenario(scenario)
    return path, run_scenario(loaded, next(iter(loaded.scenario.plans)), seed, extra=follow)


def homes(result: RunResult) -> set[tuple[str, str]]:
    return {(each.instance, each.node) for each in result.stays}


@pytest.mark.parametrize("seed", [0, 3])
def test_what_the_simulator_recorded_is_replayed_as_it_was(tmp_path: Path, seed: int) -> None:
    path, original = record(tmp_path, LOSS, seed=seed)
    loaded = load_replay(path)
    replayed = run_scenario(loaded, RECORDED, 0)
    assert homes(replayed) == homes(original)
    assert [each for _, each in loaded.scenario.endings.items()], "how long the batch took is known"
    assert [(each.down, each.up) for each in loaded.scenario.timeline if each.down or each.up] == [
        (("n0",), ()),
        ((), ("n2",)),
        ((), ("n0",)),
    ]
    assert loaded.recorded is not None
    found = agreement(loaded.recorded, replayed)
    assert found["same_node_percent"] > 95, found
    assert found["elsewhere"] == []


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    work=st.lists(
        st.tuples(st.integers(1, 4), st.integers(50, 900), st.sampled_from([0, 10]), st.integers(0, 5)),
        min_size=1,
        max_size=5,
    ),
    lost=st.sampled_from(["", "n0", "n1"]),
)
def test_the_same_profile_gives_the_same_placements(
    tmp_path_factory: pytest.TempPathFactory, work: list[tuple[int, int, int, int]], lost: str
) -> None:
    """Whatever was submitted, whenever, and whichever machine was lost."""
    nodes = "".join(f"  - {{name: n{n}, cpu: 2, memory: 2Gi}}\n" for n in range(3))
    first = "workloads: [{name: first, image: x}]\nnodes:\n" + nodes
    lines = [
        f"  - {{at: {20 + 10 * number}s, submit: {{name: w{number}, image: x, replicas: {count}, priority: {priority}, "
        f"resources: {{memory: {memory}Mi, cpu: {100 + 50 * cpu}m}}}}}}"
        for number, (count, memory, priority, cpu) in enumerate(work)
    ]
    lines += [f"  - {{at: 2m, down: {lost}}}"] if lost else []
    base = f"name: any\n{first}arrival: {{within: 5s}}\nend: 5m\ntimeline:\n" + "\n".join(lines) + "\n"
    path, original = record(tmp_path_factory.mktemp("replay"), "", base=base)
    assert homes(run_scenario(load_replay(path), RECORDED, 0)) == homes(original)


QUOTA = """\
timeline:
  - at: 2m
    submit: [{kind: quota, name: few, memory: 1536Mi}]
  - {at: 3m, scale: {workload: web, replicas: 6}}
  - {at: 5m, delete: quota few}
"""


def test_a_quota_holds_instances_back_in_the_replay_until_it_is_deleted(tmp_path: Path) -> None:
    path, original = record(tmp_path, QUOTA)
    assert not any(each.instance == "web-5" and each.begin < 290 for each in original.stays), "the quota had no effect"
    replayed = run_scenario(load_replay(path), RECORDED, 0)
    assert homes(replayed) == homes(original)
    late = {each.instance for each in replayed.stays if each.begin > 290}
    assert "web-5" in late


EVERYWHERE = """\
name: everywhere
nodes: [{name: "n{n}", count: 2, cpu: 4, memory: 4Gi}]
workloads:
  - {name: log, type: daemon, image: x, resources: {memory: 64Mi}}
  - {name: web, image: x, replicas: 2, env: {STEP: "1"}, resources: {memory: 64Mi}}
timeline:
  - {at: 1m, submit: [{name: web, image: x, env: {STEP: "2"}, resources: {memory: 64Mi}}]}
end: 3m
"""


def test_a_daemon_is_replayed_on_every_node(tmp_path: Path) -> None:
    path, original = record(tmp_path, "", base=EVERYWHERE)
    replayed = run_scenario(load_replay(path), RECORDED, 0)
    assert {each for each in homes(replayed) if each[0].startswith("log")} == {("log-n0", "n0"), ("log-n1", "n1")}
    assert homes(replayed) == homes(original)


def test_a_change_of_variables_is_replayed_as_a_roll_out_although_they_are_not_recorded(tmp_path: Path) -> None:
    path, original = record(tmp_path, "", base=EVERYWHERE)
    assert b"STEP" not in path.read_bytes()

    def starts(run: RunResult) -> int:
        return sum(each.workload == "web" for each in run.stays)

    replayed = run_scenario(load_replay(path), RECORDED, 0)
    assert starts(original) == starts(replayed) == 4


BOUND = """\
name: bound
nodes:
  - {name: n0, cpu: 2, memory: 2Gi, disk: 20Gi}
  - {name: n1, cpu: 8, memory: 16Gi, disk: 200Gi, off: true}
workloads:
  - name: db
    image: pg
    resources: {memory: 256Mi}
    volumes: {data: {per_instance: true}}
    mounts: [{volume: data, path: /data}]
timeline: [{at: 1m, up: n1}]
end: 4m
"""


@pytest.mark.req("S3-11")
def test_a_volume_with_data_keeps_its_instance_on_its_node_in_a_recording_of_a_running_cluster(tmp_path: Path) -> None:
    path, original = record(tmp_path, "", base=BOUND, after=150)
    assert homes(original) == {("db-0", "n0")}
    loaded = load_replay(path)
    assert homes(run_scenario(loaded, RECORDED, 0)) == {("db-0", "n0")}


def test_every_kind_of_the_model_is_recorded_or_left_out_with_a_reason() -> None:
    assert KINDS | NOT_RECORDED.keys() == ALL_KINDS.keys()
    assert not KINDS & NOT_RECORDED.keys()
    assert all(NOT_RECORDED.values())


def test_another_policy_is_compared_with_the_recorded_one(tmp_path: Path) -> None:
    path, _ = record(tmp_path, "", base=SPREAD)
    profile = tmp_path / "packed.yaml"
    profile.write_text(PACKED)
    loaded = load_replay(path, profile)
    report = make_report(loaded, run_all(loaded, [0, 1], workers=2), [0, 1])
    assert [each["name"] for each in report["strategies"]] == [RECORDED, "packed.yaml"]
    told = report["replay"]["strategies"]
    assert told[RECORDED]["same_node_percent"] > 95
    assert told["packed.yaml"]["same_node_percent"] < told[RECORDED]["same_node_percent"]
    assert told["packed.yaml"]["elsewhere"], "what it would have put elsewhere is named"


def test_the_recorded_profile_is_the_one_that_is_replayed(tmp_path: Path) -> None:
    path, _ = record(tmp_path, "", profiles=PACKED)
    loaded = load_replay(path)
    config, _ = loaded.sources[RECORDED].read()
    assert "MostAllocated" in str(config)


def test_a_recording_that_begins_in_mid_life_begins_with_what_was_there(tmp_path: Path) -> None:
    path, original = record(tmp_path, LOSS, after=60)
    loaded = load_replay(path)
    assert {each.meta.name for each in loaded.first} == {"default", "high", "web", "db", "job"}
    replayed = run_scenario(loaded, RECORDED, 0)
    late = {each for each in homes(original) if each[0].startswith("late")}
    assert late <= homes(replayed)
    assert {each for each, _ in homes(replayed)} == {each for each, _ in homes(original)}


def test_a_truncated_last_line_is_accepted_and_any_other_error_names_its_line(tmp_path: Path) -> None:
    path, _ = record(tmp_path, "")
    whole = path.read_bytes()
    path.write_bytes(whole[:-7])
    assert read_recorded(path).changes
    lines = whole.split(b"\n")
    path.write_bytes(b"\n".join([*lines[:3], b"{nonsense", *lines[3:]]))
    with pytest.raises(Invalid) as caught:
        read_recorded(path)
    assert caught.value.facts["line"] == 4
    path.write_bytes(b"name: web\n")
    with pytest.raises(Invalid, match="not a valid line of a recording"):
        read_recorded(path)


def test_the_file_is_bounded_and_shows_what_was_dropped(tmp_path: Path) -> None:
    scales = [f"  - {{at: {30 + 2 * n}s, scale: {{workload: web, replicas: {1 + n % 8}}}}}" for n in range(120)]
    path, _ = record(tmp_path, "timeline:\n" + "\n".join(scales) + "\n", most=64 << 10)
    parts = [path, path.with_name("recording.1")]
    assert sum(each.stat().st_size for each in parts) < 100_000
    assert path.stat().st_mode & 0o777 == 0o600
    found = read_recorded(path)
    assert any("earlier parts were dropped" in each for each in found.notes)
    assert {each.meta.name for each in found.first} >= {"n0", "n1", "web", "db"}
    assert run_scenario(load_replay(path), RECORDED, 0).phases[-1].workloads["web"].running > 0


def test_nothing_that_anybody_has_to_hide_is_in_it(tmp_path: Path) -> None:
    hidden = """
  - name: shy
    image: nginx
    command: [run, hidden]
    args: [hidden]
    env: {A: hidden}
    files: [{path: /etc/a, content: hidden}]
    working_dir: /hidden
    readiness: {http: "/?key=hidden", port: 80}
    health: {command: [check, hidden]}
    options: {docker: {hostname: hidden}}
    alternatives: [{command: [other, hidden], env: {A: hidden}, readiness: {command: [hidden]}}]
"""
    path, original = record(tmp_path, "", base=BASE.replace("usage:", hidden + "usage:", 1))
    assert original.phases[-1].workloads["shy"].running == 1
    assert b"shy" in path.read_bytes()
    assert b"hidden" not in path.read_bytes()


def test_a_file_that_is_no_recording_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "precious"
    path.write_text("precious\n")
    with pytest.raises(Invalid, match="is not a recording"):
        check_recordable(path)
    assert path.read_text() == "precious\n"


async def test_a_watcher_that_falls_behind_gets_expired_and_lists_again(tmp_path: Path) -> None:
    store = MemoryStore(history_most=10, buffer_most=10)
    path = tmp_path / "recording"
    stuck = asyncio.Event()

    async def slow(work: Callable[..., None], *args: object) -> None:
        work(*args)
        await stuck.wait()

    recording = Recording(store, SystemClock(), path, RecordingStart(at=0.0), blocking=slow)
    task = asyncio.ensure_future(recording.run())
    try:
        for number in range(40):
            await store.commit(Put(make_node(f"n{number}", cpu=1)))
        stuck.set()
        async with asyncio.timeout(30):
            while path.read_bytes().count(b'"seen"') < 40:
                await asyncio.sleep(0.02)
    finally:
        task.cancel()
        await asyncio.wait({task})
    assert any("something is missing" in each for each in read_recorded(path).notes)
