"""Explains why an instance is pending, why it is on its node, and the state of a whole workload."""

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
from mandor.placement.forecast import decided, gate_reason
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault
from mandor.placement.framework.tie_break import Ties
from mandor.placement.framework.watch import Watch
from mandor.placement.gang_outcome import GangOutcome, decide_gang
from mandor.placement.remedy import Remedy, remedies

NODES_MOST = 1000
"""Nodes with a verdict of their own in an explanation."""
EACH_MOST = 8
"""Instances of a workload that are explained, one for all equal ones."""


class Explanation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why an instance has no node, or has the one it has."""

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
    """Chosen ports of the node, by name."""
    said: str = ""
    """The scheduler's last message about the instance."""
    steps: tuple[Step, ...] = ()
    """The relaxation steps: with all rules, then with one soft rule less at a time."""
    form: str = ""
    """The current or the next form of the instance, in a group with `alternatives`."""
    forms: tuple[FormStep, ...] = ()
    """The forms of a group with `alternatives`, in the order in which they are tried."""
    nodes: tuple[NodeVerdict, ...] = ()
    """Verdicts per node, if requested."""
    remedies: tuple[Remedy, ...] = ()
    """Changes that would let the instance run, the smallest first; each was tried on the model."""
    nominated: str = ""
    """The node where room is held for the instance, or would be."""
    victims: tuple[str, ...] = ()
    """Instances that would be preempted for that."""
    relaxed: tuple[str, ...] = ()
    """Soft rules that are given up."""
    chosen_now: str = ""
    """The node that a decision would choose now, without the instance itself."""
    scores: tuple[NodeScore, ...] = ()
    """Scores of the best nodes and of the instance's own node, as of now."""
    versions: tuple[str, ...] = ()
    decision: DecisionSpec | None = None
    """The stored decision, if there is one."""
    since: tuple[str, ...] = ()
    """Changes since the decision."""
    machines: tuple[str, ...] = ()
    """Sentences about machines that were ordered, and about orders that fail; only for a pending instance."""


