"""Finds the node where an instance would satisfy all its rules, or run in a preferred form."""

from collections.abc import Mapping

from msgspec.structs import replace

from mandor.model.instance import Instance
from mandor.placement.cycle import decide
from mandor.placement.decision import Decision
from mandor.placement.fast import FEW_NODES, FastDecider
from mandor.placement.framework.cycle_state import CycleState
from mandor.placement.framework.profile import Profile
from mandor.placement.framework.request import PlacementRequest
from mandor.placement.framework.runtime import PluginFault, run_filters
from mandor.placement.framework.watch import Unwatched, Watch
from mandor.placement.movable import relaxed
from mandor.placement.table import Table

_FAST = FastDecider(few_nodes=FEW_NODES)


def second_best(instance: Instance) -> bool:
    """Return whether the instance lacks a rule, or does not run in its main form."""
    return bool(instance.spec.variant or relaxed(instance))


def destination(
    instance: Instance,
    request: PlacementRequest,
    table: Table,
    profiles: Mapping[str, Profile],
    watch: Watch | None = None,
) -> str:
    """Return the node where the instance satisfies all its rules in the same or a preferred form, while the old
    instance still runs; empty if there is none, or if its own node does so by now."""
    profile, watch = profiles.get(request.profile), watch or Unwatched()
    if profile is None:
        return ""
    request = replace(request, pin="")  # the pin of an earlier move no longer applies
    spec = instance.spec
    forms = request.forms[: spec.variant + 1]
    try:
        with table.trial():
            table.drop_allocation(instance.key)
            lacking = bool(relaxed(instance)) and spec.node not in _keeping(profile, forms[-1], table, watch)
        better = [
            form for form in forms if (lacking or form is not forms[-1]) and _keeping(profile, form, table, watch)
        ]
        if not better:
            return _by_preemption(profile, forms[-1], spec.node, table, watch) if lacking else ""
        decision = _decided(profile, better[0], table, watch)
    except PluginFault:
        return ""  # the scheduler meets the same fault and reports it
    finally:
        watch.end()
    chosen = decision.request
    if not decision.node or chosen is None:
        return ""
    return decision.node if chosen.shape.variant < spec.variant or decision.node != spec.node else ""


def _by_preemption(profile: Profile, request: PlacementRequest, here: str, table: Table, watch: Watch) -> str:
    """Return the node where the instance satisfies all its rules by preempting others, if it prefers that to relaxing a
    rule; empty if there is none."""
    if not request.shape.preempt_first:
        return ""
    decision = _decided(profile, request, table, watch)
    return decision.nominated if decision.victims and decision.nominated != here else ""


def _decided(profile: Profile, request: PlacementRequest, table: Table, watch: Watch) -> Decision:
    return decide(profile, request, table.snapshot(), watch=watch, fast=_FAST, all_rules=True)


def _keeping(profile: Profile, request: PlacementRequest, table: Table, watch: Watch) -> set[str]:
    nodes = table.snapshot()
    feasible = run_filters(profile, CycleState(), request, nodes, watch).feasible
    return {nodes.nodes[int(slot)].meta.name for slot in feasible.nonzero()[0]}
