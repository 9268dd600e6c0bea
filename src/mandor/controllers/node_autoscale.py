"""The node autoscaler: orders machines for pending instances, and removes machines that are not needed."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from mandor.controllers.base import Controller
from mandor.controllers.cluster_model_cache import ClusterModelCache
from mandor.controllers.draft import Draft
from mandor.controllers.growth_plan import Growth, Offer, Order, expected_node
from mandor.controllers.machine_plan import MachineInputs, credential_key, plan_machines
from mandor.controllers.need_plan import cannot_leave, fits_elsewhere, movable_instances
from mandor.controllers.restore import Profiles
from mandor.controllers.writer import Writer
from mandor.errors import Invalid, MandorError
from mandor.lib.clock import Clock
from mandor.lib.ids import new_uid
from mandor.lib.turns import in_turns
from mandor.model.instance import Instance
from mandor.model.machine import Machine, NodeAutoscale
from mandor.model.meta import Key
from mandor.model.node import Node
from mandor.model.phase import Phase
from mandor.model.pool import NodePool
from mandor.model.priority import PriorityClass
from mandor.model.quota import Quota
from mandor.model.record import Cluster, Namespace, Token
from mandor.model.reservation import Reservation
from mandor.model.volume import Volume
from mandor.model.workload import Release, Workload
from mandor.placement.cluster_model import STEP, ClusterModel
from mandor.placement.conversion import PlacementState, placement_state
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.watch import Guard, Overrun, Unguarded
from mandor.provision.base import JoinInfo, MachineOrder, NotMade, Provisioner
from mandor.store.base import Change, Put, Store
from mandor.store.mirror import Mirror
from mandor.store.recorder import Recorder

R = TypeVar("R")

log = logging.getLogger(__name__)

ONLY_KEY = "all"
PLAN_SECONDS = 5.0  # between two plans
LIST_SECONDS = 30.0
"""Seconds between two listings of a provisioner's machines."""
FITS_MOST = 10
"""Machines of a pool for which each plan tries whether their instances fit elsewhere."""
CALL_SECONDS = 120.0
"""Time limit of a provisioner call in seconds."""
_BOARD = (
    Namespace.kind,
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
    """Provisions machines and makes their join tokens."""

    provisioner: Callable[[NodeAutoscale], Provisioner]
    """Returns the provisioner of a pool's settings; the caller does not close it."""
    join: Callable[[str, str, float], Awaitable[JoinInfo]]
    """Makes a join token from the machine id, the pool and the validity in seconds."""
    new_id: Callable[[], str] = lambda: new_uid()[-8:]
    """Makes the random part of a machine's name."""
    records_unmade: Callable[[], bool] = lambda: True
    """Returns whether all servers know `Machine.unmade`."""


class NodeAutoscaleController(Controller[str]):
    name = "node-autoscale"
    watches = (NodePool.kind, *_BOARD)
    workers = 1

    def __init__(
        self,
        store: Store,
        clock: Clock,
        recorder: Recorder,
        profiles: Profiles,
        source: MachineSource,
        *,
        guard: Callable[[], Guard] = Unguarded,
    ) -> None:
        """`guard`: interrupts plugins that exceed their time limit."""
        self._guard = guard
        self._store, self._clock, self._recorder = store, clock, recorder
        self._profiles, self._source = profiles, source
        self._scaled: set[str] = set()
        """Pools with autoscaling or with machines."""
        self._waiting: dict[Key, float] = {}
        """Instances that could not be placed, with the time since which they wait."""
        self._created: set[str] = set()
        self._failed: dict[str, str] = {}
        self._gone: set[str] = set()
        self._unmade: set[str] = set()
        """Machines that the provisioner was asked for by this process and certainly did not create."""
        self._undeleted: dict[str, str] = {}
        """Errors of the last attempts to delete machines, by id."""
        self._listed_at: dict[str, float] = {}
        self._models = ClusterModelCache(_BOARD)
        self._fits: dict[str, tuple[float, bool]] = {}
        """Time and result of the last check whether a machine's instances fit elsewhere, by machine."""

    def begin(self, mirrors: Mapping[str, Mirror]) -> None:
        self._mirrors = mirrors
        self._writer = Writer(self._store, mirrors)

    def observe_all(self, changes: Sequence[Change]) -> Iterable[str]:
        self._models.see(changes)
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
        return (ONLY_KEY,) if self._scaled != before else ()

    async def reconcile(self, key: str) -> float | None:
        pools = [each for each in map(self._pool, sorted(self._scaled)) if each is not None]
        if not pools:
            await in_turns(self._models.drop())
            return None
        orders: list[Order] = []
        work: dict[str, list[Instance]] = {}
        needed: dict[str, str] = {}
        if self._waiting or any(pool.machines for pool in pools):
            board = await self._board()
            orders = await self._orders(pools, board)
            for pool in pools:
                for machine in pool.machines:
                    work[machine.id] = movable_instances(board, machine.id)
                    await asyncio.sleep(0)
                needed |= await self._needed(pool, board, work)
        for pool in pools:
            await self._plan_pool(pool, [each for each in orders if each.pool == pool.meta.name], work, needed)
        return PLAN_SECONDS

    async def _plan_pool(
        self,
        pool: NodePool,
        orders: Sequence[Order],
        work: Mapping[str, Sequence[Instance]],
        needed: Mapping[str, str],
    ) -> None:
        await self._list(pool)
        credentials = {each.id: await self._credential(each.id) for each in pool.machines if each.id in self._gone}
        seen = MachineInputs(
            nodes={each.id: node for each in pool.machines if (node := self._node(each.id)) is not None},
            needed=lambda node: needed.get(node.meta.name, ""),
            load=lambda node: len(work.get(node.meta.name, ())),
            failed=self._failed,
            gone=self._gone,
            unmade=self._unmade,
            undeleted=self._undeleted,
            records_unmade=self._source.records_unmade(),
            credentials=credentials.get,
            work_is_pending=bool(self._waiting),
        )
        draft = plan_machines(pool, seen, orders, self._clock.now(), self._source.new_id)
        await self._write(draft)
        found = self._pool(pool.meta.name)
        if found is not None and found.spec.autoscale is not None:
            await self._carry_out(found, found.spec.autoscale)

    async def _write(self, draft: Draft) -> None:
        if draft.writes:
            await self._writer.commit(draft.writes)
        for note in draft.notes:
            self._recorder.note(note.about, note.reason, note.message, type="warning" if note.warning else "normal")

    # Pending instances.

    async def _orders(self, pools: Sequence[NodePool], board: ClusterModel) -> list[Order]:
        scaled = [(pool, pool.spec.autoscale) for pool in pools if pool.spec.autoscale is not None]
        offers = [offer for pool, scaling in scaled for offer in self._offers(pool, scaling, board)]
        if not self._waiting or not offers:
            return []
        requests = await self._aged(min(scaling.pending_for for _, scaling in scaled), board)
        known = list(board.nodes.values())
        underway = [
            expected_node(pool.meta.name, scaling.kinds[each.kind], known, each.id)
            for pool, scaling in scaled
            for each in pool.machines
            if each.phase == "Ordered" and each.kind in scaling.kinds
        ]
        growth = Growth(board, self._profiles(board))
        await self._through(growth.steps(requests, offers, underway))
        return growth.orders

    async def _aged(self, seconds: float, board: ClusterModel) -> list[PlacementRequest]:
        """Return the requests of instances that have waited at least `seconds`, by priority, then by age."""
        now, found = self._clock.monotonic(), []
        for number, key in enumerate([key for key, since in self._waiting.items() if now - since >= seconds]):
            if number % STEP == 0:
                await asyncio.sleep(0)
            instance = board.instances.get(key)
            request = (
                board.request(instance)
                if instance is not None and placement_state(instance) is PlacementState.WAITING
                else None
            )
            if instance is not None and request is not None:
                found.append((-request.priority, instance.meta.created_at, request.key, request))
        return [each[-1] for each in sorted(found, key=lambda each: each[:3])]

    def _offers(self, pool: NodePool, scaling: NodeAutoscale, board: ClusterModel) -> Iterator[Offer]:
        flying = sum(each.phase == "Ordered" for each in pool.machines)
        room = min(scaling.max - len(pool.machines), scaling.at_once - flying)
        known = list(board.nodes.values())
        for name, kind in scaling.kinds.items():
            trouble = pool.status.scaling.trouble.get(name) if pool.status.scaling is not None else None
            if room > 0 and (trouble is None or self._clock.now() >= trouble.until):
                yield Offer(pool.meta.name, name, expected_node(pool.meta.name, kind, known), room)

    # Machines that are needed.

    async def _needed(
        self, pool: NodePool, board: ClusterModel, work: Mapping[str, Sequence[Instance]]
    ) -> dict[str, str]:
        """Return why machines are needed, by id; only a few machines are tried per plan."""
        scaling = pool.spec.autoscale
        found: dict[str, str] = {}
        open_: list[Node] = []
        for machine in pool.machines:
            await asyncio.sleep(0)
            node, there = self._node(machine.id), work[machine.id]
            if node is None or not there:
                continue
            keeps = "it runs instances" if scaling is None or self._waiting else ""
            keeps = keeps or cannot_leave(board, node, there, scaling.busy_above if scaling is not None else 100.0)
            if keeps:
                self._fits.pop(machine.id, None)
                found[machine.id] = keeps
            else:
                open_.append(node)
        open_.sort(key=lambda node: self._fits.get(node.meta.name, (0.0, False))[0])
        for node in open_[:FITS_MOST]:
            fits = await self._through(fits_elsewhere(board, self._profiles(board), node, work[node.meta.name]))
            self._fits[node.meta.name] = (self._clock.monotonic(), bool(fits))
        for node in open_:
            if not self._fits.get(node.meta.name, (0.0, False))[1]:
                found[node.meta.name] = "its instances do not fit on other nodes"
        return found

    # The cluster model.

    async def _board(self) -> ClusterModel:
        await in_turns(self._models.catch_up(self._mirrors))
        assert self._models.board is not None
        return self._models.board

    async def _through(self, steps: Generator[None, None, R]) -> R | None:
        """Run the steps to the end, with other tasks in between; return None if a plugin exceeded its time limit."""
        with self._guard() as guard:
            try:
                while True:
                    guard.run(lambda: next(steps))
                    await asyncio.sleep(0)
            except StopIteration as end:
                found: R = end.value
                return found
            except Overrun:
                log.warning("the plugin %s exceeded its time limit: no machines are ordered by this plan", guard.last)
                return None
            finally:
                steps.close()

    # Current objects.

    def _node(self, name: str) -> Node | None:
        found = self._mirrors[Node.kind].get(Key(Node.kind, "", name))
        return found if isinstance(found, Node) else None

    def _pool(self, name: str) -> NodePool | None:
        found = self._mirrors[NodePool.kind].get(Key(NodePool.kind, "", name))
        return found if isinstance(found, NodePool) else None

    async def _credential(self, machine: str) -> Token | None:
        found = await self._store.get(credential_key(machine))
        return found if isinstance(found, Token) else None

    # Calls of provisioners.

    async def _carry_out(self, pool: NodePool, scaling: NodeAutoscale) -> None:
        """Carry out what the pool's status orders; calls are repeated with the same ids after a restart."""
        known = {each.id for each in pool.machines}
        for remembered in (self._created, self._gone, self._unmade):
            remembered &= known | {each for each in remembered if not each.startswith(f"{pool.meta.name}-")}
        for reasons in (self._failed, self._undeleted):
            for each in [each for each in reasons if each.startswith(f"{pool.meta.name}-") and each not in known]:
                del reasons[each]
        begin = [each for each in pool.machines if each.phase == "Ordered" and each.id not in self._created]
        end = [each for each in pool.machines if each.phase == "Leaving" and each.id not in self._gone]
        if not begin and not end:
            return
        cluster = await self._cluster()
        fresh = {each.id for each in begin if each.unmade}
        if fresh and not await self._announce(pool, scaling, fresh, cluster):
            begin = [each for each in begin if each.id not in fresh]
        await asyncio.gather(
            *(self._create(pool, scaling, each, cluster, fresh=each.id in fresh) for each in begin),
            *(self._delete(scaling, each, cluster) for each in end),
        )

    async def _announce(self, pool: NodePool, scaling: NodeAutoscale, ids: Set[str], cluster: str) -> bool:
        """Record that the machines may exist from now on; return False if the provisioner cannot be used, so that
        none of them was made.
        """
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self._source.provisioner(scaling).list(cluster)
        except (MandorError, TimeoutError) as error:
            why = str(error) or f"no answer from the provisioner within {CALL_SECONDS:g} s"
            log.warning("cannot use the provisioner of pool %s: %s", pool.meta.name, why)
            self._failed.update(dict.fromkeys(ids, why))
            return False
        assert pool.status.scaling is not None
        machines = tuple(replace(each, unmade=each.unmade and each.id not in ids) for each in pool.machines)
        after = replace(pool.status, scaling=replace(pool.status.scaling, machines=machines))
        await self._writer.commit([Put(pool.changed(status=after))])
        return True

    async def _create(
        self, pool: NodePool, scaling: NodeAutoscale, machine: Machine, cluster: str, *, fresh: bool
    ) -> None:
        """`fresh`: the provisioner was never asked for the machine before."""
        kind = scaling.kinds.get(machine.kind)
        if kind is None:
            self._failed[machine.id] = f"the pool no longer has the machine kind {machine.kind}"
            if fresh:
                self._unmade.add(machine.id)
            return
        asked = False
        try:
            async with asyncio.timeout(CALL_SECONDS):
                provisioner = self._source.provisioner(scaling)
                join = await self._source.join(machine.id, pool.meta.name, scaling.join_within)
                order = MachineOrder(
                    id=machine.id, cluster=cluster, pool=pool.meta.name, kind=machine.kind, what=kind, join=join
                )
                asked = True
                await provisioner.create(order)
            self._created.add(machine.id)
        except (MandorError, TimeoutError) as error:
            if fresh and (not asked or isinstance(error, Invalid | NotMade)):
                self._unmade.add(machine.id)
            self._failed[machine.id] = str(error) or f"no answer from the provisioner within {CALL_SECONDS:g} s"
            log.warning("cannot create the machine %s: %s", machine.id, self._failed[machine.id])

    async def _delete(self, scaling: NodeAutoscale, machine: Machine, cluster: str) -> None:
        try:
            async with asyncio.timeout(CALL_SECONDS):
                await self._source.provisioner(scaling).delete(cluster, machine.id)
            self._gone.add(machine.id)
            self._failed.pop(machine.id, None)
            self._undeleted.pop(machine.id, None)
        except (MandorError, TimeoutError) as error:
            why = str(error) or f"no answer from the provisioner within {CALL_SECONDS:g} s"
            if self._undeleted.get(machine.id) != why:
                log.warning("cannot delete the machine %s yet: %s", machine.id, why)
            self._undeleted[machine.id] = why

    async def _list(self, pool: NodePool) -> None:
        """Mark ordered machines as failed if the provisioner reports them as broken, or no longer lists them."""
        scaling, now = pool.spec.autoscale, self._clock.monotonic()
        hopeful = [each for each in pool.machines if each.id in self._created and each.phase == "Ordered"]
        if scaling is None or not hopeful or now - self._listed_at.get(pool.meta.name, -LIST_SECONDS) < LIST_SECONDS:
            return
        self._listed_at[pool.meta.name] = now
        try:
            async with asyncio.timeout(CALL_SECONDS):
                made = await self._source.provisioner(scaling).list(await self._cluster())
        except (MandorError, TimeoutError) as error:
            log.warning("cannot list the machines of pool %s: %s", pool.meta.name, error)
            return
        if made is None:
            return
        states = {each.id: each for each in made}
        for machine in hopeful:
            found = states.get(machine.id)
            if found is None:
                self._failed[machine.id] = "the provisioner no longer lists the machine"
            elif found.state == "failed":
                self._failed[machine.id] = found.message or "the provisioner reports that the machine failed"

    async def _cluster(self) -> str:
        found = await self._store.get(Key(Cluster.kind, "", "cluster"))
        return found.spec.id if isinstance(found, Cluster) else ""


def _refused(instance: Instance) -> bool:
    status = instance.status
    waits = status.phase is Phase.PENDING and bool(status.message) and not status.nominated
    return waits and not instance.spec.stop and instance.spec.claim is None
