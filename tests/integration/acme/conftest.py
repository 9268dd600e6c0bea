"""A pebble of their own for the tests of certificates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.components import find
from tests.components.pebble import Pebble, running


@pytest.fixture(scope="module")
def pebble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pebble]:
    """One that rejects a fifth of all nonces."""
    binary = find("pebble")
    assert binary is not None
    with running(binary, tmp_path_factory.mktemp("pebble"), PEBBLE_WFE_NONCEREJECT="20") as pebble:
        yield pebble


@pytest.fixture
def own_pebble(tmp_path: Path) -> Iterator[Pebble]:
    """One that a test stops and starts."""
    binary = find("pebble")
    assert binary is not None
    with running(binary, tmp_path / "pebble") as pebble:
        yield pebble
