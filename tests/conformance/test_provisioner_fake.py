"""The fake provisioner and the webhook keep what every provisioner promises."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from mandor.lib.egress import LOOPBACK, Egress
from mandor.model.codec import from_plain
from mandor.model.machine import MachineKind
from mandor.provision.base import Provisioner
from mandor.provision.fake import FakeProvisioner
from mandor.provision.pipeline import PipelineProvisioner
from mandor.testing.provisioner import ProvisionerSuite


class TestFake(ProvisionerSuite):
    @pytest.fixture
    def provisioner(self) -> Provisioner:
        return FakeProvisioner()

    def kind(self) -> MachineKind:
        return from_plain({"cpu": 1, "memory": "1Gi"}, MachineKind)


class TestPipeline(ProvisionerSuite):
    @pytest.fixture
    async def provisioner(self, tmp_path: Path) -> AsyncIterator[Provisioner]:
        async def take(request: web.Request) -> web.Response:
            body = await request.json()
            return web.Response(status=202 if body["action"] == "create" else 404)

        app = web.Application()
        app.router.add_post("/", take)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        (tmp_path / "secret").write_bytes(b"0123456789abcdef")
        made = PipelineProvisioner(f"http://127.0.0.1:{runner.addresses[0][1]}/", str(tmp_path / "secret"))
        made.restrict(Egress(LOOPBACK))
        yield made
        await made.close()
        await runner.cleanup()

    def kind(self) -> MachineKind:
        return from_plain({"cpu": 1, "memory": "1Gi"}, MachineKind)
