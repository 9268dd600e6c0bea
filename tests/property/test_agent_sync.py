"""Invariants of `sync` over random histories of an instance."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mandor.agent.order import Memory, Order
from mandor.agent.restart import CRASH_LOOP
from mandor.agent.status import path
from mandor.agent.sync import Decision, Remove, Start, Stop, sync
from mandor.agent.sync_inputs import ProbeResult, SyncInputs
from mandor.engines.base import Observed, Unit, UnitPhase
from mandor.lib.quantity import Seconds
from mandor.model.codec import decode_as, encode
from mandor.model.instance import InstanceStatus, StopOrder
from mandor.model.lifecycle import Restart
from mandor.model.phase import Phase
from tests.unit.agent.make import NOW, RESERVED, make_order

ATTEMPTS = 3
ROLES = st.sampled_from(["main", "init", "sidecar"])
EVENTS = st.one_of(
    st.tuples(st.just("exit"), st.integers(0, 3), st.sampled_from([0, 1, 137])),
    st.tuples(st.just("vanish"), st.integers(0, 3)),
    st.tuples(st.just("lose"), st.integers(0, 3)),
    st.tuples(st.just("ill"), st.integers(0, 3)),
    st.tuples(st.just("pass"), st.sampled_from([0.0, 1.0, 10.0, 100.0])),
    st.tuples(st.just("jump"), st.sampled_from([-1000.0, 1000.0])),
    st.tuples(st.just("reborn")),
    st.tuples(st.just("down")),
    st.tuples(st.just("again")),
)


@dataclass
class Machine:
    """An engine, the agent's memory on disk, and time."""

    order: Order
    now: float = NOW
    memory: Memory = field(default_factory=lambda: Memory(engine="fake"))
    units: dict[Unit, Observed] = field(default_factory=dict)
    known: set[Unit] = field(default_factory=set)
    ill: set[Unit] = field(default_factory=set)
    status: InstanceStatus = RESERVED
    starts: list[Unit] = field(default_factory=list)
    gone: bool = False
    forgotten: bool = False

    @property
    def live(self) -> list[Unit]:
        return [unit for unit, each in self.units.items() if each.phase is not UnitPhase.EXITED]

    def look(self) -> SyncInputs:
        probe_results = {unit: ProbeResult(alive=False) for unit in self.ill}
        return SyncInputs(
            units=tuple(self.units.values()),
            known=frozenset(self.known),
            probe_results=probe_results,
            status=self.status,
            gone=self.gone,
        )

    def step(self) -> Decision:
        inputs = self.look()
        decision = sync(self.order, self.memory, inputs, self.now)
        self.known |= set(self.units)
        # What is written down comes back the same.
        self.memory = decode_as(encode(decision.memory), Memory)
        assert self.memory == decision.memory
        if decision.status is not None:
            self.report(decision.status)
        for action in decision.actions:
            self.act(action)
        self.forgotten = decision.forget
        self.check()
        return decision

    def report(self, status: InstanceStatus) -> None:
        if status.phase is not self.status.phase:
            assert path(self.status.phase, status.phase), f"{self.status.phase} to {status.phase}"
        if self.status.phase.over:
            assert status == self.status, "what is over does not change"
        self.status = status

    def act(self, action: object) -> None:
        if isinstance(action, Start):
            # A unit that was lost before a new agent saw it may begin again under its token: none of it is left.
            assert action.unit not in self.units, "one token is started once"
            assert not self.gone
            assert self.order.instance.spec.stop is None
            self.starts.append(action.unit)
            self.known.add(action.unit)
            self.units[action.unit] = Observed(unit=action.unit, phase=UnitPhase.RUNNING, started_at=self.now)
        elif isinstance(action, Stop):
            self.end(action.unit, 143, "Signalled")
        elif isinstance(action, Remove):
            assert self.units[action.unit].phase is UnitPhase.EXITED, "only what has ended is removed"
            del self.units[action.unit]

    def end(self, unit: Unit, code: int | None, reason: str) -> None:
        observed = self.units[unit]
        if observed.phase is not UnitPhase.EXITED:
            self.units[unit] = replace(
                observed, phase=UnitPhase.EXITED, exit_code=code, reason=reason, finished_at=self.now
            )

    def check(self) -> None:
        tasks = [unit.task for unit in self.live]
        assert len(tasks) == len(set(tasks)), "never two live units of one task"
        for name in {unit.task for unit in self.starts}:
            mine = list(dict.fromkeys(unit.attempt for unit in self.starts if unit.task == name))
            assert mine == sorted(mine), "attempts only grow"
            # Nothing here runs for as long as the interval, so every restart counts.
            assert len(mine) <= ATTEMPTS + 1

    def happen(self, event: tuple[Any, ...]) -> None:
        kind, *rest = event
        target = self.live[rest[0] % len(self.live)] if rest and isinstance(rest[0], int) and self.live else None
        if kind == "exit" and target is not None:
            self.end(target, rest[1], "OOMKilled" if rest[1] == 137 else "Error" if rest[1] else "Completed")
        elif kind == "vanish" and target is not None:
            self.end(target, None, "Vanished")
        elif kind == "lose" and target is not None:
            del self.units[target]
        elif kind == "ill" and target is not None:
            self.ill.add(target)
        elif kind in {"pass", "jump"}:
            self.now += rest[0]
        elif kind == "reborn":
            # A new agent knows what its first look shows, and its journal.
            self.known = set(self.units)
        elif kind == "down":
            nothing = sync(self.order, self.memory, replace(self.look(), units=None), self.now)
            assert nothing == Decision(self.memory)
        elif kind == "again":
            self.step()

    def rest(self) -> Decision:
        """Until there is nothing left to do."""
        for _ in range(200):
            decision = self.step()
            if not decision.actions:
                if decision.wake_at is None:
                    return decision
                self.now = max(self.now, decision.wake_at)
        raise AssertionError("it never comes to rest")


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    roles = ["main", *draw(st.lists(ROLES, max_size=3))]
    tasks = {f"t{number}": {"role": role, "command": ["run"]} for number, role in enumerate(roles)}
    restart = Restart(attempts=ATTEMPTS, interval=Seconds(1e9))
    policy: Any = draw(st.sampled_from(["always", "on-failure", "never"]))
    return Machine(make_order(tasks, policy=policy, restart=restart))


