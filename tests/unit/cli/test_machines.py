"""How tasks and spares are told."""

from __future__ import annotations

import time

from mandor.cli import machines
from mandor.cli.commands.describe import _headline
from mandor.cli.kinds import find_kind


def test_a_task_that_failed_reports_each_try_and_why() -> None:
    now = time.time()
    history = [
        {"state": "Queued", "at": now - 130, "why": "asked for by user:ani"},
        {"state": "Processing", "at": now - 10, "why": "try 1"},
        {"state": "Failed", "at": now - 5, "why": "0/12 nodes fit"},
    ]
    status = {"state": "Failed", "since": now - 5, "attempts": 1, "error": "No available nodes", "history": history}
    task = {"meta": {"name": "t"}, "spec": {"cpu": 400, "memory_mib": 8192}, "status": status}
    assert _headline(find_kind("task"), task) == "Failed, for 5s"
    assert machines.task_facts(task) == [
        ("requests", "400 cores and 8,192 MiB in the pool default"),
        ("machine", ""),
        ("error", "No available nodes"),
        ("failed attempts", "1"),
    ]
    assert machines.steps(task) == [
        "",
        "steps:",
        "  2m ago   Queued      asked for by user:ani",
        "  10s ago  Processing  try 1",
        "  5s ago   Failed      0/12 nodes fit",
    ]


def test_a_task_that_was_placed_names_its_machine() -> None:
    status = {"state": "Placed", "node": "bm-2", "address": "10.0.0.2"}
    task = {"meta": {"name": "t"}, "spec": {"cpu": 4, "memory_mib": 64, "pool": "ai"}, "status": status}
    assert ("machine", "bm-2 (10.0.0.2)") in machines.task_facts(task)
    assert machines.steps(task) == []


def test_a_spare_reports_of_each_of_its_machines() -> None:
    vms = [{"name": "a-0", "state": "Ready", "node": "bm-1"}, {"name": "a-1", "message": "no room yet"}]
    spec = {"count": 2, "cpu": 2, "memory_mib": 2048, "cluster": "lab"}
    spare = {"meta": {"name": "a"}, "spec": spec, "status": {"phase": "Preparing", "vms": vms}}
    assert machines.spare_facts(spare) == [("requests", "2 of 2 cores and 2,048 MiB for lab, in the pool default")]
    assert machines.spare_machines(spare) == [
        "",
        "machines:",
        "  a-0  Ready    bm-1",
        "  a-1  Placing  -     no room yet",
    ]
