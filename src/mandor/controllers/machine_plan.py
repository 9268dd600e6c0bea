"""Plan for the machines of a pool: which have joined or failed, which are removed, and how many are ordered."""

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from msgspec.structs import replace

from mandor.controllers.draft import Draft
from mandor.controllers.growth_plan import Order
from mandor.lib.delay import Delay
from mandor.lib.quantity import Seconds
from mandor.model.machine import Machine, MachinePhase, NodeAutoscale, OrderFailures, PoolScaling
from mandor.model.meta import Key
from mandor.model.node import Drain, Node, NodePhase
from mandor.model.pool import NodePool
from mandor.model.record import Token
from mandor.store.base import Delete, Write

AFTER_FAILURE = Delay(first_seconds=60.0, most_seconds=1800.0)
SHOWN_MOST = 3  # instances named in a message


@dataclass(frozen=True, slots=True)
class MachineInputs:
    """Current facts about the machines of a pool."""

    nodes: Mapping[str, Node]
    """Nodes by name."""
    needed: Callable[[Node], str]
    """Returns why a node is needed; empty: it is not."""
    load: Callable[[Node], int]
    """Returns how many instances would have to move."""
    failed: Mapping[str, str]
    """Reasons of machines that could not be created or are broken, by id."""
    gone: Set[str]
    """Machines that the provisioner has deleted."""
    unmade: Set[str]
    """Machines that the provisioner was asked for and certainly did not create."""
    undeleted: Mapping[str, str]
    """Errors of machines that could not be deleted, by id."""
    records_unmade: bool
    """Whether all servers know `Machine.unmade`."""
    credentials: Callable[[str], Token | None]
    """Returns the credential of a node that has joined."""
    work_is_pending: bool
    """Whether instances wait for room; then no machine is removed."""


def plan_machines(
    pool: NodePool, seen: MachineInputs, orders: Sequence[Order], now: float, new_id: Callable[[], str]
) -> Draft:
    """Return the pool's next status, drains and events; the caller carries out orders and deletions."""
    draft = Draft()
    scaling = pool.spec.autoscale
    plan = _Pool(draft, pool, scaling, seen, now)
    plan.follow()
    if scaling is not None:
        plan.shrink()
        plan.grow(orders, new_id)
    after = plan.status()
    if after != pool.status.scaling:
        draft.put(pool.changed(status=replace(pool.status, scaling=after)))
    return draft


