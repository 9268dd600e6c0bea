from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.agent.harness import AgentHarness


@pytest.fixture
async def harness(tmp_path: Path) -> AsyncIterator[AgentHarness]:
    harness = AgentHarness(tmp_path)
    await harness.found()
    await harness.serve()
    yield harness
    await harness.go_away()
    await harness.store.close()
