"""Answers to "why": about a pending instance, a placed one, and a whole workload."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, structs

from mandor.errors import Invalid
from mandor.model.decision import DecisionSpec, NodeScore
from mandor.model.instance import Instance
from mandor.model.workload import Workload
from mandor.placement.cluster_model import ClusterModel
from mandor.placement.consult import Consult
from mandor.placement.conversion import PlacementState, placement_state
from mandor.placement.cycle import widest
from mandor.placement.daemon_nodes import DaemonNodes
from mandor.placement.decision import Decision
from mandor.placement.explain import FormStep, NodeVerdict, Step, forms_of, node_verdicts, score_table, steps_of
from mandor.placement.forecast import decided, kept_out
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.tie_break import Ties
from mandor.placement.framework.watch import Watch
from mandor.placement.gang_outcome import GangOutcome, decide_gang
from mandor.placement.remedy import Remedy, remedies

NODES_MOST = 1000
"""So many nodes are told about one by one."""
EACH_MOST = 8
"""So many instances of a workload are explained, one of each kind."""


class Explanation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an instance has no node, or the one it has."""

    instance: str
    namespace: str
    workload: str
    phase: str
    summary: str
    """One sentence."""
    profile: str = "default"
    priority: int = 0
    node: str = ""
    ports: dict[str, int] = {}
    """The node's ports that were chosen for it."""
    said: str = ""
    """What the scheduler last said about it."""
    steps: tuple[Step, ...] = ()
    """The tries of a cycle: with all rules, then with ever fewer of the soft ones."""
    form: str = ""
    """The form it has, or would have, where its group has `alternatives`."""
    forms: tuple[FormStep, ...] = ()
    """Of a group with `alternatives`: each form, in the order in which they are tried."""
    nodes: tuple[NodeVerdict, ...] = ()
    """Node by node, where that was asked for."""
    remedies: tuple[Remedy, ...] = ()
    """Changes that would let it run, the smallest first; each was tried."""
    nominated: str = ""
    """Where room is being made for it, or would be."""
    victims: tuple[str, ...] = ()
    """Those who would have to go for that."""
    relaxed: tuple[str, ...] = ()
    """The soft rules that are given up."""
    chosen_now: str = ""
    """Where it would go if it were decided now, without it on the board."""
    scores: tuple[NodeScore, ...] = ()
    """The best nodes as things stand now, and its own."""
    versions: tuple[str, ...] = ()
    decision: DecisionSpec | None = None
    """What was decided, if that is still kept."""
    since: tuple[str, ...] = ()
    """What is different from when it was decided."""


