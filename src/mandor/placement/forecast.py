"""A forecast: the effect of a change on a cluster model, by the same plans and decisions; nothing is written.

Instances that are stopped are assumed to end immediately, and instances that get a node to run.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec

from mandor.lib.steps import at_once
from mandor.model.instance import Instance, InstanceStatus
from mandor.model.meta import Key, Object
from mandor.model.node import Drain, NodePhase
from mandor.model.phase import Phase
from mandor.model.priority import PriorityClass
from mandor.model.reservation import Reservation
from mandor.model.workload import Release, Workload
from mandor.placement.cluster_model import ClusterModel, PendingRequest
from mandor.placement.consult import Consult
from mandor.placement.conversion import NOTHING, PlacementState, placement_state, workload_key
from mandor.placement.cycle import decide
from mandor.placement.daemon_nodes import DaemonNodes
from mandor.placement.decision import NOW, Decision, Moment
from mandor.placement.fast import FastDecider
from mandor.placement.framework.identity import names_shown
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault, blamed
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Unwatched, Watch
from mandor.placement.gang_outcome import GangOutcome, decide_gang
from mandor.placement.reserved_room import reservable_nodes, status_at

REPLANS_MOST = 2_000_000
"""Instances read by all plans of one forecast; a long roll-out is not simulated to its end."""


class Controls(Protocol):
    """Returns what the workload controller would write next: objects to put, keys to delete."""

    def __call__(
        self,
        workload: Workload | None,
        releases: Sequence[Release],
        instances: Sequence[Instance],
        *,
        now: float,
        ready_nodes: Set[str],
        taken: Callable[[str], bool],
        site: Callable[[Release, str], DaemonNodes],
    ) -> Sequence[Object | Key]: ...


def refuse_consultation(profile: Profile, request: PlacementRequest, nodes: Snapshot) -> Mapping[str, object]:
    names = ", ".join(each.name for each in profile.consults)
    raise PluginFault(names, "cannot be consulted in a forecast")


class Placed(NamedTuple):
    """An instance that would get a node."""

    node: str
    relaxed: tuple[str, ...] = ()
    before: str = ""
    """The node that it would leave."""
    form: str = ""
    """The form it would have; empty: the main form."""


class Left(NamedTuple):
    """An instance that would wait."""

    message: str
    before: str = ""


class Ended(NamedTuple):
    """An instance that would stop."""

    node: str
    reason: str


@dataclass(slots=True)
class Outcome:
    """The effect of a change on instances."""

    placed: dict[Key, Placed] = field(default_factory=dict)
    left: dict[Key, Left] = field(default_factory=dict)
    ended: dict[Key, Ended] = field(default_factory=dict)
    """Instances that stop and are not replaced under the same name."""
    still_left: dict[Key, Left] = field(default_factory=dict)
    """Instances that are pending already and not affected by the change."""
    victims: dict[Key, Key] = field(default_factory=dict)
    """Preempted instances, with the instance that takes their place; their replacements are in the other fields."""
    held: dict[Key, Reservation] = field(default_factory=dict)
    """Applied reservations, with what they would hold."""
    complete: bool = True
    """False: the forecast was stopped because it takes too long."""


class Forecast:
    """Collects changes, then computes their effect with one call of `run`."""

    def __init__(
        self,
        model: ClusterModel,
        profiles: Mapping[str, Profile],
        controls: Controls,
        *,
        now: float,
        consult: Consult = refuse_consultation,
        enough: Callable[[], bool] = lambda: False,
        watch: Watch | None = None,
    ) -> None:
        """`enough` is called now and then; True stops the forecast."""
        self.model = model
        self._profiles = profiles
        self._controls = controls
        self._now = now
        self._consult = consult
        self._enough = enough
        self._watch = watch or Unwatched()
        self._touched: dict[Key, None] = {}
        self._waiting: dict[Key, PendingRequest] = {each.request.key: each for each in model.waiting()}
        self._known = frozenset(self._waiting)
        self._new: set[Key] = set()
        self._left_node: dict[Key, str] = {}
        self._outcome = Outcome()
        self._refused: dict[Key, str] = {}
        self._fast = FastDecider()
        self._replans = 0
        self._sites: dict[tuple[Key, str], DaemonNodes] = {}
        self._serial = 0

    # Changes.

    def put(self, value: Object) -> None:
        """Apply an object."""
        if isinstance(value, Reservation):
            self._hold(value)
            return
        self.model.put(value)
        if isinstance(value, Workload):
            self._touched[value.key] = None
        if isinstance(value, Workload | PriorityClass):
            self._update_requests()

    def _hold(self, value: Reservation) -> None:
        rooms = at_once(reservable_nodes(value, self.model))
        status = at_once(status_at(value, rooms, self._now))
        self.model.put(value.changed(status=status))
        if status.phase == "Waiting":
            then = at_once(status_at(value, rooms, value.spec.begins_at))
            message = f"{status.message}; as things are now, {then.message}"
            status = msgspec.structs.replace(then, phase="Waiting", message=message)
        self._outcome.held[value.key] = value.changed(status=status)

    def delete(self, key: Key) -> None:
        self.model.remove(key)
        if key.kind == Workload.kind:
            self._touched[key] = None

    def drain(self, name: str) -> None:
        """Drain a node."""
        node = self.model.nodes[name]
        self.model.put(node.changed(spec=msgspec.structs.replace(node.spec, drain=Drain())))
        for each in self._on(name):
            self._end(each.stopping("drained", at=self._now))

    def lose(self, name: str) -> None:
        """Lose a node permanently."""
        node = self.model.nodes[name]
        self.model.put(node.changed(status=msgspec.structs.replace(node.status, phase=NodePhase.DOWN)))
        for each in self._on(name):
            lost = InstanceStatus(phase=Phase.LOST, reason="NodeLost", since=self._now)
            self.model.put(each.changed(status=lost))
            self._left_node[each.key] = name
            self._touched[workload_key(each)] = None

    def _on(self, node: str) -> list[Instance]:
        found = (each for each in self.model.instances.values() if each.spec.node == node)
        return [each for each in found if placement_state(each) is PlacementState.PLACED]

    def _update_requests(self) -> None:
        """Update the requests of pending instances: priority, profile or gates may have changed."""
        for key, waiting in self._waiting.items():
            request = self.model.request(self.model.instances[key])
            if request is not None and request != waiting.request:
                self._waiting[key] = PendingRequest(request, waiting.queued_at)

    # Effects.

    def run(self) -> Outcome:
        for each in list(self.model.instances.values()):
            if each.spec.stop is not None and placement_state(each) is PlacementState.PLACED:
                self.model.put(each.changed(status=InstanceStatus(phase=Phase.STOPPED, since=self._now)))
                self._left_node[each.key] = each.spec.node
                self._touched[workload_key(each)] = None
        while True:
            for workload in list(self._touched):
                del self._touched[workload]
                if not self._reconcile(workload):
                    self._outcome.complete = False
            if not self._outcome.complete or not self._schedule() or not self._touched:
                break
        return self._result()

    def _reconcile(self, key: Key) -> bool:
        """Run the controller of a workload; return False if the forecast is to stop."""
        model = self.model
        instances = model.of(key)
        self._replans += len(instances) + 1
        if self._replans > REPLANS_MOST or self._enough():
            return False
        writes = self._controls(
            model.workloads.get(key),
            model.releases_of(key),
            instances,
            now=self._now,
            ready_nodes={name for name, node in model.nodes.items() if node.status.phase is NodePhase.READY},
            taken=lambda name: self._taken(key, name),
            site=self._site,
        )
        for each in writes:
            if isinstance(each, Instance):
                self._write(each)
            elif isinstance(each, Key):
                self._remove(each)
            else:
                model.put(each)
        return True

    def _site(self, release: Release, group: str) -> DaemonNodes:
        """Return the daemon nodes of a group; cached, as nodes do not change while the forecast runs."""
        key = (release.key, group)
        if key not in self._sites:
            self._sites[key] = DaemonNodes.of(release.spec.groups[group], self.model.nodes.values())
        return self._sites[key]

    def _taken(self, workload: Key, name: str) -> bool:
        found = self.model.instances.get(Key(Instance.kind, workload.namespace, name))
        return found is not None and found.spec.workload != workload.name

    def _write(self, value: Instance) -> None:
        if value.meta.uid:
            self._end(value) if value.spec.stop is not None else self.model.put(value)
            return
        self._serial += 1
        made = value.stamped(version=0, uid=f"rehearsed-{self._serial}", created_at=self._now)
        self.model.put(made)
        self._new.add(made.key)
        self._outcome.ended.pop(made.key, None)
        request = self.model.request(made)
        if request is not None:
            self._waiting[made.key] = PendingRequest(request, self._now)
        self._touched[workload_key(made)] = None

    def _end(self, instance: Instance) -> None:
        """Stop an instance, which ends immediately."""
        node, reason = instance.spec.node, instance.spec.stop.reason if instance.spec.stop is not None else ""
        self._left_node[instance.key] = node
        self._outcome.ended[instance.key] = Ended(node, reason)
        self.model.put(instance.changed(status=InstanceStatus(phase=Phase.STOPPED, since=self._now)))
        self._touched[workload_key(instance)] = None

    def _remove(self, key: Key) -> None:
        gone = self.model.instances.get(key)
        if gone is not None:
            self._waiting.pop(key, None)
            if not gone.phase.over:
                self._outcome.ended[key] = Ended(gone.spec.node, "")
            self._touched[workload_key(gone)] = None
        self.model.remove(key)

    # Placement.

    def _schedule(self) -> bool:
        """Decide all pending instances in queue order; return False if the forecast is to stop."""
        decided_gangs: set[Key] = set()
        for number, waiting in enumerate(self._queue()):
            if number % 64 == 63 and self._enough():
                self._outcome.complete = False
                return False
            if waiting.request.key not in self._waiting or self._gang_decided(waiting.request, decided_gangs):
                continue
            decision = self._decided(waiting.request)
            if decision.victims:
                self._make_room(decision)
                decision = self._decided(waiting.request)
            if decision.node:
                self._place(waiting.request.key, decision)
            else:
                self._refused[waiting.request.key] = decision.message
        return True

    def _gang_decided(self, request: PlacementRequest, decided_gangs: set[Key]) -> bool:
        """Decide the gang of a request as a whole; return False if the instance is decided alone."""
        profile = self._profiles.get(request.profile)
        if request.key in decided_gangs:
            return True
        if profile is None or request.member is None:
            return False
        try:
            if gate_reason(profile, request) is not None:
                return False
            found = self._together(profile, request)
            if found is not None and found.victims:
                for each in found.nominated:
                    self._make_room(each)
                found = self._together(profile, request)
            if found is None:
                return False
        except PluginFault as fault:
            self._refused[request.key] = str(fault)
            return True
        for each in found.placed:
            self._place(each.key, each)
        if not found.placed:
            decided_gangs.update(each.key for each in found.requests)
            self._refused.update((each.key, found.message) for each in found.requests)
        return request.key not in self._waiting or not found.placed

    def _together(self, profile: Profile, request: PlacementRequest) -> GangOutcome | None:
        moment = Moment(self._now, request.shape.patience)
        return decide_gang(self.model, profile, request, self._consult, self._watch, moment)

    def _make_room(self, decision: Decision) -> None:
        """Stop the victims of a nomination and hold their room."""
        shape = decision.request.shape if decision.request is not None else None
        self.model.hold(self.model.instances[decision.key], decision.nominated, shape)
        for key in decision.victims:
            victim = self.model.instances.get(key)
            if victim is not None:
                whom = names_shown((decision.key,), key.namespace)
                self._end(victim.stopping(f"makes room for {whom}", at=self._now))
                self._outcome.victims[key] = decision.key

    def _queue(self) -> list[PendingRequest]:
        sort = self._profiles["default"].queue_sort

        def rank(waiting: PendingRequest) -> Hashable:
            return sort.sort_key(waiting.request, waiting.queued_at)

        try:
            with blamed(sort):
                return sorted(self._waiting.values(), key=rank)  # type: ignore[arg-type]
        except PluginFault as fault:
            self._refused.update(dict.fromkeys(self._waiting, str(fault)))
            return []

    def _decided(self, request: PlacementRequest) -> Decision:
        profile = self._profiles.get(request.profile)
        if profile is None:
            return Decision(request.key, message=f"there is no profile {request.profile}")
        held = self.model.held(request.key)
        known = None if held else self._fast.refusal(request, self.model.table.version)
        if known is not None:
            return known
        moment = Moment(self._now, request.shape.patience)
        decision = decided(profile, request, self.model.table.snapshot(), self._consult, self._watch, moment, held)
        if not held:
            self._fast.remember(profile, request, decision, self.model.table.version)
        return decision

    def _place(self, key: Key, decision: Decision) -> None:
        instance = self.model.instances[key]
        shape = decision.request.shape if decision.request is not None else NOTHING
        bound = instance.bound(decision.node, at=self._now, variant=shape.variant)
        running = InstanceStatus(phase=Phase.RUNNING, ready=True, since=self._now, started_at=self._now)
        self.model.put(bound.changed(status=running))
        del self._waiting[key]
        self._refused.pop(key, None)
        form = shape.form_name if shape.variant else ""
        self._outcome.placed[key] = Placed(decision.node, decision.relaxed, self._left_node.get(key, ""), form)
        self._touched[workload_key(instance)] = None

    def _result(self) -> Outcome:
        outcome = self._outcome
        for key in self._waiting:
            left = Left(self._refused.get(key, ""), self._left_node.get(key, ""))
            (outcome.left if key in self._new or key not in self._known else outcome.still_left)[key] = left
        for key, node in self._left_node.items():
            instance = self.model.instances.get(key)
            if instance is not None and instance.phase is Phase.LOST:  # It is not replaced.
                outcome.left[key] = Left(f"lost with {node} and not replaced", node)
        for key in [key for key in outcome.placed if key not in self.model.instances]:
            del outcome.placed[key]
        return outcome


def decided(
    profile: Profile,
    request: PlacementRequest,
    nodes: Snapshot,
    consult: Consult,
    watch: Watch,
    moment: Moment = NOW,
    held: str = "",
) -> Decision:
    """Decide as the scheduler would: PreEnqueue, consultation, decision."""
    try:
        why = gate_reason(profile, request)
        if why is not None:
            return Decision(request.key, message=why)
        consulted = consult(profile, request, nodes) if profile.consults else None
    except PluginFault as fault:
        return Decision(request.key, message=str(fault), fault=fault.plugin)
    return decide(profile, request, nodes, nominated=held, consulted=consulted, watch=watch, moment=moment)


def gate_reason(profile: Profile, request: PlacementRequest) -> str | None:
    """Return why a PreEnqueue plugin keeps the request out of the queue; None: it does not."""
    for plugin in profile.pre_enqueues:
        with blamed(plugin):
            why = plugin.pre_enqueue(request)
        if why is not None:
            return str(why)
    return None
