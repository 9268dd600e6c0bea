"""The node autoscaler: orders machines for work that waits for room, and gives back those that stand idle."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from mandor.controllers.base import Controller
from mandor.controllers.draft import Draft
from mandor.controllers.growth_plan import Growth, Offer, Order, expected_node, fits_elsewhere
from mandor.controllers.machine_plan import MachinesSeen, credential_key, plan_machines
from mandor.controllers.residents import Residents, workload_of
from mandor.controllers.restore import Profiles
from mandor.controllers.writer import Writer
from mandor.errors import MandorError
from mandor.lib.clock import Clock
from mandor.lib.ids import new_uid
from mandor.model.instance import Instance
from mandor.model.machine import Machine, NodeAutoscale
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.pool import NodePool
from mandor.model.priority import PriorityClass
from mandor.model.quota import Quota
from mandor.model.record import Cluster, Token
from mandor.model.reservation import Reservation
from mandor.model.resources import Resources
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload
from mandor.placement.board import Board
from mandor.provision.base import JoinInfo, MachineOrder, Provisioner
from mandor.store.base import Change, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

log = logging.getLogger(__name__)

LOOK = "look"
LOOK_SECONDS = 5.0
LIST_SECONDS = 30.0
"""So often provisioners are asked what there is."""
CALL_SECONDS = 120.0
"""A provisioner answers within that."""
_BOARD = (
    PriorityClass.kind,
    Quota.kind,
    Reservation.kind,
    Volume.kind,
    Node.kind,
    Release.kind,
    Workload.kind,
    Instance.kind,
)


@dataclass(frozen=True, slots=True)
class MachineSource:
    """Where machines come from, and how they join."""

    provisioner: Callable[[NodeAutoscale], Provisioner]
    """One for each setting, kept by whoever made it."""
    join: Callable[[str, float], Awaitable[JoinInfo]]
    """For a machine, good for so many seconds."""


class NodeAutoscaleController(Controller[str]):
    name = "node-autoscale"
    watches = (NodePool.kind, *_BOARD)
    workers = 1

    def __init__(
        self, store: Store, clock: Clock, recorder: Recorder, profiles: Profiles, source: MachineSource
    ) -> None:
        self._store, self._clock, self._recorder = store, clock, recorder
        self._profiles, self._source = profiles, source
        self._scaled: set[str] = set()
        """Pools that get machines, or have some."""
        self._waiting: dict[Key, float] = {}
        """Instances that were refused, and since when they wait."""
        self._created: set[str] = set()
        self._failed: dict[str, str] = {}
        self._gone: set[str] = set()
        self._listed_at: dict[str, float] = {}

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._mirrors = mirrors
        self._writer = Writer(self._store, mirrors)

    def observe_all(self, changes: Sequence[Change]) -> Iterable[str]:
        if not isinstance(changes[0].value, Instance):
            return super().observe_all(changes)
        for change in changes:
            after = change.after
            if isinstance(after, Instance) and _refused(after):
                self._waiting.setdefault(change.key, self._clock.monotonic())
            elif self._waiting:
                self._waiting.pop(change.key, None)
        return ()

    def observe(self, change: Change) -> Iterable[str]:
        value = change.value
        if not isinstance(value, NodePool):
            return ()
        before = set(self._scaled)
        if change.after is not None and (value.spec.autoscale is not None or value.machines):
            self._scaled.add(value.meta.name)
        else:
            self._scaled.discard(value.meta.name)
        return (LOOK,) if self._scaled != before else ()

    async def reconcile(self, key: str) -> float | None:
        pools = [each for each in map(self._pool, sorted(self._scaled)) if each is not None]
        if not pools:
            return None
        board = self._board() if self._worth_a_board(pools) else None
        orders = self._orders(pools, board) if board is not None else []
        residents = Residents(self._mirrors[Instance.kind].items()) if any(pool.machines for pool in pools) else None
        for pool in pools:
            await self._look_at(pool, [each for each in orders if each.pool == pool.meta.name], residents, board)
        return LOOK_SECONDS

    async def _look_at(
        self, pool: NodePool, orders: Sequence[Order], residents: Residents | None, board: Board | None
    ) -> None:
        await self._list(pool)
        credentials = {each.id: await self._credential(each.id) for each in pool.machines if each.id in self._gone}
        seen = MachinesSeen(
            nodes={each.id: node for each in pool.machines if (node := self._node(each.id)) is not None},
            needed=lambda node: self._needed(node, pool, residents, board),
            load=lambda node: len(self._movers(node, residents)),
            failed=self._failed,
            gone=self._gone,
            credentials=credentials.get,
            somebody_waits=bool(self._waiting),
        )
        draft = plan_machines(pool, seen, orders, self._clock.now(), lambda: new_uid()[-8:])
        await self._write(draft)
        found = self._pool(pool.meta.name)
        if found is not None and found.spec.autoscale is not None:
            await self._carry_out(found, found.spec.autoscale)

    async def _write(self, draft: Draft) -> None:
        if draft.writes:
            await self._writer.commit(draft.writes)
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")

    # Who waits.

    def _worth_a_board(self, pools: Sequence[NodePool]) -> bool:
        if self._waiting:
            patience = min((each.spec.autoscale.pending_for for each in pools if each.spec.autoscale), default=None)
            return patience is not None and bool(self._aged(patience))
        return any(each.phase == "Joined" for pool in pools for each in pool.machines)

    def _aged(self, seconds: float) -> set[Key]:
        now = self._clock.monotonic()
        return {key for key, since in self._waiting.items() if now - since >= seconds}

    def _board(self) -> Board:
        return Board(each for kind in _BOARD for each in self._mirrors[kind].items())

    def _orders(self, pools: Sequence[NodePool], board: Board) -> list[Order]:
        if not self._waiting:
            return []
        scaled = [(pool, pool.spec.autoscale) for pool in pools if pool.spec.autoscale is not None]
        aged = self._aged(min((scaling.pending_for for _, scaling in scaled), default=0))
        asks = sorted(
            (each for each in board.waiting() if each.ask.key in aged),
            key=lambda each: (-each.ask.priority, each.queued_at, each.ask.key),
        )
        known = list(board.nodes.values())
        offers, underway = [], []
        for pool, scaling in scaled:
            flying = sum(each.phase == "Ordered" for each in pool.machines)
            room = min(scaling.max - len(pool.machines), scaling.at_once - flying)
            for name, kind in scaling.kinds.items():
                trouble = pool.status.scaling.trouble.get(name) if pool.status.scaling is not None else None
                if room > 0 and (trouble is None or self._clock.now() >= trouble.until):
                    offers.append(Offer(pool.meta.name, name, expected_node(pool.meta.name, kind, known), room))
            for machine in pool.machines:
                if machine.phase == "Ordered" and machine.kind in scaling.kinds:
                    kind = scaling.kinds[machine.kind]
                    underway.append(expected_node(pool.meta.name, kind, known, machine.id))
        return Growth(board, self._profiles(board)).plan([each.ask for each in asks], offers, underway)

    # Who is needed.

    def _movers(self, node: Node, residents: Residents | None) -> list[Instance]:
        """What is on a node but for daemons, which belong to it."""
        found = residents.on(node.meta.name) if residents is not None else []
        live = [each for each in found if not each.phase.over]
        return [each for each in live if (w := self._workload(each)) is None or w.spec.type != "daemon"]

    def _needed(self, node: Node, pool: NodePool, residents: Residents | None, board: Board | None) -> str:
        movers = self._movers(node, residents)
        if residents is not None and residents.claims_on(node.meta.name):
            return "it holds room for virtual machines"
        if not movers:
            return ""
        scaling = pool.spec.autoscale
        if scaling is None or board is None or self._waiting:
            return "it has work"
        if self._busy(node, movers) > scaling.busy_above:
            return "it is busy"
        if not all(self._may_leave(each) for each in movers):
            return "some of its work cannot leave"
        profiles = self._profiles(board)
        return "" if fits_elsewhere(board, profiles, node, movers, _closed) else "its work has no place elsewhere"

    def _busy(self, node: Node, movers: Sequence[Instance]) -> float:
        asked, has = Resources(), node.allocatable
        for each in movers:
            asked += self._request(each)
        shares = [asked.cpu_milli / max(has.cpu_milli, 1), asked.memory_bytes / max(has.memory_bytes, 1)]
        return 100 * max(shares)

    def _may_leave(self, instance: Instance) -> bool:
        workload = self._workload(instance)
        if workload is None or workload.spec.type != "service" or instance.spec.volumes:
            return False
        return not workload.spec.gang_of(instance.spec.group)

    def _request(self, instance: Instance) -> Resources:
        release = self._mirrors[Release.kind].get(Key(Release.kind, instance.meta.namespace, instance.spec.release))
        group = release.spec.groups.get(instance.spec.group) if isinstance(release, Release) else None
        return group.form(instance.spec.variant).request if group is not None else Resources()

    def _workload(self, instance: Instance) -> Workload | None:
        return workload_of(instance, self._mirrors[Workload.kind])

    def _node(self, name: str) -> Node | None:
        found = self._mirrors[Node.kind].get(Key(Node.kind, "", name))
        return found if isinstance(found, Node) else None

    def _pool(self, name: str) -> NodePool | None:
        found = self._mirrors[NodePool.kind].get(Key(NodePool.kind, "", name))
        return found if isinstance(found, NodePool) else None

    async def _credential(self, machine: str) -> Token | None:
        found = await self._store.get(credential_key(machine))
        return found if isinstance(found, Token) else None

    # What provisioners are told.

    async def _carry_out(self, pool: NodePool, scaling: NodeAutoscale) -> None:
        """What stands in the pool's status is done, again after a restart: by the same ids it is the same."""
        known = {each.id for each in pool.machines}
        for remembered in (self._created, self._gone):
            remembered &= known | {each for each in remembered if not each.startswith(f"{pool.meta.name}-")}
        begin = [each for each in pool.machines if each.phase == "Ordered" and each.id not in self._created]
        end = [each for each in pool.machines if each.phase == "Leaving" and each.id not in self._gone]
        if not begin and not end:
            return
        cluster = await self._cluster()
        await asyncio.gather(
            *(self._create(pool, scaling, each, cluster) for each in begin),
            *(self._delete(scaling, each, cluster) for each in end),
        )

    async def _create(self, pool: NodePool, scaling: NodeAutoscale, machine: Machine, cluster: str) -> None:
        kind = scaling.kinds.get(machine.kind)
        if kind is None:
            self._failed[machine.id] = f"there is no kind {machine.kind} any more"
            return
        try:
            async with asyncio.timeout(CALL_SECONDS):
                join = await self._source.join(machine.id, scaling.join_within)
                order = MachineOrder(
                    id=machine.id, cluster=cluster, pool=pool.meta.name, kind=machine.kind, what=kind, join=join
                )
                await self._source.provisioner(scaling).create(order)
            self._created.add(machine.id)
        except (MandorError, TimeoutError) as error:
            self._failed[machine.id] = str(error) or f"no answer within {CALL_SECONDS:g}s"
            log.warning("the machine %s cannot be made: %s", machine.id, self._failed[machine.id])

    async def _delete(self, scaling: NodeAutoscale, machine: Machine, cluster: str) -> None:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self._source.provisioner(scaling).delete(cluster, machine.id)
            self._gone.add(machine.id)
            self._failed.pop(machine.id, None)
        except (MandorError, TimeoutError) as error:
            log.warning("the machine %s cannot be given back yet: %s", machine.id, str(error) or "no answer")

    async def _list(self, pool: NodePool) -> None:
        """Machines that broke, or vanished, are not waited for."""
        scaling, now = pool.spec.autoscale, self._clock.monotonic()
        hopeful = [each for each in pool.machines if each.id in self._created and each.phase == "Ordered"]
        if scaling is None or not hopeful or now - self._listed_at.get(pool.meta.name, -LIST_SECONDS) < LIST_SECONDS:
            return
        self._listed_at[pool.meta.name] = now
        try:
            async with asyncio.timeout(CALL_SECONDS):
                made = await self._source.provisioner(scaling).list(await self._cluster())
        except (MandorError, TimeoutError) as error:
            log.warning("the provisioner of %s does not tell what there is: %s", pool.meta.name, error)
            return
        if made is None:
            return
        states = {each.id: each for each in made}
        for machine in hopeful:
            found = states.get(machine.id)
            if found is None:
                self._failed[machine.id] = "it is not there any more"
            elif found.state == "failed":
                self._failed[machine.id] = found.message or "it failed"

    async def _cluster(self) -> str:
        found = await self._store.get(Key(Cluster.kind, "", "cluster"))
        return found.spec.id if isinstance(found, Cluster) else ""


def _refused(instance: Instance) -> bool:
    status = instance.status
    waits = status.phase is Phase.PENDING and bool(status.message) and not status.nominated
    return waits and not instance.spec.stop and instance.spec.claim is None


def _closed(node: Node) -> Node:
    return node.changed(spec=replace(node.spec, cordoned=True))