class WorkloadExplanation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where the instances of a workload are, and an explanation of each kind of them."""

    workload: str
    namespace: str
    summary: str
    pending: int = 0
    nodes: dict[str, int] = {}
    """How many are on each node."""
    instances: tuple[Explanation, ...] = ()
    """One for all of its like; the pending first."""


class Explainer:
    """Answers from one board, which is as before after each answer."""

    def __init__(
        self,
        board: ClusterModel,
        profiles: Mapping[str, Profile],
        *,
        consult: Consult,
        watch: Watch,
        sees: Callable[[str], bool] = lambda namespace: True,
    ) -> None:
        """`sees`: whether the asker sees a namespace; what is in others is not named."""
        self._board = board
        self._profiles = profiles
        self._consult = consult
        self._watch = watch
        self._sees = sees

    def workload(self, workload: Workload, kept: Mapping[str, DecisionSpec], *, nodes: bool) -> WorkloadExplanation:
        instances = sorted(self._board.of(workload.key), key=lambda each: (each.spec.group, each.spec.index))
        alive = [each for each in instances if placement_state(each) is not PlacementState.NEITHER]
        waiting = [each for each in alive if placement_state(each) is PlacementState.WAITING]
        placed = [each for each in alive if placement_state(each) is PlacementState.PLACED]
        counts: dict[str, int] = {}
        for each in placed:
            counts[each.spec.node] = counts.get(each.spec.node, 0) + 1
        kinds: dict[object, Instance] = {}
        for each in (*waiting, *placed):
            spec = each.spec
            kinds.setdefault((bool(spec.node), spec.group, spec.release, spec.avoid, spec.variant), each)
        chosen = list(kinds.values())[:EACH_MOST]
        return WorkloadExplanation(
            workload=workload.meta.name,
            namespace=workload.meta.namespace,
            summary=self._summary(workload, len(placed), len(waiting), len(counts)),
            pending=len(waiting),
            nodes=dict(sorted(counts.items())),
            instances=tuple(self.instance(each, kept.get(each.meta.name), nodes=nodes) for each in chosen),
        )

    def _summary(self, workload: Workload, placed: int, waiting: int, nodes: int) -> str:
        elsewhere = self._elsewhere(workload) if workload.spec.type == "daemon" else ""
        if not placed and not waiting:
            wanted = sum(group.count for group in workload.spec.groups.values())
            return elsewhere or "no instance needs a node" + (": its replicas are 0" if not wanted else "")
        said = f"{placed} placed on {nodes} node{'' if nodes == 1 else 's'}"
        said += f", {waiting} pending" if waiting else ""
        return f"{said}; {elsewhere}" if elsewhere else said

    def _elsewhere(self, workload: Workload) -> str:
        """Of daemons: which nodes are none of theirs, and why."""
        groups, nodes = workload.spec.groups, self._board.nodes.values()
        found = {name: DaemonNodes.of(group, nodes).refusal for name, group in groups.items()}
        return "; ".join(f"{name}: {why}" if len(groups) > 1 else why for name, why in found.items() if why)

    def instance(self, instance: Instance, kept: DecisionSpec | None, *, nodes: bool) -> Explanation:
        stands = placement_state(instance)
        if stands is PlacementState.NEITHER:
            raise Invalid(
                f"{instance.meta.name} needs no node: it is {instance.phase.value.lower()}"
                + (", and told to stop" if instance.spec.stop is not None and not instance.phase.over else ""),
                hint=f"`mandor describe instance {instance.meta.name}` tells how it ended",
            )
        if kept is not None and kept.uid != instance.meta.uid:
            kept = None
        request = self._board.request(instance)
        if request is None:
            return _told(instance, kept, summary="its release or its workload is gone, so nobody knows what it needs")
        profile = self._profiles.get(request.profile)
        if profile is None:
            names = ", ".join(sorted(self._profiles))
            return _told(instance, kept, request, summary=f"there is no profile {request.profile}; there are: {names}")
        try:
            if stands is PlacementState.PLACED:
                return self._placed(instance, request, profile, kept, nodes=nodes)
            return self._waiting(instance, request, profile, kept, nodes=nodes)
        except PluginFault as fault:
            return _told(instance, kept, request, summary=str(fault))

    # One that waits.

    def _waiting(
        self, instance: Instance, request: PlacementRequest, profile: Profile, kept: DecisionSpec | None, *, nodes: bool
    ) -> Explanation:
        together = None
        if kept_out(profile, request) is None:
            together = decide_gang(self._board, profile, request, self._consult, self._watch)
        with self._board.table.trial():
            held = self._board.held(instance.key)
            if held:  # it is not in its own way
                self._board.table.drop_allocation(instance.key)
            return self._refused(instance, request, profile, kept, held, together, nodes=nodes)

    def _refused(
        self,
        instance: Instance,
        request: PlacementRequest,
        profile: Profile,
        kept: DecisionSpec | None,
        held: str,
        together: GangOutcome | None,
        *,
        nodes: bool,
    ) -> Explanation:
        """`together`: what becomes of its gang, if that is decided as a whole."""
        table = self._board.table
        consulted = self._consult(profile, request, table.snapshot()) if profile.consults else None
        steps, verdict, eased = steps_of(profile, request, table.snapshot(), consulted, self._watch)
        # At once: a verdict is a window on the table, which is changed below.
        each_node = node_verdicts(verdict, eased, table.snapshot(), NODES_MOST) if nodes else []
        if together is None:
            decision = decided(profile, request, table.snapshot(), self._consult, self._watch, held=held)
            victims, message = decision.victims, ""
        else:
            decision, victims, message = together.about(request.key), together.victims, together.message
        forms = self._forms(profile, request, decision.request or widest(request), consulted)
        helped = decision.node or decision.fault or decision.nominated
        told = [] if helped else self._remedies(profile, request)
        return _told(
            instance,
            kept,
            request,
            summary=message or _waiting_summary(instance, decision, profile),
            steps=tuple(steps),
            form=_form_name(request, decision.request.shape.variant) if decision.request is not None else "",
            forms=forms,
            nodes=tuple(each_node),
            remedies=tuple(told),
            nominated=decision.nominated,
            victims=tuple(key.name for key in victims if self._sees(key.namespace)),
            relaxed=decision.relaxed,
            chosen_now=decision.node,
            versions=profile.versions,
        )

    def _forms(
        self,
        profile: Profile,
        request: PlacementRequest,
        rules: PlacementRequest,
        consulted: Mapping[str, object] | None,
    ) -> tuple[FormStep, ...]:
        return tuple(forms_of(profile, request, rules, self._board.table.snapshot(), consulted, self._watch))

    def _remedies(self, profile: Profile, request: PlacementRequest) -> list[Remedy]:
        stopping = [
            each.key
            for each in self._board.instances.values()
            if each.spec.stop is not None and placement_state(each) is PlacementState.PLACED
        ]
        return remedies(
            profile,
            request,
            self._board.table,
            stopping=stopping,
            may_end=lambda key: self._sees(key.namespace),
            watch=self._watch,
        )

    # One that has a node.

    def _placed(
        self, instance: Instance, request: PlacementRequest, profile: Profile, kept: DecisionSpec | None, *, nodes: bool
    ) -> Explanation:
        table, node = self._board.table, instance.spec.node
        with table.trial():
            table.drop_allocation(instance.key)
            snapshot = table.snapshot()
            decision = decided(profile, request, snapshot, self._consult, self._watch)
            consulted = self._consult(profile, request, snapshot) if profile.consults else None
            form = request.forms[min(instance.spec.variant, len(request.shape.alternatives))]
            rules = decision.request or request
            eased = structs.replace(rules, shape=form.shape)
            scores = score_table(profile, eased, snapshot, also=(node,), consulted=consulted, watch=self._watch)
            steps, verdict, last = steps_of(profile, form, snapshot, consulted, self._watch)
            forms = self._forms(profile, request, rules, consulted)
            everyone = node_verdicts(verdict, last, snapshot, len(snapshot))
        own = next((each for each in everyone if each.node == node), None)
        relaxed = kept.relaxed if kept is not None else decision.relaxed
        return _told(
            instance,
            kept,
            request,
            summary=_placed_summary(node, profile.ties, scores, own),
            steps=tuple(steps),
            form=_form_name(request, instance.spec.variant),
            forms=forms,
            nodes=tuple(everyone[:NODES_MOST]) if nodes else (),
            relaxed=relaxed,
            chosen_now=decision.node,
            scores=tuple(scores),
            versions=profile.versions,
            since=tuple(self._since(node, decision, scores, kept, profile)),
        )

    def _since(
        self, node: str, decision: Decision, scores: Sequence[NodeScore], kept: DecisionSpec | None, profile: Profile
    ) -> list[str]:
        if kept is None:
            return ["the decision itself is not kept: the scores are those of now, without this instance"]
        said = []
        now = {each.node: each.total for each in scores}
        then = {each.node: each.total for each in kept.best}
        if node in now and node in then and now[node] != then[node]:
            said.append(f"{node} had {then[node]} points when it was chosen, and has {now[node]} now")
        gone = [each for each in then if each not in self._board.nodes]
        if gone:
            said.append(f"{', '.join(gone)} {'is' if len(gone) == 1 else 'are'} gone")
        come = [each.meta.name for each in self._board.nodes.values() if each.meta.created_at > kept.at]
        if come:
            named = ", ".join(sorted(come)[:3]) + (f" and {len(come) - 3} more" if len(come) > 3 else "")
            said.append(f"{named} {'has' if len(come) == 1 else 'have'} come")
        if kept.profile != profile.name:
            said.append(f"the profile was {kept.profile}, and is {profile.name} now")
        if kept.versions != profile.versions:
            said.append(f"the plugins were {', '.join(kept.versions) or 'others'}")
        if kept.form and decision.node and decision.request is not None and not decision.request.shape.variant:
            said.append(f"the main form would have a place on {decision.node} now")
        if kept.relaxed and not decision.relaxed and decision.node:
            said.append(f"{' and '.join(f'`{rule}`' for rule in kept.relaxed)} could be kept now")
        return said


def _told(
    instance: Instance,
    kept: DecisionSpec | None,
    request: PlacementRequest | None = None,
    *,
    summary: str,
    **more: object,
) -> Explanation:
    fields: dict[str, object] = dict(more)
    if request is not None:
        fields |= {"profile": request.profile, "priority": request.priority}
    return Explanation(
        instance=instance.meta.name,
        namespace=instance.meta.namespace,
        workload=instance.spec.workload,
        phase=instance.phase.value,
        node=instance.spec.node,
        ports=instance.spec.ports or {},
        said=instance.status.message if not instance.spec.node else "",
        decision=kept,
        summary=summary,
        **fields,  # type: ignore[arg-type]
    )


def _form_name(request: PlacementRequest, variant: int) -> str:
    """Empty where there is only one."""
    return request.shape.form(variant).form_name if request.shape.alternatives else ""


def _waiting_summary(instance: Instance, decision: Decision, profile: Profile) -> str:
    if not decision.node:
        return decision.message
    said = f"it fits on {decision.node} now; the scheduler has not come to it yet, or pauses after an earlier try"
    if instance.status.message:
        said += f" that found: {instance.status.message}"
    if profile.permits:
        said += f"; or it is held back by {' or '.join(each.name for each in profile.permits)}"
    return said


_BETWEEN_EQUALS: dict[Ties, str] = {
    "spread": "a hash of the names decides between equals",
    "first": "of equals the first by name is taken",
}


def _placed_summary(node: str, ties: Ties, scores: Sequence[NodeScore], own: NodeVerdict | None) -> str:
    if own is None:
        return f"it is on {node}, a node that is not known any more"
    if not own.fits:
        why = f" ({own.why})" if own.why else ""
        return f"it is on {node}, where it would not be placed now: {own.plugin}{why}"
    totals = {each.node: each.total for each in scores}
    others = [each for each in scores if each.node != node]
    if not others:
        return f"it is on {node}, the only node that fits"
    best = others[0]
    if totals[node] > best.total:
        return f"it is on {node}, the best of those that fit, {totals[node] - best.total} points before {best.node}"
    if totals[node] == best.total:
        return f"it is on {node}; {best.node} has as many points, and {_BETWEEN_EQUALS[ties]}"
    return f"it is on {node}; {best.node} would be better by {best.total - totals[node]} points as things stand now"
