"""The campaign of `make attack`, a few seconds of it: no 500, no dead server, no marker of another tenant."""

import json
import random
import subprocess
import sys
import time
from pathlib import Path

from bench._attack_files import by_journals
from bench._attack_target import Target
from mandor.agent.journal import Journal

ROOT = Path(__file__).resolve().parents[2]


def test_a_short_campaign_finds_nothing(tmp_path: Path) -> None:
    report = tmp_path / "attack.json"
    command = [sys.executable, str(ROOT / "bench" / "attack.py"), "--minutes", "0.2", "--seed", "7"]
    done = subprocess.run([*command, "--json", str(report)], capture_output=True, text=True, timeout=300, check=False)
    assert report.exists(), done.stderr[-3000:]
    result = json.loads(report.read_text())["result"]
    assert {name: each["findings"] for name, each in result["campaigns"].items() if each["findings"]} == {}
    assert done.returncode == 0
    assert all(each["tried"] for name, each in result["campaigns"].items() if name != "log of the server")


def test_damage_to_the_journal_costs_no_order_whose_file_is_whole(tmp_path: Path) -> None:
    campaign = by_journals(Target(tmp_path, 0), random.Random(11), time.monotonic() + 2.0)
    assert campaign.tried
    assert campaign.findings == []


def test_a_journal_that_is_nested_too_deeply_is_set_aside(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    (tmp_path / "orders" / "u1.json").write_bytes(b"[" * 100_000)
    (tmp_path / "cluster.json").write_bytes(b"{" * 3 + b'"a":[' * 50_000)
    assert list(journal.entries()) == []
    assert journal.membership is None
    assert (tmp_path / "orders" / "u1.json.bad").exists()
