"""At most one leader writes; time is judged on the observer's own clock."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from mandor.errors import Conflict, Unavailable
from mandor.lib.clock import ManualClock, settle
from mandor.model.meta import Key
from mandor.model.record import Lease
from mandor.store.base import Check, Put, Store, Write
from mandor.store.election import Election
from mandor.store.fence import FencedStore
from mandor.store.memory import MemoryStore
from mandor.testing.store import make_node

SECONDS = 10.0
LEASE = Key("lease", "", "leader-scheduler")


class Candidate:
    """One candidate and a log of what it did."""

    def __init__(self, store: Store, name: str, clock: ManualClock) -> None:
        self.election = Election(store, "scheduler", name, SECONDS, clock, address=f"http://{name}")
        self.terms: list[Store] = []
        self.ended = 0
        self.task = asyncio.create_task(self.election.run(self._work))

    async def _work(self, store: Store) -> None:
        self.terms.append(store)
        try:
            await asyncio.Event().wait()
        finally:
            self.ended += 1

    async def stop(self) -> None:
        self.task.cancel()
        await asyncio.wait({self.task})


class UnreachableStore(MemoryStore):
    """Some callers are cut off from it."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(clock=clock)
        self.cut_off = False

    async def commit(self, *writes: Write) -> int:
        if self.cut_off:
            raise Unavailable("cut off")
        return await super().commit(*writes)


async def holder(store: Store) -> str:
    lease = await store.get(LEASE)
    assert isinstance(lease, Lease)
    return lease.spec.holder


async def test_the_first_leads_and_the_second_waits() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    one = Candidate(store, "one", clock)
    await settle()
    two = Candidate(store, "two", clock)
    await clock.advance(SECONDS * 10)
    assert (len(one.terms), len(two.terms)) == (1, 0)
    assert one.election.leading
    assert not two.election.leading
    assert await holder(store) == "one"
    lease = await store.get(LEASE)
    assert isinstance(lease, Lease)
    assert lease.spec.address == "http://one"
    await one.stop()
    await two.stop()


@pytest.mark.req("S0-18")
async def test_a_leader_that_dies_is_replaced_only_after_its_lease_has_run_out() -> None:
    clock = ManualClock()
    dead, store = ManualClock(), MemoryStore(clock=clock)
    one = Candidate(store, "one", dead)  # its own clock stands still: it renews nothing
    await settle()
    two = Candidate(store, "two", clock)
    await clock.advance(SECONDS * 0.9)
    assert two.terms == []
    await clock.advance(SECONDS * 0.4)
    assert len(two.terms) == 1
    assert await holder(store) == "two"
    await one.stop()
    await two.stop()


async def test_an_observer_counts_from_when_it_saw_the_lease_change() -> None:
    clock = ManualClock()
    dead, store = ManualClock(), MemoryStore(clock=clock)
    one = Candidate(store, "one", dead)
    await settle()
    await clock.advance(SECONDS * 100)  # nobody watched: this says nothing about the holder
    two = Candidate(store, "two", clock)
    await clock.advance(SECONDS * 0.9)
    assert two.terms == []
    await clock.advance(SECONDS * 0.4)
    assert len(two.terms) == 1
    await one.stop()
    await two.stop()


async def test_a_jump_of_the_wall_clock_ends_no_leadership() -> None:
    class Jumping(ManualClock):
        jump = 0.0

        def now(self) -> float:
            return super().now() + self.jump

    clock, store = Jumping(), MemoryStore()
    one = Candidate(store, "one", clock)
    await settle()
    two = Candidate(store, "two", clock)
    for jump in (1e9, -1e9, 0.0):
        clock.jump = jump
        await clock.advance(SECONDS * 3)
    assert (len(one.terms), len(two.terms)) == (1, 0)
    await one.stop()
    await two.stop()


