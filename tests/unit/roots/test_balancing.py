"""The choice of a node's data path for services, and its removal."""

from pathlib import Path

import pytest

from mandor.errors import Unavailable
from mandor.network.nftables.balancer import NftablesBalancer
from mandor.network.relay.balancer import RelayBalancer
from mandor.roots.balancing import choose_balancing, remove_balancing


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the balancers that were removed; nftables works."""
    found: list[str] = []

    async def probe(balancer: NftablesBalancer) -> None:
        pass

    async def remove(balancer: NftablesBalancer | RelayBalancer) -> None:
        found.append(balancer.name)

    monkeypatch.setattr(NftablesBalancer, "probe", probe)
    for kind in (NftablesBalancer, RelayBalancer):
        monkeypatch.setattr(kind, "remove", remove)
    return found


def use(data: Path, name: str) -> Path:
    marker = data / "network" / f"{name}.used"
    marker.parent.mkdir(exist_ok=True)
    marker.touch()
    return marker


async def test_nftables_balances_where_it_works(tmp_path: Path, removed: list[str]) -> None:
    found = await choose_balancing("auto", "n1", tmp_path)
    assert found is not None
    assert found.balancer.name == "nftables"
    assert removed == []


async def test_the_relay_balances_where_nftables_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def probe(balancer: NftablesBalancer) -> None:
        raise Unavailable("the nftables balancer needs root")

    monkeypatch.setattr(NftablesBalancer, "probe", probe)
    found = await choose_balancing("auto", "n1", tmp_path)
    assert found is not None
    assert found.balancer.name == "relay"


async def test_a_node_without_a_balancer_balances_nothing(tmp_path: Path) -> None:
    assert await choose_balancing("off", "n1", tmp_path) is None


@pytest.mark.parametrize(("chosen", "other"), [("nftables", "relay"), ("relay", "nftables"), ("off", "relay")])
async def test_another_data_path_of_an_earlier_agent_is_removed(
    tmp_path: Path, removed: list[str], chosen: str, other: str
) -> None:
    kept = use(tmp_path, chosen) if chosen != "off" else None
    marker = use(tmp_path, other)
    await choose_balancing(chosen, "n1", tmp_path)  # type: ignore[arg-type]
    assert removed == [other]
    assert not marker.exists()
    assert kept is None or kept.exists()


async def test_a_data_path_that_cannot_be_removed_is_tried_again(
    tmp_path: Path, removed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(balancer: NftablesBalancer) -> None:
        raise Unavailable("not root")

    marker = use(tmp_path, "nftables")
    monkeypatch.setattr(NftablesBalancer, "remove", fail)
    await remove_balancing("n1", tmp_path)
    assert marker.exists()


def test_nodes_of_two_clusters_with_one_name_have_tables_of_their_own() -> None:
    assert NftablesBalancer("n1", owner="/a").table != NftablesBalancer("n1", owner="/b").table
