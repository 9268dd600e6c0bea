"""A real API in a thread of its own, and the command line that talks to it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from mandor.api.settings import ApiSettings
from mandor.cli.main import run
from mandor.lib.egress import LOOPBACK, Egress
from mandor.lib.secret_files import SecretFiles
from mandor.model.meta import Key, Meta, Object
from mandor.model.record import Cluster, ClusterSpec
from mandor.store.base import Put, Store
from mandor.store.memory import MemoryStore
from tests.api.conftest import Api, default_namespace, running_api

T = TypeVar("T")
PATIENCE = 60.0


class LiveApi:
    """The API of a cluster without controllers and agents: a test writes what they would."""

    def __init__(self, *, tokens_required: bool) -> None:
        self._away_seconds: float | None = None
        self._settings = ApiSettings(tokens_required=tokens_required)
        self._ready = threading.Event()
        self._over: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._thread.start()
        assert self._ready.wait(PATIENCE), "the API did not start"

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        async with MemoryStore() as store:
            await store.commit(
                Put(Cluster(meta=Meta(name="cluster"), spec=ClusterSpec("c1"))), Put(default_namespace())
            )
            while True:
                async with running_api(store, self._settings) as self.api:
                    object.__setattr__(self.api.parts, "egress", Egress(["*", *LOOPBACK]))
                    object.__setattr__(self.api.parts, "files", SecretFiles("/etc/mandor"))
                    self._ready.set()
                    await self._over.wait()
                if self._away_seconds is None:
                    return
                await asyncio.sleep(self._away_seconds)
                self._away_seconds = None
                self._over.clear()

    def restart(self, *, away_seconds: float) -> None:
        """End the server, and start it again after a while, at the same store but another address."""
        self._away_seconds = away_seconds
        assert self._over is not None
        self._ready.clear()
        self._loop.call_soon_threadsafe(self._over.set)

    def wait_ready(self) -> None:
        assert self._ready.wait(PATIENCE), "the API did not start"

    def stop(self) -> None:
        assert self._over is not None
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the API did not end"

    @property
    def url(self) -> str:
        return self.api.url

    def do(self, work: Callable[[Api], Coroutine[Any, Any, T]]) -> T:
        """Run something in the API's own loop."""
        return asyncio.run_coroutine_threadsafe(work(self.api), self._loop).result(PATIENCE)

    def put(self, *values: Object) -> None:
        """Write what a controller or an agent would; over a stored object it is replaced."""

        async def write(store: Store) -> None:
            for value in values:
                old = await store.get(value.key)
                if old is not None:
                    value = value.stamped(version=old.meta.version, uid=old.meta.uid, created_at=old.meta.created_at)
                await store.commit(Put(value))

        self.do(lambda api: write(api.store))

    def get(self, kind: str, name: str, namespace: str = "default") -> Any:
        return self.do(lambda api: api.store.get(Key(kind, namespace, name)))


@dataclass
class Told:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Mandor = Callable[..., Told]


@pytest.fixture(autouse=True)
def nothing_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No server, token or dev cluster of whoever runs the tests."""
    for name in ("MANDOR_SERVER", "MANDOR_TOKEN", "MANDOR_CA", "MANDOR_NAMESPACE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def mandor(capsysbinary: pytest.CaptureFixture[bytes]) -> Mandor:
    """`mandor("get", "nodes")`: the command in this process, with its exit status and what it wrote."""

    def call(*words: str) -> Told:
        capsysbinary.readouterr()
        code = run(list(words))
        told = capsysbinary.readouterr()
        return Told(code, told.out.decode(), told.err.decode())

    return call


@pytest.fixture(scope="module")
def _api() -> Iterator[LiveApi]:
    api = LiveApi(tokens_required=False)
    yield api
    api.stop()


@pytest.fixture
def api(_api: LiveApi, monkeypatch: pytest.MonkeyPatch) -> LiveApi:
    """A cluster that asks for no token; the command line finds it by itself. Emptied before each test."""

    async def clear(api: Api) -> None:
        from mandor.store.base import Delete

        for item in (await api.store.list(None)).items:
            if item.kind != "cluster" and item.key != default_namespace().key:
                await api.store.commit(Delete(item.key, item.meta.version))

    _api.do(clear)
    monkeypatch.setenv("MANDOR_SERVER", _api.url)
    return _api


@pytest.fixture
def guarded_api() -> Iterator[LiveApi]:
    """A cluster that asks for tokens."""
    api = LiveApi(tokens_required=True)
    yield api
    api.stop()
