"""Roll-outs as people do them, against a real cluster: a server, an agent, processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import eventually
from tests.e2e.test_cli import EXAMPLES, Mandor, cluster, mandor

__all__ = ["cluster", "mandor"]


@pytest.fixture(autouse=True)
def nothing_is_left_for_the_next_test(mandor: Mandor) -> Iterator[None]:
    yield
    names = [word.partition("/")[2] for word in mandor("get", "workloads", "-o", "name").stdout.split()]
    mandor("delete", "workload", *names, "--wait", "--timeout", "60s")


def example(tmp_path: Path, name: str, *changes: tuple[str, str]) -> str:
    text = (EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / f"{name}.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def of_releases(mandor: Mandor) -> list[str]:
    items = json.loads(mandor("get", "instances", "-o", "json").stdout)["items"]
    return sorted(each["spec"]["release"] for each in items)


VERSION_2 = ('VERSION: "1"', 'VERSION: "2"')


@pytest.mark.req("S2-16", "S2-17", "S2-18")
def test_the_rolling_example_goes_on_fails_and_comes_back(mandor: Mandor, tmp_path: Path) -> None:
    mandor("apply", "-f", example(tmp_path, "rolling"), "--wait")
    mandor("rollout", "status", "roller")
    mandor("apply", "-f", example(tmp_path, "rolling", VERSION_2))
    told = mandor("rollout", "status", "roller")
    assert told.stdout == "roller: all instances have release roller.2 and are healthy\n"
    assert "of 4 updated to roller.2" in told.stderr
    assert of_releases(mandor) == ["roller.2"] * 4

    bad = example(tmp_path, "rolling", ("while :; do sleep 1; done", "exit 3"), ("deadline: 1m", "deadline: 4s"))
    mandor("apply", "-f", bad)
    told = mandor("rollout", "status", "roller", code=1)
    assert "roller.3 failed, rolled back to roller.2" in told.stderr
    assert "exit code 3" in told.stderr
    assert of_releases(mandor) == ["roller.2"] * 4
    assert "rolled back to roller.2" in mandor("get", "workloads").stdout
    assert "rolls back" not in mandor("describe", "workload", "roller").stdout

    mandor("rollout", "undo", "roller", "--to", "1", "--wait")
    history = mandor("rollout", "history", "roller").stdout.splitlines()
    assert [line.split()[:2] for line in history[1:]] == [[str(n), f"roller.{n}"] for n in (1, 2, 3, 4)]
    assert "as roller.1" in history[-1]


def test_the_canary_example_waits_and_is_promoted_or_given_up(mandor: Mandor, tmp_path: Path) -> None:
    mandor("apply", "-f", example(tmp_path, "canary"), "--wait")
    mandor("rollout", "status", "bird")
    mandor("apply", "-f", example(tmp_path, "canary", VERSION_2))
    eventually("it waits", lambda: "Waiting" in mandor("rollout", "status", "bird", "--no-follow").stdout)
    assert of_releases(mandor) == ["bird.1"] * 3 + ["bird.2"]
    mandor("rollout", "abort", "bird")
    told = mandor("rollout", "status", "bird", code=1)
    assert "aborted by a user" in told.stderr
    assert of_releases(mandor) == ["bird.1"] * 3

    mandor("apply", "-f", example(tmp_path, "canary", ('VERSION: "1"', 'VERSION: "3"')))
    eventually("it waits", lambda: "Waiting" in mandor("rollout", "status", "bird", "--no-follow").stdout)
    mandor("rollout", "promote", "bird", "--wait")
    assert of_releases(mandor) == ["bird.3"] * 3


def test_the_blue_green_example_switches_from_one_set_to_the_other(mandor: Mandor, tmp_path: Path) -> None:
    mandor("apply", "-f", example(tmp_path, "blue-green"), "--wait")
    mandor("rollout", "status", "twin")
    mandor("rollout", "pause", "twin")
    mandor("apply", "-f", example(tmp_path, "blue-green", VERSION_2))
    eventually("it is paused", lambda: "Paused" in mandor("rollout", "status", "twin", "--no-follow").stdout)
    mandor("rollout", "resume", "twin")
    eventually("it waits", lambda: "Waiting" in mandor("rollout", "status", "twin", "--no-follow").stdout)
    assert of_releases(mandor) == ["twin.1"] * 2 + ["twin.2"] * 2
    mandor("rollout", "promote", "twin", "--wait")
    assert of_releases(mandor) == ["twin.2"] * 2
    assert "no rollout of twin waits" in mandor("rollout", "promote", "twin", code=1).stderr