@dataclass(slots=True)
class _Pool:
    draft: Draft
    pool: NodePool
    scaling: NodeAutoscale | None
    seen: MachineInputs
    now: float
    machines: list[Machine] = field(default_factory=list)
    trouble: dict[str, OrderFailures] = field(default_factory=dict)
    message: str = ""

    def status(self) -> PoolScaling | None:
        if not self.machines and not self.trouble and self.scaling is None:
            return None
        return PoolScaling(machines=tuple(self.machines), trouble=self.trouble, message=self.message)

    def count(self, *phases: str) -> int:
        return sum(each.phase in phases for each in self.machines)

    # Ordered machines.

    def follow(self) -> None:
        before = self.pool.status.scaling
        if before is None:
            return
        kinds = self.scaling.kinds if self.scaling is not None else {}
        self.trouble = {kind: each for kind, each in before.trouble.items() if kind in kinds}
        for machine in before.machines:
            after = self._next(machine) if self.scaling is not None or not machine.unmade else None
            if after is not None:
                self.machines.append(after)

    def _next(self, machine: Machine) -> Machine | None:
        node = self.seen.nodes.get(machine.id)
        if machine.phase == "Ordered":
            return self._ordered(machine, node)
        if machine.phase == "Leaving":
            return self._leaving(machine, node)
        if node is None:
            return self._turn(machine, "Leaving", "the node was deleted")
        if machine.id in self.seen.failed:
            return self._turn(machine, "Leaving", self.seen.failed[machine.id])
        lost = node.status.phase is NodePhase.DOWN and self.now - node.status.since >= self._join_within
        if lost:
            return self._turn(machine, "Leaving", f"the node is down: {node.status.reason}")
        return self._joined(machine, node) if machine.phase == "Joined" else self._draining(machine, node)

    @property
    def _join_within(self) -> float:
        return float(self.scaling.join_within) if self.scaling is not None else 600.0

    def _ordered(self, machine: Machine, node: Node | None) -> Machine | None:
        if node is not None and node.status.phase is NodePhase.READY:
            self.trouble.pop(machine.kind, None)
            took = Seconds(round(self.now - machine.at))
            self.draft.note(self.pool, "MachineJoined", f"{machine.id} ({machine.kind}) joined after {took}")
            return replace(machine, phase="Joined", at=self.now)
        if machine.id in self.seen.failed:
            return self._failed(machine, self.seen.failed[machine.id])
        if self.now - machine.at >= self._join_within:
            return self._failed(machine, f"the node did not join within {Seconds(self._join_within)}")
        return machine

    def _failed(self, machine: Machine, why: str) -> Machine | None:
        """Return the machine as one to delete; None if it was never made."""
        failures = self.trouble[machine.kind].failures + 1 if machine.kind in self.trouble else 1
        pause = AFTER_FAILURE.after(failures)
        self.trouble[machine.kind] = OrderFailures(failures=failures, until=self.now + pause, message=why[:500])
        again = f"no {machine.kind} is ordered for {Seconds(pause)}"
        self.draft.note(self.pool, "MachineFailed", f"{machine.id} ({machine.kind}): {why}; {again}", warning=True)
        if machine.unmade or machine.id in self.seen.unmade:
            return None
        return self._turn(machine, "Leaving", why[:500])

    def _leaving(self, machine: Machine, node: Node | None) -> Machine | None:
        if machine.id not in self.seen.gone:
            return machine
        writes: list[Write] = [Delete(node.key, node.meta.version)] if node is not None else []
        token = self.seen.credentials(machine.id)
        writes += [Delete(token.key, token.meta.version)] if token is not None else []
        self.draft.writes += writes
        self.draft.note(self.pool, "MachineGone", f"{machine.id} ({machine.kind}) was deleted: {machine.why}")
        return None

    def _joined(self, machine: Machine, node: Node) -> Machine:
        idle = not self.seen.needed(node) and node.drain is None and not self.seen.work_is_pending
        if idle == bool(machine.idle_since):
            return machine
        return replace(machine, idle_since=self.now if idle else 0.0)

    def _draining(self, machine: Machine, node: Node) -> Machine:
        progress = node.status.drain
        if node.spec.drain is None:
            return self._turn(machine, "Joined", "the drain was cancelled by a user")
        if progress is not None and progress.phase == "Drained":
            return self._turn(machine, "Leaving", machine.why)
        late = self.scaling is not None and self.now - machine.at >= self.scaling.drain_within
        if self.seen.work_is_pending or late or self.scaling is None:
            why = "instances wait for room" if self.seen.work_is_pending else "the drain takes too long"
            self.draft.put(node.changed(spec=replace(node.spec, drain=None)))
            self.draft.note(self.pool, "MachineKept", f"{machine.id} is kept: {why}")
            return self._turn(machine, "Joined", "")
        return machine

    def _turn(self, machine: Machine, phase: MachinePhase, why: str) -> Machine:
        return replace(machine, phase=phase, at=self.now, why=why, idle_since=0.0)

    # Removing machines.

    def shrink(self) -> None:
        assert self.scaling is not None
        there = self.count("Ordered", "Joined")
        spare = self.scaling.at_once - self.count("Draining", "Leaving")
        for machine in self._candidates():
            over = there > self.scaling.max
            if spare <= 0 or (not over and (there <= self.scaling.min or self.seen.work_is_pending)):
                return
            idle = machine.idle_since and self.now - machine.idle_since >= self.scaling.idle_after
            node = self.seen.nodes[machine.id]
            if not over and not idle:
                continue
            why = f"the pool exceeds its maximum of {self.scaling.max} machines" if over else self._idle(machine)
            self.draft.put(node.changed(spec=replace(node.spec, drain=Drain(since=self.now))))
            self.draft.note(self.pool, "MachineIdle", f"draining {machine.id} ({machine.kind}): {why}")
            self.machines[self.machines.index(machine)] = self._turn(machine, "Draining", why)
            there, spare = there - 1, spare - 1
            if self.seen.load(node):
                return  # room for its instances must not be counted twice

    def _idle(self, machine: Machine) -> str:
        return f"not needed for {Seconds(round(self.now - machine.idle_since))}"

    def _candidates(self) -> list[Machine]:
        joined = [each for each in self.machines if each.phase == "Joined"]
        return sorted(joined, key=lambda each: (self.seen.load(self.seen.nodes[each.id]), each.idle_since or self.now))

    # Ordering machines.

    def grow(self, orders: Sequence[Order], new_id: Callable[[], str]) -> None:
        assert self.scaling is not None
        for order in orders[: self.room]:
            self._order(order.kind, _helped(order), new_id)
        missing = self.scaling.min - self.count("Ordered", "Joined")
        kind = next((name for name in self.scaling.kinds if not self.resting(name)), None)
        for _ in range(min(missing, self.room) if kind is not None else 0):
            assert kind is not None
            self._order(kind, f"the pool needs at least {self.scaling.min} machines", new_id)
        self.message = self._status_message()

    @property
    def room(self) -> int:
        assert self.scaling is not None
        flying = self.scaling.at_once - self.count("Ordered")
        return max(0, min(self.scaling.max - len(self.machines), flying))

    def resting(self, kind: str) -> bool:
        return kind in self.trouble and self.now < self.trouble[kind].until

    def _order(self, kind: str, why: str, new_id: Callable[[], str]) -> None:
        name = f"{self.pool.meta.name}-{new_id()}"
        machine = Machine(id=name, kind=kind, at=self.now, why=why, unmade=self.seen.records_unmade)
        self.machines.append(machine)
        self.draft.note(self.pool, "MachineOrdered", f"ordered {machine.id} ({kind}): {why}")

    def _status_message(self) -> str:
        assert self.scaling is not None
        resting = [f"{kind} failed: {each.message}" for kind, each in self.trouble.items() if self.resting(kind)]
        left = [
            f"{each.id} cannot be deleted: {self.seen.undeleted[each.id]}"
            for each in self.machines
            if each.phase == "Leaving" and each.id in self.seen.undeleted
        ]
        full = self.seen.work_is_pending and len(self.machines) >= self.scaling.max
        return "; ".join(
            filter(None, [f"the pool has its maximum of {self.scaling.max} machines" if full else "", *resting, *left])
        )[:500]


def _helped(order: Order) -> str:
    names = [f"{key.namespace}/{key.name}" for key in order.helps[:SHOWN_MOST]]
    more = len(order.helps) - len(names)
    return f"{', '.join(names)}{f' and {more} more' if more > 0 else ''} could not be placed"


def credential_key(node: str) -> Key:
    return Key(Token.kind, "", f"node.{node}")
