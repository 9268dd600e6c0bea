"""The node controller: evaluates heartbeats, and marks nodes Suspect or Down and their instances Lost."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set

from mandor.controllers.base import Controller, Grouped
from mandor.controllers.heartbeats import HeartbeatReceiver
from mandor.controllers.node_plan import (
    LossPermits,
    NodeState,
    NodeTimes,
    lost,
    lost_after,
    mass_silence_reason,
    next_state,
    permit,
)
from mandor.controllers.writer import Writer
from mandor.lib.clock import Clock
from mandor.lib.quantity import Seconds
from mandor.lib.steps import Steps, pieces
from mandor.lib.turns import in_turns
from mandor.model.group import Group
from mandor.model.instance import Instance
from mandor.model.meta import Key, Object
from mandor.model.node import Node, NodePhase
from mandor.model.record import HeartbeatSummary, Lease
from mandor.model.workload import Workload
from mandor.store.base import Change, Put, Store, Write
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

NODES = "nodes"
"""The only key: all nodes are evaluated together."""
SEEN = 300
"""Cost of a node without heartbeats and the instances on it, in steps of `lib.steps`."""


class NodeTable:
    """All nodes, and those that need attention: nearly all of them send heartbeats and are Ready."""

    def __init__(self) -> None:
        self.all_names: set[str] = set()
        self._nodes: list[Node] = []
        self._places: dict[str, int] = {}
        self._unready: set[str] = set()
        self._by_pool: Counter[str] = Counter()
        self._audible: Set[str] | None = None
        self.heard: Mapping[str, int] = {}
        """Number of nodes with heartbeats, by pool."""
        self.to_evaluate: Sequence[Node] = ()
        """Nodes without heartbeats, or not Ready."""

    @property
    def names(self) -> Collection[str]:
        return self._places

    def read(self, nodes: Iterable[Object]) -> Steps[None]:
        ready = NodePhase.READY
        for piece in pieces(list(nodes)):
            for each in piece:
                if not isinstance(each, Node):
                    continue
                name, status = each.meta.name, each.status
                self.all_names.add(name)
                if status.inventory:  # it has no agent that could send heartbeats
                    continue
                self._places[name] = len(self._nodes)
                self._nodes.append(each)
                self._by_pool[each.spec.pool] += 1
                if status.phase is not ready:
                    self._unready.add(name)
            yield 5 * len(piece)

    def set_heard(self, audible: Set[str]) -> None:
        if audible is self._audible:
            return
        self._audible = audible
        silent = self._places.keys() - audible
        self.heard = self._by_pool - Counter(self._nodes[self._places[name]].spec.pool for name in silent)
        self.to_evaluate = [
            self._nodes[place] for place in sorted(self._places[name] for name in silent | self._unready)
        ]


class NodeController(Controller[str]):
    name = "node"
    watches = (Node.kind, Instance.kind, Workload.kind, Lease.kind, HeartbeatSummary.kind)
    workers = 1

    def __init__(self, store: Store, clock: Clock, recorder: Recorder, times: NodeTimes | None = None) -> None:
        self._store = store
        self._clock = clock
        self._recorder = recorder
        self._times = times or NodeTimes()
        self._heartbeats = HeartbeatReceiver(gap_seconds=self._times.gap_seconds)
        self._by_node: Grouped[str, Instance] = Grouped(lambda each: each.node or None)
        self._permits = LossPermits()
        self._missing_since: dict[str, float] = {}
        self._table: NodeTable | None = None

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._nodes = mirrors[Node.kind]
        self._workloads = mirrors[Workload.kind]
        self._writer = Writer(self._store, mirrors)

    def first(self) -> Iterable[str]:
        return (NODES,)

    def observe_all(self, changes: Sequence[Change]) -> Iterable[str]:
        if not isinstance(changes[0].value, Instance):
            return super().observe_all(changes)
        for change in changes:
            before, after = change.before, change.after
            if change.value.spec.claim is not None:
                continue  # a claim belongs to its VM request
            if (after is not None and after.spec.node) or (before is not None and before.spec.node):
                self._by_node.update(
                    before if isinstance(before, Instance) else None, after if isinstance(after, Instance) else None
                )
        return ()

    def observe(self, change: Change) -> Iterable[str]:
        value, after = change.value, change.after
        if isinstance(value, Lease):
            self._heartbeats.observe(value, self._clock.monotonic(), gone=after is None)
        elif isinstance(value, HeartbeatSummary):
            if after is None:
                self._heartbeats.forget(value.meta.name)
            else:
                self._heartbeats.receive(value.meta.name, value.spec.nodes)
            return (NODES,)
        elif isinstance(value, Node):
            self._table = None
            return (NODES,) if change.before is None else ()
        return ()

    async def _nodes_seen(self) -> "NodeTable":
        """Return the table of all nodes; it is rebuilt after a node has changed."""
        table = self._table
        if table is None:
            table = self._table = NodeTable()
            await in_turns(table.read(self._nodes.items()))  # a change meanwhile causes another rebuild
        return table

    async def reconcile(self, key: str) -> float | None:
        table = await self._nodes_seen()
        now = self._clock.monotonic()
        self._heartbeats.evaluate(table.names, now)
        table.set_heard(self._heartbeats.heard)
        heard, seen = table.heard, await in_turns(self._seen(table.to_evaluate))
        unheard = [each for each in seen if not each.heard]
        before = self._permits
        self._permits = permit(unheard, heard, before, self._times, now)
        self._record_mass_silence(unheard, heard, self._permits.mass - before.mass)
        writes = self._evaluate(seen) + await self._without_node(table.all_names, now)
        if writes:
            await self._writer.commit_each(writes)
        return self._times.tick_seconds

    def _seen(self, nodes: Sequence[Node]) -> Steps[list[NodeState]]:
        """Return the state of each node, in steps: there may be thousands, each with many instances."""
        found = []
        for each in nodes:
            found.append(self._see(each))
            yield SEEN
        return found

    def _see(self, node: Node) -> NodeState:
        name = node.meta.name
        heard, silence = name in self._heartbeats.heard, self._heartbeats.silence(name)
        if heard or silence < self._times.suspect_seconds:
            return NodeState(node, heard, silence)
        patience = [lost_after(self._group(each), self._times) for each in self._placed_on(name)]
        wants = silence >= min(patience, default=self._times.lost_seconds)
        return NodeState(node, heard, silence, wants)

    def _evaluate(self, seen: Sequence[NodeState]) -> list[Write]:
        writes: list[Write] = []
        now, lost = self._clock.now(), 0
        for each in seen:
            name = each.node.meta.name
            permitted = name in self._permits.given
            pool = each.node.spec.pool
            mass = mass_silence_reason(pool, self._times) if pool in self._permits.mass else ""
            after = next_state(each, self._times, permitted=permitted, now=now, mass=mass)
            if after is not None:
                writes.append(Put(after))
                if after.status.phase is not each.node.status.phase:
                    self._record_phase(after)
            if permitted and each.wants and lost < self._times.losses_most:
                given_up = self._lose(name, each.silence_seconds)[: self._times.losses_most - lost]
                lost += len(given_up)
                writes += given_up
        return writes

    def _lose(self, node: str, silence: float) -> list[Write]:
        why = f"no heartbeat from node {node} for {Seconds(round(silence))}"
        return [
            Put(lost(each, why, self._clock.now()))
            for each in self._placed_on(node)
            if silence >= lost_after(self._group(each), self._times)
        ]

    async def _without_node(self, known: Set[str], now: float) -> list[Write]:
        """Return the writes that mark instances on deleted nodes as Lost."""
        missing = [name for name in self._by_node if name not in known]
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        writes: list[Write] = []
        for name, since in self._missing_since.items():
            if now - since >= self._times.suspect_seconds and await self._store.get(_node_key(name)) is None:
                why = f"node {name} no longer exists"
                writes += [Put(lost(each, why, self._clock.now())) for each in self._placed_on(name)]
        return writes

    def _placed_on(self, node: str) -> list[Instance]:
        return [each for each in self._by_node.of(node) if each.phase.placed]

    def _group(self, instance: Instance) -> Group | None:
        workload = self._workloads.get(Key(Workload.kind, instance.meta.namespace, instance.spec.workload))
        return workload.spec.groups.get(instance.spec.group) if isinstance(workload, Workload) else None

    def _record_phase(self, node: Node) -> None:
        phase = node.status.phase
        ready = phase is NodePhase.READY
        message = "node is ready: heartbeats received" if ready else f"node is {phase.value}: {node.status.reason}"
        self._recorder.note(node, f"Node{phase.value}", message, type="normal" if ready else "warning")

    def _record_mass_silence(
        self, unheard: Sequence[NodeState], heard: Mapping[str, int], pools: Iterable[str]
    ) -> None:
        for pool in pools:
            members = [each for each in unheard if each.node.spec.pool == pool]
            silent = [each.node for each in members if each.silence_seconds >= self._times.suspect_seconds]
            self._recorder.note(
                min(silent, key=lambda node: node.meta.name),
                "MassSilence",
                f"{len(silent)} of {len(members) + heard.get(pool, 0)} nodes of pool {pool} send no heartbeats: "
                f"at most one is marked Down every {Seconds(self._times.trickle_seconds)}",
                type="warning",
            )


def _node_key(name: str) -> Key:
    return Key(Node.kind, "", name)
