"""The cri engine with a runtime other than containerd: it uses the CRI only."""

from __future__ import annotations

import itertools
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from mandor.engines.base import Launch, Mount, Unit, UnitPhase
from mandor.engines.cri import CriEngine, wire
from mandor.errors import Unsupported
from mandor.model.image import ImageFile

UNIT = Unit("u1", "main", 1)


class Runtime:
    """A runtime in memory that reports the name of CRI-O and has no events, as CRI-O before version 1.27."""

    def __init__(self) -> None:
        self.sandboxes: dict[str, Any] = {}
        self.containers: dict[str, Any] = {}
        self.states: dict[str, int] = {}
        self._numbers = itertools.count()

    def answer(self, method: wire.Method, asked: Any) -> dict[str, Any]:
        verb = method.path.rpartition("/")[2]
        handle = getattr(self, verb, None)
        return dict(handle(asked)) if handle is not None else {}

    def Version(self, asked: Any) -> dict[str, Any]:
        return {"runtime_name": "cri-o", "runtime_version": "1.30.2"}

    def ImageStatus(self, asked: Any) -> dict[str, Any]:
        return {"image": wire.make("Image", id="sha256:1", repo_tags=[asked.image.image])}

    def RunPodSandbox(self, asked: Any) -> dict[str, Any]:
        name = f"s{next(self._numbers)}"
        self.sandboxes[name] = asked.config
        return {"pod_sandbox_id": name}

    def ListPodSandbox(self, asked: Any) -> dict[str, Any]:
        return {
            "items": [
                wire.make("PodSandbox", id=name, metadata=config.metadata, labels=dict(config.labels))
                for name, config in self.sandboxes.items()
            ]
        }

    def RemovePodSandbox(self, asked: Any) -> dict[str, Any]:
        self.sandboxes.pop(asked.pod_sandbox_id, None)
        return {}

    def CreateContainer(self, asked: Any) -> dict[str, Any]:
        name = f"c{next(self._numbers)}"
        self.containers[name], self.states[name] = asked, wire.CREATED
        return {"container_id": name}

    def StartContainer(self, asked: Any) -> dict[str, Any]:
        self.states[asked.container_id] = wire.RUNNING
        return {}

    def StopContainer(self, asked: Any) -> dict[str, Any]:
        if asked.container_id in self.states:
            self.states[asked.container_id] = wire.EXITED
        return {}

    def RemoveContainer(self, asked: Any) -> dict[str, Any]:
        self.containers.pop(asked.container_id, None)
        return {}

    def ListContainers(self, asked: Any) -> dict[str, Any]:
        return {
            "containers": [
                wire.make(
                    "Container",
                    id=name,
                    pod_sandbox_id=made.pod_sandbox_id,
                    state=self.states[name],
                    labels=dict(made.config.labels),
                )
                for name, made in self.containers.items()
            ]
        }

    def ContainerStatus(self, asked: Any) -> dict[str, Any]:
        state = self.states[asked.container_id]
        code = {"exit_code": 143} if state == wire.EXITED else {}
        return {"status": wire.make("ContainerStatus", id=asked.container_id, state=state, **code)}


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    runtime, server = Runtime(), grpc.aio.server()
    services: dict[str, dict[str, Any]] = {}
    for method in (each for each in vars(wire).values() if isinstance(each, wire.Method) and not each.streams):

        async def handle(asked: Any, context: Any, method: wire.Method = method) -> Any:
            return wire.make(method.response, **runtime.answer(method, asked))

        _, service, verb = method.path.split("/")
        services.setdefault(service, {})[verb] = grpc.unary_unary_rpc_method_handler(
            handle, wire.messages[method.request].FromString, wire.messages[method.response].SerializeToString
        )
    for service, handlers in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(f"unix:{tmp_path}/crio.sock")
    await server.start()
    yield runtime
    await server.stop(None)


@pytest.fixture
async def engine(runtime: Runtime, tmp_path: Path) -> AsyncIterator[CriEngine]:
    async with CriEngine(tmp_path / "engine", socket=tmp_path / "crio.sock") as engine:
        yield engine


def launch(**parts: Any) -> Launch:
    return Launch(name="web-0", image="web:1", command=("serve",), **parts)


@pytest.mark.req("S2-27")
async def test_a_runtime_other_than_containerd_announces_only_the_cri(engine: CriEngine) -> None:
    found = await engine.probe()
    assert found.version == "1.30.2"
    assert found.limits == {"cpu", "memory"}
    assert not found.extras & {"tmpfs", "machines"}
    assert not found.loads


@pytest.mark.req("S2-27")
async def test_it_starts_stops_and_removes(engine: CriEngine, runtime: Runtime) -> None:
    await engine.start(UNIT, launch(memory_bytes=64 << 20, cpu_milli=500))
    assert [(each.unit, each.phase) for each in await engine.list()] == [(UNIT, UnitPhase.RUNNING)]
    (made,) = runtime.containers.values()
    assert made.config.linux.resources.memory_limit_in_bytes == 64 << 20
    await engine.start(UNIT, launch())
    assert len(runtime.containers) == 1
    await engine.stop(UNIT, grace_seconds=0)
    assert [(each.phase, each.exit_code) for each in await engine.list()] == [(UnitPhase.EXITED, 143)]
    await engine.remove(UNIT)
    assert (runtime.containers, runtime.sandboxes) == ({}, {})


async def test_a_tmpfs_is_refused_with_a_message_and_leaves_nothing(engine: CriEngine, runtime: Runtime) -> None:
    await engine.start(UNIT, launch(mounts=(Mount(path="/scratch"),)))
    (seen,) = await engine.list()
    assert (seen.phase, seen.reason) == (UnitPhase.EXITED, "StartFailed")
    assert "/scratch: this CRI runtime has no tmpfs" in seen.message
    assert runtime.containers == {}
    await engine.remove(UNIT)
    assert runtime.sandboxes == {}


async def test_a_runtime_without_events_is_polled(engine: CriEngine) -> None:
    events = engine.events()
    await anext(events)
    await anext(events)
    assert isinstance(events, AsyncGenerator)
    await events.aclose()


async def test_a_runtime_without_a_transfer_service_refuses_image_files(engine: CriEngine) -> None:
    async def content() -> AsyncIterator[bytes]:
        yield b""

    with pytest.raises(Unsupported, match="cannot load images from files"):
        await engine.load_image(ImageFile(kind="archive", size=1, names=("other:1",)), content())
