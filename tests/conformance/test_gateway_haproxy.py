"""The HAProxy gateway keeps the promises of every gateway."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from mandor.network.gateway.base import Gateway
from mandor.network.gateway.haproxy import HaproxyGateway
from mandor.testing.gateway import GatewaySuite
from tests.components.haproxy import Proxy
from tests.components.ports import free_port


class TestHaproxyGateway(GatewaySuite):
    @pytest.fixture(autouse=True)
    def proxy(self, tmp_path: Path) -> None:
        self.http_port, self.https_port, self.tcp_port = free_port(), free_port(), free_port()
        self.running = Proxy(tmp_path / "proxy", self.http_port, self.https_port)

    @pytest.fixture
    async def gateway(self) -> AsyncIterator[Gateway]:
        with self.running:
            driver = HaproxyGateway(self.running.settings, self.running.program)
            await self.running.answers(driver)
            yield driver
            await driver.close()
