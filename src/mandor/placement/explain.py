"""Details of a decision: refusals by plugin, relaxation steps, verdicts per node and scores."""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, structs

from mandor.model.decision import NodeScore, Part
from mandor.placement.cycle import relaxation_steps
from mandor.placement.decision import Decision
from mandor.placement.framework.cycle_state import CycleState, of_form
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import Scored, Verdict, run_filters, run_scores, why_of
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.tie_break import bits_of
from mandor.placement.framework.watch import Unwatched, Watch

BEST = 5
"""Nodes shown with their scores."""


class Refusal(Struct, frozen=True, omit_defaults=True):
    """A plugin and the number of nodes that it was the first to refuse."""

    plugin: str
    nodes: int
    why: str = ""


class Step(Struct, frozen=True, omit_defaults=True):
    """A relaxation step and the number of nodes that fit."""

    fits: int
    gives_up: str = ""
    """The rule that this step gives up; empty in the first step."""
    refusals: tuple[Refusal, ...] = ()


class FormStep(Struct, frozen=True, omit_defaults=True):
    """One form of a group with `alternatives`: the number of nodes that fit, and the refusals of the others."""

    form: str
    fits: int
    message: str = ""


class NodeVerdict(Struct, frozen=True, omit_defaults=True):
    """The verdict on one node."""

    node: str
    fits: bool
    plugin: str = ""
    """The first plugin that refused the node."""
    why: str = ""


def steps_of(
    profile: Profile,
    request: PlacementRequest,
    nodes: Snapshot,
    consulted: Mapping[str, object] | None = None,
    watch: Watch | None = None,
) -> tuple[list[Step], Verdict, PlacementRequest]:
    """Return the relaxation steps until a node fits, with the verdict and the request of the last one."""
    watch = watch or Unwatched()
    try:
        return _steps(profile, request, nodes, consulted, watch)
    finally:
        watch.end()


def _steps(
    profile: Profile, request: PlacementRequest, nodes: Snapshot, consulted: Mapping[str, object] | None, watch: Watch
) -> tuple[list[Step], Verdict, PlacementRequest]:
    steps: list[Step] = []
    given_up: tuple[str, ...] = ()
    for relaxed_request, relaxed in relaxation_steps(
        request, avoided=nodes.topology.avoided(request.identity), pressed=nodes.under_pressure(request.avoid)
    ):
        verdict = run_filters(
            profile, CycleState(of_form(consulted, request.shape.variant)), relaxed_request, nodes, watch
        )
        refusals = tuple(
            Refusal(plugin.name, int(refused.sum()), why_of(plugin, relaxed_request, nodes, refused))
            for plugin, refused in verdict.refusals
        )
        steps.append(Step(int(verdict.feasible.sum()), "".join(relaxed[len(given_up) :]), refusals))
        given_up = relaxed
        if verdict.feasible.any():
            break
    return steps, verdict, relaxed_request


def forms_of(
    profile: Profile,
    request: PlacementRequest,
    rules: PlacementRequest,
    nodes: Snapshot,
    consulted: Mapping[str, object] | None = None,
    watch: Watch | None = None,
) -> list[FormStep]:
    """Return the result for each form of a request, with the rules of `rules`; empty without alternatives."""
    watch = watch or Unwatched()
    found = []
    for form in request.forms if request.shape.alternatives else ():
        shape = form.shape
        relaxed_request = structs.replace(rules, shape=shape)
        try:
            verdict = run_filters(profile, CycleState(of_form(consulted, shape.variant)), relaxed_request, nodes, watch)
            found.append(
                FormStep(shape.form_name, int(verdict.feasible.sum()), verdict.explain(relaxed_request, nodes))
            )
        finally:
            watch.end()
    return found


def node_verdicts(verdict: Verdict, request: PlacementRequest, nodes: Snapshot, most: int) -> list[NodeVerdict]:
    """Return the verdict on each node, ordered by name, with the refusing plugin's reason."""
    refusals_by_slot: dict[int, tuple[str, str]] = {}
    for plugin, refused in verdict.refusals:
        for slot in refused.nonzero()[0]:
            alone = np.zeros(len(nodes), dtype=np.bool_)
            alone[slot] = True
            refusals_by_slot[int(slot)] = plugin.name, why_of(plugin, request, nodes, alone).removeprefix("1 ")
    by_name = sorted(enumerate(nodes.nodes), key=lambda item: item[1].meta.name)[:most]
    return [
        NodeVerdict(node.meta.name, slot not in refusals_by_slot, *refusals_by_slot.get(slot, ("", "")))
        for slot, node in by_name
    ]


def score_table(
    profile: Profile,
    request: PlacementRequest,
    nodes: Snapshot,
    *,
    also: Sequence[str] = (),
    most: int = BEST,
    consulted: Mapping[str, object] | None = None,
    watch: Watch | None = None,
) -> list[NodeScore]:
    """Return the scores of the best nodes that fit, the best first, and of the nodes in `also`.

    Rules that were given up must be given up in `request`.
    """
    watch = watch or Unwatched()
    state = CycleState(of_form(consulted, request.shape.variant))
    parts: list[Scored] = []
    try:
        verdict = run_filters(profile, state, request, nodes, watch)
        among = verdict.feasible.nonzero()[0]
        if not len(among):
            return []
        totals = run_scores(profile, state, request, nodes, verdict.feasible, among, watch, parts)
    finally:
        watch.end()
    # Nodes with equal scores are in the order in which they would be chosen.
    ranks = (totals << bits_of(len(nodes))) + profile.tie_breaks(request, nodes, among)
    order = ranks.argsort()[::-1]
    named = np.isin(among[order], [nodes.slots[name] for name in also if name in nodes.slots])
    named[:most] = True
    places = [int(place) for place in order[named]]
    return [
        NodeScore(nodes.nodes[int(among[place])].meta.name, int(totals[place]), _parts(parts, place))
        for place in places
    ]


def _parts(parts: Sequence[Scored], place: int) -> tuple[Part, ...]:
    return tuple(Part(each.plugin.name, each.weight, int(each.raw[place]), int(each.scores[place])) for each in parts)


def best_nodes(
    profile: Profile,
    decision: Decision,
    nodes: Snapshot,
    consulted: Mapping[str, object] | None = None,
    watch: Watch | None = None,
) -> list[NodeScore]:
    """Return the scores behind a decision that is not counted yet: the chosen node first, then the best others."""
    if decision.request is None:
        return []
    found = score_table(profile, decision.request, nodes, also=(decision.node,), consulted=consulted, watch=watch)
    return sorted(found, key=lambda each: each.node != decision.node)[:BEST]
