"""IncusProvisioner keeps what every provisioner promises, with a real incusd."""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec
import pytest

from mandor.model.codec import from_plain
from mandor.model.machine import MachineKind
from mandor.provision.base import NotMade, Provisioner
from mandor.provision.incus import IncusProvisioner
from mandor.testing.provisioner import ProvisionerSuite
from tests.components.incus import IMAGE, Incus
from tests.components.ports import free_port


@pytest.mark.req("S0-6")
class TestIncusProvisioner(ProvisionerSuite):
    @pytest.fixture
    async def provisioner(self, incus: Incus) -> AsyncIterator[Provisioner]:
        made = IncusProvisioner(url=incus.url)
        yield made
        await made.close()

    def kind(self) -> MachineKind:
        start = ["sh", "-c", "cp /etc/mandor/mandor.toml /root/seen; sleep 600"]
        return from_plain({"cpu": 1, "memory": "128Mi", "options": {"image": IMAGE, "start": start}}, MachineKind)

    async def test_its_agent_is_given_what_it_needs_to_join_and_is_started(
        self, provisioner: Provisioner, incus: Incus
    ) -> None:
        await provisioner.create(self.order())
        try:
            seen = incus.cli("exec", "suite-1", "--", "cat", "/root/seen")
            assert 'join_token = "a-token"' in seen
            assert 'name = "suite-1"' in seen
            assert 'capacity = ["cpu=1", "memory=128Mi"]' in seen
        finally:
            await provisioner.delete(self.cluster, "suite-1")

    async def test_a_foreign_instance_is_left_alone(self, provisioner: Provisioner, incus: Incus) -> None:
        incus.cli("launch", IMAGE, "suite-1")
        try:
            await provisioner.delete(self.cluster, "suite-1")
            assert incus.cli("list", "suite-1", "--format", "csv", "--columns", "s") == "RUNNING"
        finally:
            incus.cli("delete", "--force", "suite-1")

    async def test_an_order_that_incus_refuses_leaves_nothing(self, provisioner: Provisioner) -> None:
        options = {"image": "no-such-image"}
        kind = from_plain({"cpu": 1, "memory": "128Mi", "options": options}, MachineKind)
        with pytest.raises(NotMade, match="could not make suite-1"):
            await provisioner.create(msgspec.structs.replace(self.order(), what=kind))
        assert not await self.ids(provisioner)


async def test_an_unreachable_incus_makes_nothing() -> None:
    made = IncusProvisioner(url=f"https://127.0.0.1:{free_port()}")
    suite = TestIncusProvisioner()
    try:
        with pytest.raises(NotMade, match="does not answer"):
            await made.create(suite.order())
    finally:
        await made.close()