@given(machines(), st.lists(EVENTS, max_size=30))
@settings(max_examples=300, deadline=None)
def test_sync_keeps_its_invariants_and_converges(machine: Machine, events: list[tuple[Any, ...]]) -> None:
    for event in events:
        machine.step()
        machine.happen(event)
    machine.ill.clear()
    last = machine.rest()
    # Init tasks do not end by themselves here: whoever waits for one waits.
    lasting = [name for name, task in machine.order.template.tasks.items() if task.role != "init"]  # type: ignore[union-attr]
    if machine.status.phase is Phase.RUNNING:
        done = {name for name in lasting if machine.memory.task(name).completed}
        assert {unit.task for unit in machine.live} | done >= set(lasting)
    else:
        assert machine.status.phase.over or machine.live
    if machine.status.reason == CRASH_LOOP:
        assert max(unit.attempt for unit in machine.starts) == ATTEMPTS + 1
    assert last.actions == ()


@given(machines(), st.lists(EVENTS, max_size=15), st.lists(EVENTS, max_size=10), st.sampled_from([None, 0.0, 5.0]))
@settings(max_examples=200, deadline=None)
def test_a_stop_order_always_ends_the_instance_and_nothing_starts_after_it(
    machine: Machine, before: list[tuple[Any, ...]], during: list[tuple[Any, ...]], grace: float | None
) -> None:
    for event in before:
        machine.step()
        machine.happen(event)
    stop = StopOrder(reason="scaled down", grace_seconds=grace)
    spec = msgspec.structs.replace(machine.order.instance.spec, stop=stop)
    machine.order = msgspec.structs.replace(machine.order, instance=machine.order.instance.changed(spec=spec))
    started = len(machine.starts)
    for event in during:
        machine.happen(event)
        machine.step()
    machine.rest()
    assert machine.status.phase.over
    assert machine.live == []
    assert len(machine.starts) == started


@given(machines(), st.lists(EVENTS, max_size=15))
@settings(max_examples=100, deadline=None)
def test_a_withdrawn_order_leaves_nothing_behind(machine: Machine, events: list[tuple[Any, ...]]) -> None:
    for event in events:
        machine.step()
        machine.happen(event)
    machine.gone = True
    machine.rest()
    assert machine.forgotten
    assert machine.units == {}


@given(machines(), st.lists(EVENTS, max_size=15))
@settings(max_examples=100, deadline=None)
def test_the_same_order_again_changes_nothing(machine: Machine, events: list[tuple[Any, ...]]) -> None:
    for event in events:
        machine.step()
        machine.happen(event)
    machine.rest()
    before = (machine.memory, machine.status, list(machine.starts), dict(machine.units))
    for _ in range(3):
        assert machine.step().actions == ()
    assert (machine.memory, machine.status, machine.starts, machine.units) == before
