"""One decision: finds the node for an instance, or the reason why there is none."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

from mandor.lib.steps import Steps, at_once
from mandor.model.placement import PlacementRule
from mandor.placement.decision import NOMINATED, NOW, Decision, Moment, broken_off
from mandor.placement.fast import FAST, FastDecider
from mandor.placement.framework.column import Mask
from mandor.placement.framework.cycle_state import CycleState, of_form
from mandor.placement.framework.dry_run import DryRun
from mandor.placement.framework.identity import NO_IDENTITY, names_shown
from mandor.placement.framework.incremental import Reach, reach_of
from mandor.placement.framework.occupancy import Occupancy, PlacedInstance
from mandor.placement.framework.points import CAPACITY_EVENTS, ClusterEvent, Nomination, Plugin
from mandor.placement.framework.post_filters import ProfileFilters, run_post_filters
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault, Verdict, run_filters, run_scores
from mandor.placement.framework.snapshot import Snapshot
from mandor.placement.framework.watch import Overrun, Unwatched, Watch

AVOIDED = "avoid nodes where it failed"
DISLIKED = "others want to be apart from it"
"""Rules that can be given up besides the author's `should` rules, as shown in `relaxed`."""


GOING_MOST = 512
"""Stopping instances considered when a request may wait for them, the soonest first."""


def decide(
    profile: Profile,
    request: PlacementRequest,
    nodes: Snapshot,
    *,
    nominated: str = "",
    consulted: Mapping[str, object] | None = None,
    watch: Watch | None = None,
    moment: Moment | Callable[[], Moment] = NOW,
    fast: FastDecider | None = FAST,
    all_rules: bool = False,
) -> Decision:
    """Decide with all rules; then with one soft rule less at a time, until a node fits; then by preemption.

    In each of these steps the main form is tried first, then its alternatives. `nominated`: the node where room is held
    for the instance, which it gets if it fits there. `moment`: a function is called only if the time matters. `fast`:
    None decides the plain way, with every plugin called for every node; the result is the same. `all_rules`: give up
    no rule, and do not preempt where that would need it; a decision without a node then has no message.
    """
    made = begin(
        profile,
        request,
        nodes,
        nominated=nominated,
        consulted=consulted,
        watch=watch,
        moment=moment,
        fast=fast,
        all_rules=all_rules,
    )
    return made if isinstance(made, Decision) else at_once(made)


def begin(
    profile: Profile,
    request: PlacementRequest,
    nodes: Snapshot,
    *,
    nominated: str = "",
    consulted: Mapping[str, object] | None = None,
    watch: Watch | None = None,
    moment: Moment | Callable[[], Moment] = NOW,
    fast: FastDecider | None = FAST,
    all_rules: bool = False,
) -> Decision | Steps[Decision]:
    """Decide like `decide`, or return the remaining steps of a decision that may take long.

    Between the steps the table is unchanged for others; the steps are void once the table has changed.
    """
    watch = watch or Unwatched()
    try:
        if fast is not None and fast.few_nodes and len(nodes) <= fast.few_nodes:
            fast = None
        if fast is not None:
            made = fast.decide(profile, request, nodes, watch, nominated=nominated, consulted=consulted)
            if made is not None:
                return made
        when = moment if isinstance(moment, Moment) else moment()
        cycle = Cycle(profile, nodes, watch, consulted, nominated, when, fast, all_rules)
    except PluginFault as fault:
        return Decision(request.key, message=str(fault), fault=fault.plugin)
    except Overrun:
        return broken_off(request.key, watch.current)
    finally:
        watch.end()
    steps = _in_steps(cycle, request)
    try:
        next(steps)
    except StopIteration as end:
        decision: Decision = end.value
        return decision
    return steps


def _in_steps(cycle: "Cycle", request: PlacementRequest) -> Steps[Decision]:
    steps = _decide(cycle, request)
    while True:
        try:
            with cycle.unheld(request) if cycle.nominated else nullcontext():
                looks = next(steps)
        except StopIteration as end:
            made: Decision = end.value
            return made
        except PluginFault as fault:
            return Decision(request.key, message=str(fault), fault=fault.plugin)
        except Overrun:
            return broken_off(request.key, cycle.watch.current)
        finally:
            cycle.watch.end()
        yield looks


