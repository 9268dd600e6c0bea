"""`mandor drain`, `taint` and `label`, against a real API; a test writes what the drain controller would."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import pytest

from mandor.cli.commands import drain, held
from mandor.lib.quantity import Cpu, Seconds, Size
from mandor.model.machine import Machine, MachineKind, NodeAutoscale, PoolScaling
from mandor.model.meta import Meta
from mandor.model.node import Drain, DrainPhase, DrainStatus, Maintenance, Node, NodePhase
from mandor.model.pool import NodePool, NodePoolSpec, NodePoolStatus
from tests.scenarios.make import make_node
from tests.unit.cli.conftest import PATIENCE, LiveApi, Mandor


def stored(api: LiveApi, name: str = "n1") -> Node:
    found = api.get("node", name, "")
    assert isinstance(found, Node)
    return found


def tell(api: LiveApi, phase: DrainPhase, *, name: str = "n1", **fields: object) -> None:
    node = stored(api, name)
    assert node.spec.drain is not None
    status = DrainStatus(phase=phase, since=node.spec.drain.since, **fields)  # type: ignore[arg-type]
    api.put(node.changed(status=msgspec.structs.replace(node.status, drain=status)))


def once_ordered(api: LiveApi, work: Callable[[], None]) -> threading.Thread:
    """Do it when the drain is ordered."""

    def run() -> None:
        end = time.monotonic() + PATIENCE
        while stored(api).spec.drain is None and time.monotonic() < end:
            time.sleep(0.05)
        work()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


@pytest.fixture
def api_with_nodes(api: LiveApi) -> LiveApi:
    api.put(make_node("n1", labels={"zone": "a"}), make_node("n2", phase=NodePhase.READY))
    return api


def test_drain_is_an_order_that_stays(api_with_nodes: LiveApi, mandor: Mandor) -> None:
    api = api_with_nodes
    told = mandor("drain", "n1", "--deadline", "10m", "--no-wait")
    assert told.out == "node n1 is draining; no new instances are placed on it\n"
    order = stored(api).spec.drain
    assert order is not None
    assert (order.deadline, order.force) == (Seconds(600), False)
    assert abs(order.since - time.time()) < 60
    mandor("drain", "n1", "--force", "--no-wait")
    again = stored(api).spec.drain
    assert again is not None
    assert (again.deadline, again.force, again.since) == (None, True, order.since), "it began when it began"
    tell(api, "Waiting", total=20, left=8, waiting=("8 of default/web: its budget lets no more go now",))
    assert "Ready,draining 12/20" in mandor("get", "nodes").out
    story = mandor("describe", "node", "n1").out
    assert "node n1: Ready, being drained" in story
    assert "forced): 12 of 20 moved; 8 of default/web: its budget lets no more go now" in story
    tell(api, "Drained", total=20)
    assert "Ready,drained" in mandor("get", "nodes").out


def _and_set(text: str, event: threading.Event | None) -> str:
    if event is not None:
        event.set()
    return text


def test_drain_reports_how_far_it_is_and_ends_when_the_node_is_empty(
    api_with_nodes: LiveApi, mandor: Mandor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def go_on() -> None:
        tell(api_with_nodes, "Draining", total=3, left=2, moving=1, waiting=("1 of default/job: runs to its end",))
        assert told_first.wait(PATIENCE)
        tell(api_with_nodes, "Drained", total=3)

    told_first = threading.Event()
    asked = drain.shown
    monkeypatch.setattr(drain, "shown", lambda status: _and_set(asked(status), told_first if status else None))
    thread = once_ordered(api_with_nodes, go_on)
    told = mandor("drain", "n1", "--timeout", "60s")
    thread.join()
    assert told.code == 0
    lines = told.err.splitlines()
    assert "n1: 1 of 3 moved, 1 moving; 1 of default/job: runs to its end" in lines
    assert lines[-1] == "n1: empty, 3 moved"


def test_what_an_earlier_drain_reported_counts_no_more(api_with_nodes: LiveApi, mandor: Mandor) -> None:
    mandor("drain", "n1", "--no-wait")
    tell(api_with_nodes, "Drained", total=3)
    mandor("drain", "n1", "--cancel")
    told = mandor("drain", "n1", "--timeout", "1s")
    assert told.code == 1
    assert "not started yet" in told.err
    assert "the drain continues" in told.err


def test_a_drain_that_is_late_is_an_error_with_its_reasons(api_with_nodes: LiveApi, mandor: Mandor) -> None:
    why = ("1 of default/db: its data is on this node",)
    thread = once_ordered(api_with_nodes, lambda: tell(api_with_nodes, "Late", total=1, left=1, waiting=why))
    told = mandor("drain", "n1", "--deadline", "1s", "--timeout", "60s")
    thread.join()
    assert told.code == 1
    assert "its data is on this node" in told.err
    assert "`--force` ignores disruption budgets" in told.err


def test_drain_names_force_when_data_keeps_a_node(api_with_nodes: LiveApi, mandor: Mandor) -> None:
    api = api_with_nodes

    def work() -> None:
        tell(api, "Waiting", total=1, left=1, waiting=("1 of default/db: its data (data) is on this node",))
        time.sleep(2 * drain.PAUSE_SECONDS)
        tell(api, "Drained", total=1)

    thread = once_ordered(api, work)
    told = mandor("drain", "n1")
    thread.join(PATIENCE)
    assert told.code == 0
    hints = [line for line in told.err.splitlines() if line.startswith("hint:")]
    assert hints == [
        "hint: volumes are not moved; `mandor drain n1 --force` stops these instances until the node is uncordoned"
    ]


def hold(api: LiveApi, text: str, name: str = "n1") -> None:
    node = stored(api, name)
    facts = {**node.status.facts, "held": text} if text else {}
    api.put(node.changed(status=msgspec.structs.replace(node.status, facts=facts)))


def test_held_instances_are_named_and_stopped_only_on_request(api_with_nodes: LiveApi, mandor: Mandor) -> None:
    api = api_with_nodes
    hold(api, "2: web-5, db-0")
    asked = mandor("stop-held", "n1", "n2")
    assert asked.code == 1
    assert "node n1 holds 2: web-5, db-0" in asked.err
    assert "node n2 holds no instances" in asked.err
    assert "use --yes" in asked.err
    assert stored(api).spec.forget_before_epoch == 0

    def agent() -> None:
        end = time.monotonic() + PATIENCE
        while not stored(api).spec.forget_before_epoch and time.monotonic() < end:
            time.sleep(0.05)
        seen.append(stored(api).spec.forget_before_epoch)
        hold(api, "")

    for words, epochs in ((["--yes"], (1, 1)), (["--yes", "--current-epoch"], (2, 1))):
        hold(api, "1: web-5")
        node = stored(api)
        api.put(node.changed(spec=msgspec.structs.replace(node.spec, forget_before_epoch=0)))
        seen: list[int] = []
        thread = threading.Thread(target=agent, daemon=True)
        thread.start()
        done = mandor("stop-held", "n1", *words)
        thread.join(PATIENCE)
        assert (done.code, done.out) == (0, "node n1 stopped 1: web-5\n"), done.err
        assert (seen[0], stored(api).spec.forget_before_epoch) == epochs
    assert stored(api, "n2").spec.forget_before_epoch == 0


def test_what_a_node_still_holds_is_an_error(
    api_with_nodes: LiveApi, mandor: Mandor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "WAIT_SECONDS", 0.0)
    hold(api_with_nodes, "1: web-5")
    done = mandor("stop-held", "n1", "--yes")
    assert done.code == 1
    assert "node n1 still holds 1: web-5" in done.out
    assert "--current-epoch" in done.err


def test_records_of_machines_are_listed_and_removed_after_a_question(api_with_nodes: LiveApi, mandor: Mandor) -> None:
    api = api_with_nodes
    machines = (Machine(id="n2", kind="small", at=1.0), Machine(id="burst-1", kind="small", phase="Leaving", at=1.0))
    kinds = {"small": MachineKind(cpu=Cpu(1000), memory=Size(1 << 30))}
    spec = NodePoolSpec(autoscale=NodeAutoscale(provisioner="fake", kinds=kinds, max=2))
    api.put(NodePool(meta=Meta(name="burst"), spec=spec, status=NodePoolStatus(scaling=PoolScaling(machines=machines))))
    asked = mandor("pool", "forget", "burst")
    assert asked.code == 1
    assert asked.err.splitlines()[0].split() == ["burst-1", "Leaving"]
    done = mandor("pool", "forget", "burst", "--yes")
    assert done.code == 0, done.err
    pool = api.get("node-pool", "burst", "")
    assert isinstance(pool, NodePool)
    assert [each.id for each in pool.machines] == ["n2"]
    assert mandor("pool", "forget", "burst", "n2", "--yes").code == 1, "its node is ready"


def test_cancel_and_uncordon_end_a_drain(api_with_nodes: LiveApi, mandor: Mandor) -> None:
    assert mandor("drain", "n1", "--cancel").out == "node n1 is not being drained\n"
    mandor("drain", "n1", "n2", "--no-wait")
    assert mandor("drain", "n1", "--cancel").out == "node n1: drain cancelled; it is reopened\n"
    assert stored(api_with_nodes).spec.drain is None
    mandor("cordon", "n2")
    assert mandor("uncordon", "n2").out == "node n2 uncordoned; drain cancelled\n"
    assert not stored(api_with_nodes, "n2").closed


def test_uncordon_ends_a_turn_in_a_maintenance_window(api_with_nodes: LiveApi, mandor: Mandor) -> None:
    node = stored(api_with_nodes)
    turn = Maintenance(window=1234.5, drain=Drain(since=1240.0), until=5000.0)
    api_with_nodes.put(node.changed(status=msgspec.structs.replace(node.status, maintenance=turn)))
    assert mandor("uncordon", "n1").out == (
        "node n1 uncordoned; its turn in the maintenance window of the pool default has ended\n"
    )
    assert stored(api_with_nodes).spec.maintained == 1234.5, "its controller reads this"
    assert mandor("uncordon", "n2").out == "node n2 is not cordoned\n"


def test_a_wrong_use_of_drain_changes_nothing(api_with_nodes: LiveApi, mandor: Mandor) -> None:
    assert mandor("drain", "n1", "--cancel", "--force").code == 2
    assert mandor("drain", "n1", "--deadline", "soon").code == 2
    assert mandor("drain", "n1", "n9", "--no-wait").code == 1
    assert stored(api_with_nodes).spec.drain is None


def test_taints_are_set_changed_and_taken_away(api_with_nodes: LiveApi, mandor: Mandor) -> None:
    assert mandor("taint", "n1", "n2", "gpu=a100:NoSchedule", "old:NoExecute").out == (
        "node n1 + gpu=a100:NoSchedule, + old:NoExecute\nnode n2 + gpu=a100:NoSchedule, + old:NoExecute\n"
    )
    gpu, old = stored(api_with_nodes).spec.taints
    assert gpu.since == 0
    assert abs(old.since - time.time()) < 60, "when it was set"
    assert mandor("taint", "n1", "gpu=h100:NoSchedule").out == "node n1 + gpu=h100:NoSchedule, - gpu=a100:NoSchedule\n"
    assert {each.since for each in stored(api_with_nodes).spec.taints} == {0, old.since}
    assert mandor("taint", "n1", "gpu=h100:NoSchedule").out == "node n1 unchanged\n"
    assert mandor("taint", "n1", "gpu:NoSchedule-").out == "node n1 - gpu=h100:NoSchedule\n"
    assert "old:NoExecute" in mandor("get", "nodes", "-o", "wide").out
    assert mandor("taint", "n2", "old-", "gpu-").code == 0
    assert not stored(api_with_nodes, "n2").spec.taints


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["n1", "gpu=a:NoWay"], "with the effect NoSchedule, PreferNoSchedule, NoExecute"),
        (["n1", "gpu-"], "no taint gpu"),
        (["n1"], "then at least one taint"),
        (["gpu:NoSchedule"], "give the nodes first"),
        (["n1", "g u:NoSchedule"], "is not a label key"),
        (["n9", "gpu:NoSchedule"], "no node called n9"),
    ],
)
def test_a_wrong_taint_is_explained(api_with_nodes: LiveApi, mandor: Mandor, words: list[str], message: str) -> None:
    told = mandor("taint", *words)
    assert told.code in {1, 2}
    assert message in told.err
    assert not stored(api_with_nodes).spec.taints


@pytest.mark.req("S3-28")
def test_labels_are_set_changed_and_taken_away(api_with_nodes: LiveApi, mandor: Mandor) -> None:
    assert mandor("label", "n1", "role=infra", "zone=b").out == "node n1 zone: a → b, + role=infra\n"
    assert stored(api_with_nodes).meta.labels == {"role": "infra", "zone": "b"}
    assert mandor("label", "n1", "zone-").out == "node n1 - zone=b\n"
    assert mandor("label", "n1", "role=infra", "no-such-").out == "node n1 unchanged\n"
    assert mandor("label", "n1").code == 2
    assert mandor("label", "n1", "a=b", "plain").code == 2
    assert "is not a label key" in mandor("label", "n1", "a b=c").err
