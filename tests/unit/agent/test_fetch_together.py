"""Objects that several orders need are read together."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from mandor.agent.feed import Source
from mandor.agent.fetch import Fetch
from mandor.errors import NotFound, Unavailable
from mandor.lib.clock import SystemClock
from mandor.model.instance import Instance
from mandor.model.meta import Key, Meta, Object
from mandor.model.record import Namespace, NamespaceSpec
from mandor.model.workload import Release, ReleaseSpec
from mandor.store.base import Change, Delete, Put
from mandor.store.memory import MemoryStore
from mandor.testing.store import make_instance, make_workload


class Asked(MemoryStore):
    """A store that records its reads."""

    def __init__(self) -> None:
        super().__init__()
        self.questions: list[set[Key]] = []
        self.recent_silence = False
        self.answers = asyncio.Event()
        self.answers.set()

    async def get_all(self, keys: Sequence[Key]) -> Sequence[Object | None]:
        self.questions.append(set(keys))
        await self.answers.wait()
        if self.recent_silence:
            raise Unavailable("nobody answers")
        return await super().get_all(keys)


async def filled(*names: str) -> tuple[Asked, list[Instance]]:
    store, found = Asked(), []
    for name in names:
        workload = make_workload(name)
        groups = dict(workload.spec.template)
        spec = ReleaseSpec(workload=name, sequence=1, hash="h", groups=groups)
        await store.commit(Put(workload), Put(Release(meta=Meta(name=f"{name}.1", namespace="default"), spec=spec)))
        made = make_instance(f"{name}-0", node="n1")
        found.append(made.changed(spec=msgspec.structs.replace(made.spec, release=f"{name}.1")))
    return store, found


async def test_objects_for_several_orders_are_read_in_one_call() -> None:
    store, (web, db) = await filled("web", "db")
    fetch = Fetch(store, SystemClock())
    found = await asyncio.gather(*(fetch.template_and_supervision(each) for each in (web, db, web)))
    assert all(supervision is not None for _, supervision in found)
    names = {("release", "web.1"), ("release", "db.1"), ("workload", "web"), ("workload", "db")}
    names.add(("namespace", "default"))
    assert [{(key.kind, key.name) for key in each} for each in store.questions] == [names]
    await fetch.close()


async def test_a_missing_release_fails_only_its_own_order() -> None:
    store, (web, db) = await filled("web", "db")
    lost = await store.get(Key("release", "default", "db.1"))
    assert lost is not None
    await store.commit(Delete(lost.key, lost.meta.version))
    fetch = Fetch(store, SystemClock())
    good, bad = await asyncio.gather(
        *(fetch.template_and_supervision(each) for each in (web, db)), return_exceptions=True
    )
    assert not isinstance(good, BaseException)
    assert isinstance(bad, NotFound)
    await fetch.close()


async def test_a_failed_read_fails_all_callers_and_can_be_repeated() -> None:
    store, (web, db) = await filled("web", "db")
    fetch = Fetch(store, SystemClock())
    store.recent_silence = True
    failed = await asyncio.gather(*(fetch.template_and_supervision(each) for each in (web, db)), return_exceptions=True)
    assert [type(each) for each in failed] == [Unavailable, Unavailable]
    store.recent_silence = False
    assert (await fetch.template_and_supervision(web))[0].tasks
    await fetch.close()


async def test_closing_cancels_pending_reads() -> None:
    store, (web,) = await filled("web")
    fetch = Fetch(store, SystemClock())
    store.answers.clear()
    waiting = asyncio.ensure_future(fetch.template_and_supervision(web))
    async with asyncio.timeout(20):
        while not store.questions:
            await asyncio.sleep(0)
        await fetch.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_objects_that_come_with_an_order_are_not_read_again() -> None:
    store, (web,) = await filled("web")
    await store.commit(Put(web))
    order = await store.get(web.key)
    assert isinstance(order, Instance)
    fetch, source = Fetch(store, SystemClock()), Source("c1", 1, order.meta.version)
    along_keys = (("release", "default", "web.1"), ("workload", "default", "web"))
    shop = Namespace(meta=Meta(name="default"), spec=NamespaceSpec(level="baseline"))
    for along in (*[await store.get(Key(*key)) for key in along_keys], shop):
        fetch.changed(Change(order.meta.version, None, along), source)
    template, supervision = await fetch.template_and_supervision(order)
    namespace_view = await fetch.namespace_view(order)
    assert namespace_view is not None
    assert namespace_view.rules.level == "baseline"
    assert template.tasks
    assert supervision is not None
    assert store.questions == []
    # A release that came with an earlier order may be another by now.
    await store.commit(Put(order))
    later = await store.get(web.key)
    assert isinstance(later, Instance)
    await fetch.template(later)
    assert [{key.kind for key in each} for each in store.questions] == [{"release"}]
    await fetch.close()