async def test_a_paused_leader_cannot_write_after_another_took_over() -> None:
    clock = ManualClock()
    paused, store = ManualClock(), MemoryStore(clock=clock)
    one = Candidate(store, "one", paused)
    await settle()
    stale = one.terms[0]
    await stale.commit(Put(make_node("n1")))
    two = Candidate(store, "two", clock)
    await clock.advance(SECONDS * 1.5)
    assert len(two.terms) == 1

    # It comes back and still believes that it leads: nothing has told it otherwise.
    assert one.election.leading
    with pytest.raises(Conflict):
        await stale.commit(Put(make_node("n2")))
    assert await store.get(Key("node", "", "n2")) is None
    await two.terms[0].commit(Put(make_node("n2")))

    # The failed commit told it.
    await settle()
    assert not one.election.leading
    assert one.ended == 1
    assert two.election.leading
    await one.stop()
    await two.stop()


async def test_a_paused_leader_that_writes_nothing_learns_it_from_its_next_renewal() -> None:
    clock = ManualClock()
    paused, store = ManualClock(), MemoryStore(clock=clock)
    one = Candidate(store, "one", paused)
    await settle()
    two = Candidate(store, "two", clock)
    await clock.advance(SECONDS * 1.5)
    assert len(two.terms) == 1
    await paused.advance(SECONDS / 4)
    assert one.ended == 1
    assert await holder(store) == "two"
    # And it stands for election again.
    await two.stop()
    await paused.advance(SECONDS * 2)
    assert len(one.terms) == 2
    await one.stop()


async def test_a_leader_cut_off_from_the_store_stops_before_the_others_may_begin() -> None:
    clock = ManualClock()
    store = UnreachableStore(clock)
    one = Candidate(store, "one", clock)
    await settle()
    store.cut_off = True
    await clock.advance(SECONDS * 0.7)
    assert one.ended == 0
    await clock.advance(SECONDS * 0.29)
    assert one.ended == 1
    store.cut_off = False
    await clock.advance(SECONDS * 2)
    assert len(one.terms) == 2
    await one.stop()


async def test_a_leader_that_ends_gives_the_lease_back() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    one = Candidate(store, "one", clock)
    await settle()
    await one.stop()
    assert await holder(store) == ""
    two = Candidate(store, "two", clock)
    await settle()
    assert len(two.terms) == 1
    await two.stop()


async def test_of_many_candidates_one_leads_at_a_time() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    candidates = [Candidate(store, f"c{number}", clock) for number in range(8)]
    for _ in range(8):
        await clock.advance(SECONDS * 1.5)
        leading = [each for each in candidates if each.election.leading]
        assert len(leading) == 1
        await leading[0].stop()
        candidates.remove(leading[0])
    assert candidates == []


async def run_once(work: Callable[[Store], Awaitable[None]]) -> MemoryStore:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    await Election(store, "scheduler", "one", SECONDS, clock).run(work)
    return store


async def test_work_that_is_done_ends_the_run_and_frees_the_lease() -> None:
    async def work(store: Store) -> None:
        await store.commit(Put(make_node("n1")))

    store = await run_once(work)
    assert await store.get(Key("node", "", "n1")) is not None
    assert await holder(store) == ""


async def test_an_error_of_the_work_reaches_the_caller() -> None:
    async def work(store: Store) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_once(work)


async def test_an_ordinary_conflict_ends_no_leadership() -> None:
    async def work(store: Store) -> None:
        await store.commit(Put(make_node("n1")))
        with pytest.raises(Conflict):
            await store.commit(Put(make_node("n1")))
        await store.commit(Put(make_node("n2")))

    store = await run_once(work)
    assert await store.get(Key("node", "", "n2")) is not None


async def test_a_fenced_store_reads_what_the_store_has() -> None:
    store = MemoryStore()
    version = await store.commit(Put(make_node("fence")))
    fenced = FencedStore(store, Check(Key("node", "", "fence"), version))
    await fenced.commit(*[Put(make_node(f"n{number}")) for number in range(100)])
    assert await fenced.get(Key("node", "", "n7")) == await store.get(Key("node", "", "n7"))
    assert (await fenced.list("node")).items == (await store.list("node")).items
    async for batch in fenced.watch("node", since=version):
        assert sum(not change.bookmark for change in batch) == 100
        break