class WorkloadExplanation(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The nodes of a workload's instances, and an explanation of each kind of them."""

    workload: str
    namespace: str
    summary: str
    pending: int = 0
    nodes: dict[str, int] = {}
    """Number of instances by node."""
    instances: tuple[Explanation, ...] = ()
    """One explanation for all equal instances, the pending ones first."""


class Explainer:
    """Explains instances on a cluster model, which is unchanged after each call."""

    def __init__(
        self,
        model: ClusterModel,
        profiles: Mapping[str, Profile],
        *,
        consult: Consult,
        watch: Watch,
        sees: Callable[[str], bool] = lambda namespace: True,
    ) -> None:
        """`sees` returns whether the user may see a namespace; instances in others are not named."""
        self._model = model
        self._profiles = profiles
        self._consult = consult
        self._watch = watch
        self._sees = sees

    def workload(self, workload: Workload, kept: Mapping[str, DecisionSpec], *, nodes: bool) -> WorkloadExplanation:
        instances = sorted(self._model.of(workload.key), key=lambda each: (each.spec.group, each.spec.index))
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
        elsewhere = self._refused_nodes(workload) if workload.spec.per_node else ""
        if not placed and not waiting:
            wanted = sum(group.count for group in workload.spec.groups.values())
            return elsewhere or "no instance needs a node" + (": replicas is 0" if not wanted else "")
        text = f"{placed} placed on {nodes} node{'' if nodes == 1 else 's'}"
        text += f", {waiting} pending" if waiting else ""
        return f"{text}; {elsewhere}" if elsewhere else text

    def _refused_nodes(self, workload: Workload) -> str:
        """Explain which nodes a workload for every node does not run on."""
        groups, nodes = workload.spec.groups, self._model.nodes.values()
        found = {name: DaemonNodes.of(group, nodes).refusal for name, group in groups.items()}
        return "; ".join(f"{name}: {why}" if len(groups) > 1 else why for name, why in found.items() if why)

    def instance(self, instance: Instance, kept: DecisionSpec | None, *, nodes: bool) -> Explanation:
        stands = placement_state(instance)
        if stands is PlacementState.NEITHER:
            raise Invalid(
                f"{instance.meta.name} needs no node: it is {instance.phase.value.lower()}"
                + (" and stopping" if instance.spec.stop is not None and not instance.phase.over else ""),
                hint=f"`mandor describe instance {instance.meta.name}` shows its last state",
            )
        if kept is not None and kept.uid != instance.meta.uid:
            kept = None
        request = self._model.request(instance)
        if request is None:
            return _explanation(
                instance, kept, summary="its release or its workload was deleted, so its requirements are unknown"
            )
        profile = self._profiles.get(request.profile)
        if profile is None:
            names = ", ".join(sorted(self._profiles))
            return _explanation(
                instance, kept, request, summary=f"there is no profile {request.profile}; the profiles are {names}"
            )
        try:
            if stands is PlacementState.PLACED:
                return self._placed(instance, request, profile, kept, nodes=nodes)
            return self._waiting(instance, request, profile, kept, nodes=nodes)
        except PluginFault as fault:
            return _explanation(instance, kept, request, summary=str(fault))

    # Pending instances.

    def _waiting(
        self, instance: Instance, request: PlacementRequest, profile: Profile, kept: DecisionSpec | None, *, nodes: bool
    ) -> Explanation:
        together = None
        if gate_reason(profile, request) is None:
            together = decide_gang(self._model, profile, request, self._consult, self._watch)
        with self._model.table.trial():
            held = self._model.held(instance.key)
            if held:  # its own nomination does not count against it
                self._model.table.drop_allocation(instance.key)
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
        """`together`: the decision about its gang, if the gang is decided as a whole."""
        table = self._model.table
        consulted = self._consult(profile, request, table.snapshot()) if profile.consults else None
        steps, verdict, relaxed_request = steps_of(profile, request, table.snapshot(), consulted, self._watch)
        # Now, because a verdict refers to the table, which is changed below.
        each_node = node_verdicts(verdict, relaxed_request, table.snapshot(), NODES_MOST) if nodes else []
        if together is None:
            decision = decided(profile, request, table.snapshot(), self._consult, self._watch, held=held)
            victims, message = decision.victims, ""
        else:
            decision, victims, message = together.about(request.key), together.victims, together.message
        forms = self._forms(profile, request, decision.request or widest(request), consulted)
        helped = decision.node or decision.fault or decision.nominated
        remedies_found = [] if helped else self._remedies(profile, request)
        return _explanation(
            instance,
            kept,
            request,
            summary=message or _waiting_summary(instance, decision, profile),
            steps=tuple(steps),
            form=_form_name(request, decision.request.shape.variant) if decision.request is not None else "",
            forms=forms,
            nodes=tuple(each_node),
            remedies=tuple(remedies_found),
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
        return tuple(forms_of(profile, request, rules, self._model.table.snapshot(), consulted, self._watch))

    def _remedies(self, profile: Profile, request: PlacementRequest) -> list[Remedy]:
        stopping = [
            each.key
            for each in self._model.instances.values()
            if each.spec.stop is not None and placement_state(each) is PlacementState.PLACED
        ]
        return remedies(
            profile,
            request,
            self._model.table,
            stopping=stopping,
            may_end=lambda key: self._sees(key.namespace),
            watch=self._watch,
        )

    # Placed instances.

    def _placed(
        self, instance: Instance, request: PlacementRequest, profile: Profile, kept: DecisionSpec | None, *, nodes: bool
    ) -> Explanation:
        table, node = self._model.table, instance.spec.node
        with table.trial():
            table.drop_allocation(instance.key)
            snapshot = table.snapshot()
            decision = decided(profile, request, snapshot, self._consult, self._watch)
            consulted = self._consult(profile, request, snapshot) if profile.consults else None
            form = request.forms[min(instance.spec.variant, len(request.shape.alternatives))]
            rules = decision.request or request
            relaxed_request = structs.replace(rules, shape=form.shape)
            scores = score_table(
                profile, relaxed_request, snapshot, also=(node,), consulted=consulted, watch=self._watch
            )
            steps, verdict, last = steps_of(profile, form, snapshot, consulted, self._watch)
            forms = self._forms(profile, request, rules, consulted)
            everyone = node_verdicts(verdict, last, snapshot, len(snapshot))
        own = next((each for each in everyone if each.node == node), None)
        relaxed = kept.relaxed if kept is not None else decision.relaxed
        return _explanation(
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
            return ["the decision is not stored; the scores are as of now, without this instance"]
        changes = []
        now = {each.node: each.total for each in scores}
        then = {each.node: each.total for each in kept.best}
        if node in now and node in then and now[node] != then[node]:
            changes.append(f"{node} scored {then[node]} points when it was chosen and scores {now[node]} now")
        gone = [each for each in then if each not in self._model.nodes]
        if gone:
            changes.append(f"{', '.join(gone)} {'was' if len(gone) == 1 else 'were'} removed")
        come = [each.meta.name for each in self._model.nodes.values() if each.meta.created_at > kept.at]
        if come:
            named = ", ".join(sorted(come)[:3]) + (f" and {len(come) - 3} more" if len(come) > 3 else "")
            changes.append(f"{named} {'was' if len(come) == 1 else 'were'} added")
        if kept.profile != profile.name:
            changes.append(f"the profile was {kept.profile} and is {profile.name} now")
        if kept.versions != profile.versions:
            changes.append(f"the plugins were {', '.join(kept.versions) or 'different'}")
        if kept.form and decision.node and decision.request is not None and not decision.request.shape.variant:
            changes.append(f"the main form would fit on {decision.node} now")
        if kept.relaxed and not decision.relaxed and decision.node:
            changes.append(f"{' and '.join(f'`{rule}`' for rule in kept.relaxed)} could be kept now")
        return changes


def _explanation(
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
    """Return the name of a form; empty in a group without alternatives."""
    return request.shape.form(variant).form_name if request.shape.alternatives else ""


def _waiting_summary(instance: Instance, decision: Decision, profile: Profile) -> str:
    if not decision.node:
        return decision.message
    text = f"fits on {decision.node} now, and has not been tried again yet"
    if instance.status.message:
        text += f"; the last try found: {instance.status.message}"
    if profile.permits:
        text += f"; it may also wait for a permit of {' or '.join(each.name for each in profile.permits)}"
    return text


_TIE_BREAKS: dict[Ties, str] = {
    "spread": "a hash of the names breaks the tie",
    "first": "the first by name is chosen",
}


def _placed_summary(node: str, ties: Ties, scores: Sequence[NodeScore], own: NodeVerdict | None) -> str:
    if own is None:
        return f"placed on {node}, which is not in the cluster any more"
    if not own.fits:
        why = f" ({own.why})" if own.why else ""
        return f"placed on {node}, but would not be placed there now: {own.plugin}{why}"
    totals = {each.node: each.total for each in scores}
    others = [each for each in scores if each.node != node]
    if not others:
        return f"placed on {node}, the only node that fits"
    best = others[0]
    if totals[node] > best.total:
        return f"placed on {node}, which has the highest score, {totals[node] - best.total} points ahead of {best.node}"
    if totals[node] == best.total:
        return f"placed on {node}; {best.node} has the same score, and {_TIE_BREAKS[ties]}"
    return f"placed on {node}; {best.node} would score {best.total - totals[node]} points more now"
