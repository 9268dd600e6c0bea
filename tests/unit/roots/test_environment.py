"""Settings from the environment, which knows only text."""

from __future__ import annotations

from typing import Any

import pytest

from mandor.errors import Invalid
from mandor.roots.settings import AgentRootSettings, ServerSettings, load


@pytest.mark.req("S4-24")
@pytest.mark.parametrize(
    ("kind", "environ", "name", "value"),
    [
        (ServerSettings, {"MANDOR_TASK_ATTEMPTS": "6"}, "task_attempts", 6),
        (ServerSettings, {"MANDOR_TASK_PAUSE": "3s"}, "task_pause", 3.0),
        (ServerSettings, {"MANDOR_ROLES": "api, tasks"}, "roles", ("api", "tasks")),
        (AgentRootSettings, {"MANDOR_NAMES": "false"}, "names", False),
        (AgentRootSettings, {"MANDOR_NAMES": "1"}, "names", True),
    ],
)
def test_what_a_variable_shows_is_understood(
    kind: type[Any], environ: dict[str, str], name: str, value: object
) -> None:
    assert getattr(load(kind, "server", environ=environ, flags={}), name) == value


@pytest.mark.parametrize("text", ["four", "4.5", ""])
def test_what_is_no_number_is_reported_with_its_variable(text: str) -> None:
    with pytest.raises(Invalid, match="MANDOR_TASK_ATTEMPTS"):
        load(ServerSettings, "server", environ={"MANDOR_TASK_ATTEMPTS": text}, flags={})
