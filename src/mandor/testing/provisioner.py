"""Conformance suite for provisioners: subclass `ProvisionerSuite`, define a provisioner and its orders."""

import msgspec
import pytest

from mandor.model.machine import MachineKind
from mandor.provision.base import JoinInfo, MachineOrder, Provisioner

JOIN = JoinInfo(servers=("http://127.0.0.1:8080",), token="a-token")


class ProvisionerSuite:
    cluster = "suite"

    @pytest.fixture
    def provisioner(self) -> Provisioner:
        raise NotImplementedError("give a fixture that makes the provisioner, and closes it in the end")

    def kind(self) -> MachineKind:
        """The smallest machine that can be had."""
        raise NotImplementedError

    def order(self, number: int = 1) -> MachineOrder:
        name = f"suite-{number}"
        return MachineOrder(id=name, cluster=self.cluster, pool="suite", kind="small", what=self.kind(), join=JOIN)

    async def ids(self, provisioner: Provisioner, cluster: str = "") -> set[str] | None:
        found = await provisioner.list(cluster or self.cluster)
        return None if found is None else {each.id for each in found}

    async def test_a_machine_that_was_made_is_there_until_it_is_taken_away(self, provisioner: Provisioner) -> None:
        await provisioner.create(self.order())
        try:
            assert await self.ids(provisioner) in (None, {"suite-1"})
        finally:
            await provisioner.delete(self.cluster, "suite-1")
        assert not await self.ids(provisioner)

    async def test_the_same_order_again_is_the_same_machine(self, provisioner: Provisioner) -> None:
        try:
            await provisioner.create(self.order())
            await provisioner.create(self.order())
            again = msgspec.structs.replace(self.order(), join=msgspec.structs.replace(JOIN, token="another"))
            await provisioner.create(again)
            assert await self.ids(provisioner) in (None, {"suite-1"})
        finally:
            await provisioner.delete(self.cluster, "suite-1")

    async def test_taking_away_what_is_not_there_is_no_error(self, provisioner: Provisioner) -> None:
        await provisioner.delete(self.cluster, "suite-9")
        await provisioner.create(self.order())
        await provisioner.delete(self.cluster, "suite-1")
        await provisioner.delete(self.cluster, "suite-1")
        assert not await self.ids(provisioner)

    async def test_machines_of_another_cluster_are_neither_shown_nor_taken_away(self, provisioner: Provisioner) -> None:
        try:
            await provisioner.create(self.order())
            assert not await self.ids(provisioner, "another")
            await provisioner.delete("another", "suite-1")
            assert await self.ids(provisioner) in (None, {"suite-1"})
        finally:
            await provisioner.delete(self.cluster, "suite-1")
