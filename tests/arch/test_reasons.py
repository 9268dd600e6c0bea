"""The reasons in docs/reference/reasons.toml are the reasons that the code uses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from mandor.model.meta import Meta
from mandor.model.record import Cluster, ClusterSpec
from scripts.reference_lists import reasons
from tests.reasons import check_reason

SOURCE = Path(__file__).parents[2] / "src" / "mandor"
RECORDS = {"note", "event", "warn"}
"""Methods that record an event about an object, with the reason as their second argument."""
NO_EVENTS = {"importers", "sim", "bench"}
"""Packages in which methods of these names do something else."""


def documented(section: str) -> set[str]:
    return {reason for table in reasons()[section].values() for reason in table}


def recorded() -> Iterator[tuple[str, str]]:
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).parts[0] in NO_EVENTS:
            continue
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in RECORDS:
                for reason in call.args[1:2]:
                    if isinstance(reason, ast.Constant) and isinstance(reason.value, str):
                        yield reason.value, f"{path.relative_to(SOURCE)}:{call.lineno}"


def test_every_reason_of_an_event_is_documented() -> None:
    missing = {reason: where for reason, where in recorded() if reason not in documented("event")}
    assert missing == {}, "add them to docs/reference/reasons.toml and run `make reference`"


def test_every_documented_reason_is_in_the_code() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    made = ("Node", "Reservation", "Spare")  # Followed by a phase.
    unused = {
        reason
        for section in ("event", "status")
        for reason in documented(section)
        if f'"{reason}"' not in text
        and f"class {reason}(" not in text  # Errors are reasons by the name of their class.
        and not any(reason.startswith(prefix) and f'"{reason.removeprefix(prefix)}"' in text for prefix in made)
    }
    assert unused == set()


def test_an_undocumented_reason_fails_the_run() -> None:
    cluster = Cluster(meta=Meta(name="cluster"), spec=ClusterSpec(id="c1"))
    check_reason(cluster, "PluginDisabled")
    with pytest.raises(AssertionError, match="NoSuchReason"):
        check_reason(cluster, "NoSuchReason")