def _decide(cycle: "Cycle", request: PlacementRequest) -> Steps[Decision]:
    """Try every form in each relaxation step: an alternative form is better than giving up a rule."""
    nodes = cycle.nodes
    steps_down = list(
        relaxation_steps(
            request, avoided=nodes.topology.avoided(request.identity), pressed=nodes.under_pressure(request.avoid)
        )
    )
    offers: list[_Offer] = []
    for index, (relaxed_request, relaxed) in enumerate(steps_down[:1] if cycle.all_rules else steps_down):
        tried: list[_Offer] = []
        for form in relaxed_request.forms:
            state = cycle.state_of(form)
            found = yield from cycle.find(state, form)
            if isinstance(found.node, str):
                return Decision(
                    request.key,
                    found.node,
                    message=_explained(tried, nodes),
                    relaxed=relaxed,
                    request=form,
                    state=state,
                    displaces=found.displaces,
                )
            tried.append(_Offer(form, state, relaxed, found.node))
            waits = yield from cycle.wait(form, _instead(form, request, steps_down[index + 1 :]))
            if waits is not None:
                return waits
        offers += tried
        if request.shape.preempt_first:
            waits = yield from cycle.make_room(tried, tried)
            if waits is not None:
                return waits
    if cycle.all_rules:
        return Decision(request.key, state=tried[0].state)
    if not request.shape.preempt_first:
        waits = yield from cycle.make_room(tried, offers)
        if waits is not None:
            return waits
    # The reason to wait is what the last step lacked, with every soft rule given up.
    refused = _refused(tried)
    worthwhile = retry_on(refused)
    return Decision(
        request.key,
        message=_explained(tried, nodes),
        retry_on=worthwhile,
        blamed=refused,
        by_node=ClusterEvent.NODE_CHANGED in worthwhile and _by_node(tried, nodes),
        state=tried[0].state,
    )


def _instead(
    form: PlacementRequest, request: PlacementRequest, left: Sequence[tuple[PlacementRequest, tuple[str, ...]]]
) -> str:
    """Return what the next step would give up; empty: nothing worth waiting for. `left`: the remaining steps."""
    if form.shape.variant < len(request.shape.alternatives):
        return f"run as {request.shape.form(form.shape.variant + 1).form_name}"
    given_up = left[0][1][-1] if left else AVOIDED
    return f"give up `{given_up}`" if given_up != AVOIDED else ""


class _Offer(NamedTuple):
    """A request in one form, without the rules that are given up in this step."""

    request: PlacementRequest
    state: CycleState
    relaxed: tuple[str, ...]
    verdict: Verdict
    """The plugin that refused each node."""


def _refused(tried: Sequence[_Offer]) -> tuple[Plugin, ...]:
    """Return the plugins that refused any form."""
    return tuple({id(plugin): plugin for each in tried for plugin, _ in each.verdict.refusals}.values())


def _by_node(tried: Sequence[_Offer], nodes: Snapshot) -> bool:
    reaches = (reach_of(plugin, each.request, nodes) for each in tried for plugin, _ in each.verdict.refusals)
    return all(reach is not Reach.CLUSTER for reach in reaches)


def _explained(tried: Sequence[_Offer], nodes: Snapshot, rules: PlacementRequest | None = None) -> str:
    """Explain why these forms do not fit. `rules`: a request whose rules are used instead of theirs."""
    explanations = []
    for each in tried:
        request = each.request if rules is None else structs.replace(rules, shape=each.request.shape)
        explanations.append((each.request.shape, each.verdict.explain(request, nodes)))
    if not explanations or not explanations[0][0].alternatives:
        return "".join(text for _, text in explanations)
    return "; ".join(f"{shape.form_name}: {text}" for shape, text in explanations)


