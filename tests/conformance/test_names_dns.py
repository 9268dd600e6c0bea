"""The name server process keeps the promises of every name server."""

from pathlib import Path

import pytest

from mandor.network.base import Names
from mandor.network.dns.names import NameServerProcess
from mandor.testing.names import NamesSuite


class TestNameServerProcess(NamesSuite):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self.path = tmp_path / "dns"

    def make(self, upstream: tuple[str, int]) -> Names:
        return NameServerProcess(self.path, ["127.0.0.1"], port=0, upstream=[upstream], add=False)

    def port(self, names: Names) -> int:
        assert isinstance(names, NameServerProcess)
        return names.port
