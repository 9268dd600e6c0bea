"""The relay balancer keeps the promises of every balancer."""

from pathlib import Path

import pytest

from mandor.network.base import Balancer
from mandor.network.relay import RelayBalancer
from mandor.testing.balancer import BalancerSuite


class TestRelayBalancer(BalancerSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "relay"

    def make(self) -> Balancer:
        return RelayBalancer(self.path)
