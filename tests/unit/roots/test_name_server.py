"""Settings of the name server of a node."""

from __future__ import annotations

from pathlib import Path

import pytest

from mandor.errors import Invalid
from mandor.roots.name_server import make_name_server


def test_off_means_that_the_node_has_no_name_server(tmp_path: Path) -> None:
    assert make_name_server("off", (), tmp_path) is None
    found = make_name_server("auto", ("10.0.0.53", "[fd00::53]:5353"), tmp_path)
    assert found is not None
    assert found.folder == tmp_path / "network" / "dns"
    assert not found.folder.exists()


@pytest.mark.parametrize("dns", ["", "on", "127.0.0.1", "0.0.0.0", "224.0.0.1", "fd00::1", "dns.example"])
def test_an_address_that_containers_cannot_reach_is_refused(dns: str, tmp_path: Path) -> None:
    with pytest.raises(Invalid) as raised:
        make_name_server(dns, (), tmp_path)
    assert "169.254.53.53" in (raised.value.hint or "")


def test_an_upstream_server_is_an_address(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="dns_upstream"):
        make_name_server("off", ("dns.example",), tmp_path)