class Found(NamedTuple):
    """The result of a search for a node."""

    node: str | Verdict
    """The node, or the verdict that no node fits."""
    displaces: bool = False
    """The node's room is held for pending instances of lower priority."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """The inputs of one decision, shared by its steps."""

    profile: Profile
    nodes: Snapshot
    watch: Watch
    consulted: Mapping[str, object] | None
    nominated: str
    moment: Moment
    fast: FastDecider | None = FAST
    all_rules: bool = False
    within: Mask | None = None
    """The nodes to consider; None: all."""

    def state_of(self, request: PlacementRequest) -> CycleState:
        return CycleState(of_form(self.consulted, request.shape.variant))

    @contextmanager
    def unheld(self, request: PlacementRequest) -> Iterator[None]:
        """Free the room that is held for the request itself, within this context."""
        occupancy = self.nodes._trials
        with occupancy.trial():
            occupancy.drop_allocation(request.key)
            yield

    def find(self, state: CycleState, request: PlacementRequest) -> Steps[Found]:
        """Find the best node outside the room that is held for other pending instances; if none fits, use the room held
        for those of lower priority."""
        occupancy = self.nodes._trials
        lowest = occupancy.lowest_held()
        if lowest is None:
            return Found(self._find(state, request))
        with self._without_nearness_to_held(request):
            found = self._find(state, request)
        if isinstance(found, str) or lowest >= request.priority:
            return Found(found)
        yield 0  # Room may be held for many.
        with self._without_nearness_to_held(request):
            for _, each in occupancy.held():
                if each.priority < request.priority:
                    occupancy.drop_allocation(each.key)
            return Found(self._find(state, request), displaces=True)

    @contextmanager
    def _without_nearness_to_held(self, request: PlacementRequest) -> Iterator[None]:
        """Hide the identity of pending instances from `near` rules: they may never be placed."""
        occupancy = self.nodes._trials
        with occupancy.trial():
            for node, each in occupancy.held() if request.rules.near else ():
                occupancy.set_allocation(each.key, node, each.shape, NO_IDENTITY, each.terms)
            yield

    def _find(self, state: CycleState, request: PlacementRequest) -> str | Verdict:
        profile, nodes, watch = self.profile, self.nodes, self.watch
        if self.within is None:
            found = find_node(profile, state, request, nodes, watch, nominated=self.nominated, fast=self.fast)
        else:
            found = find_plain(profile, state, request, nodes, watch, nominated=self.nominated, within=self.within)
        watch.end()  # No plugin may be interrupted while the table is restored.
        return found

    def wait(self, request: PlacementRequest, instead: str) -> Steps[Decision | None]:
        """Nominate a node where stopping instances will free room, rather than give up a rule or take another form."""
        occupancy, moment = self.nodes._trials, self.moment
        if moment.patience <= 0 or not instead:
            return None
        going = going_soon(occupancy, moment)
        if not going:
            return None
        yield 0  # Removing all of them takes longer than most decisions.
        with occupancy.trial():
            for _, placed_instance in going:
                occupancy.drop_allocation(placed_instance.key)
            node = at_once(self.find(self.state_of(request), request)).node
        if not isinstance(node, str):
            return None
        there = occupancy.stopping(by=moment.now + moment.patience, among={node})
        names = names_shown((placed_instance.key for _, placed_instance in there), request.key.namespace)
        because = f": {names} will be gone" if names else ""
        return Decision(
            request.key,
            reason=NOMINATED,
            message=f"waits for room on {node} rather than {instead}{because}",
            retry_on=CAPACITY_EVENTS,
            nominated=node,
            again=moment.patience,
            request=request,
        )

    def make_room(self, tried: Sequence[_Offer], offers: Sequence[_Offer]) -> Steps[Decision | None]:
        """Run the PostFilter plugins for each step, those with more rules first; keep a current nomination.

        `tried`: the last step, which explains why no node fits.
        """
        if not self.profile.post_filters:
            return None
        dry_runs = [(self._dry_run(each.request), each) for each in offers]
        for dry_run, offer in dry_runs if self.nominated else ():
            if dry_run.victims_remain():
                return self._nominate(tried, offer, Nomination(self.nominated))
        for dry_run, offer in dry_runs:
            made = yield from run_post_filters(self.profile, offer.state, dry_run, self.watch)
            if made is not None:
                return self._nominate(tried, offer, made)
        return None

    def _dry_run(self, request: PlacementRequest) -> DryRun:
        filters = ProfileFilters(
            self.profile,
            request,
            self.nodes,
            self.watch,
            consulted=of_form(self.consulted, request.shape.variant),
            quick=None if self.fast is None else self.fast.first,
        )
        now, patience = self.moment.now, self.moment.patience
        return DryRun(request, self.nodes, filters, nominated=self.nominated, now=now, patience=patience)

    def _nominate(self, tried: Sequence[_Offer], offer: _Offer, made: Nomination) -> Decision:
        refused = _refused(tried)
        names = names_shown(made.victims, offer.request.key.namespace)
        how = f"takes the place of {names} on {made.node}" if names else f"there will be room on {made.node}"
        return Decision(
            offer.request.key,
            reason=NOMINATED,
            message=f"{_explained(tried, self.nodes, offer.request)}; {how}",
            relaxed=offer.relaxed,
            retry_on=retry_on(refused) | {ClusterEvent.ROOM_FREED},
            blamed=refused,
            nominated=made.node,
            victims=made.victims,
            again=self.moment.patience if self.moment.patience > 0 else None,
            request=offer.request,
            state=offer.state,
        )


def going_soon(occupancy: Occupancy, moment: Moment) -> list[tuple[str, PlacedInstance]]:
    """Return the instances that will have stopped within the patience, with their nodes, the soonest first."""
    return list(occupancy.stopping(by=moment.now + moment.patience, most=GOING_MOST))


def retry_on(refused: Iterable[Plugin]) -> frozenset[ClusterEvent]:
    return frozenset({ClusterEvent.NODE_ADDED}).union(*(plugin.retry_on for plugin in refused))


def find_node(
    profile: Profile,
    state: CycleState,
    request: PlacementRequest,
    nodes: Snapshot,
    watch: Watch,
    *,
    nominated: str = "",
    fast: FastDecider | None = FAST,
) -> str | Verdict:
    """Return the best node with the rules that are left in the request, or the verdict that no node fits."""
    found = None
    if fast is not None:
        found = fast.find(profile, state, request, nodes, watch, nominated=nominated)
    # The plain way also explains why no node fits.
    return found or find_plain(profile, state, request, nodes, watch, nominated=nominated)


def find_plain(
    profile: Profile,
    state: CycleState,
    request: PlacementRequest,
    nodes: Snapshot,
    watch: Watch,
    *,
    nominated: str = "",
    within: Mask | None = None,
) -> str | Verdict:
    """Find a node like `find_node`, with every plugin called for every node. `within`: the nodes to consider."""
    slot = nodes.slots.get(nominated) if nominated else None
    verdict = run_filters(profile, state, request, nodes, watch, None if within is None else within.copy())
    among = verdict.feasible.nonzero()[0]
    if not len(among):
        return verdict
    held = slot is not None and bool(verdict.feasible[slot])
    return nominated if held else _best(profile, state, request, nodes, verdict, among, watch)


def widest(request: PlacementRequest) -> PlacementRequest:
    """Return the request with every soft rule given up: it fits wherever any step fits."""
    for relaxed_request, _ in relaxation_steps(request, avoided=True):
        last = relaxed_request
    return last


def relaxation_steps(
    request: PlacementRequest, *, avoided: bool, pressed: frozenset[str] = frozenset()
) -> Iterator[tuple[PlacementRequest, tuple[str, ...]]]:
    """Yield the request with all its rules, then with one rule less at a time, each with the rules given up.

    First goes the avoidance of nodes where the instance failed, then `apart` rules of other instances (`avoided`),
    then the author's `should` rules from the last to the first. `pressed`: nodes under pressure, which stay avoided.
    """
    relaxed: tuple[str, ...] = ()
    yield request, relaxed
    if request.avoid - pressed:
        request = request.without_avoid(pressed)
        relaxed += (AVOIDED,)
        yield request, relaxed
    if avoided:
        request = request.without_others_should()
        relaxed += (DISLIKED,)
        yield request, relaxed
    while request.dropped < len(request.shape.should):
        request = request.without_last_should()
        relaxed += (shown(request.given_up[0]),)
        yield request, relaxed


def _best(
    profile: Profile,
    state: CycleState,
    request: PlacementRequest,
    nodes: Snapshot,
    verdict: Verdict,
    among: NDArray[np.intp],
    watch: Watch,
) -> str:
    if len(among) > 1:
        totals = run_scores(profile, state, request, nodes, verdict.feasible, among, watch)
        among = among[totals == totals[totals.argmax()]]
    if len(among) > 1:
        among = among[[profile.tie_breaks(request, nodes, among).argmax()]]
    return nodes.nodes[int(among[0])].meta.name


def shown(rule: PlacementRule) -> str:
    return " or ".join(rule.texts)
