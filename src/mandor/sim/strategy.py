"""Strategies: the same work with other strengths and other priorities."""

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from mandor.errors import Invalid
from mandor.lib.words import did_you_mean
from mandor.model.meta import Object
from mandor.model.placement import Apart, Near, Placement, Pool, Spread, Strength, Where
from mandor.model.workload import Workload
from mandor.sim.scenario import Strategy

R = TypeVar("R", Where, Near, Apart, Spread, Pool)


def revised(objects: Sequence[Object], strategy: Strategy) -> list[Object]:
    """The objects as this strategy has them."""
    return [_revised(each, strategy) if isinstance(each, Workload) else each for each in objects]


def check_names(name: str, strategy: Strategy, workloads: Sequence[str]) -> None:
    for key, given in (("strengths", strategy.strengths), ("priorities", strategy.priorities)):
        for each in given:
            if each not in workloads:
                hint = did_you_mean(each, workloads)
                raise Invalid(f"strategy {name}, {key}: there is no workload {each!r}", hint=hint)


def _revised(workload: Workload, strategy: Strategy) -> Workload:
    strength = strategy.strengths.get(workload.meta.name) or strategy.strength
    spec = workload.spec
    if strength is not None:
        groups = {
            name: msgspec.structs.replace(group, placement=_placed(group.placement, strength))
            for name, group in spec.groups.items()
        }
        spec = msgspec.structs.replace(spec, groups=groups)
    if workload.meta.name in strategy.priorities:
        spec = msgspec.structs.replace(spec, priority=strategy.priorities[workload.meta.name])
    return workload.changed(spec=spec)


def _placed(placement: Placement, strength: Strength) -> Placement:
    pool = placement.pool
    return msgspec.structs.replace(
        placement,
        pool=pool if pool is None else _with(pool if isinstance(pool, Pool) else Pool(pool), strength),
        where=tuple(_with(each, strength) for each in placement.where),
        near=tuple(_with(each, strength) for each in placement.near),
        apart=tuple(_with(each, strength) for each in placement.apart),
        spread=tuple(_with(each, strength) for each in placement.spread),
    )


def _with(rule: R, strength: Strength) -> R:
    if rule.strength == strength:
        return rule
    if isinstance(rule, Spread):
        return msgspec.structs.replace(rule, strength=strength)
    return msgspec.structs.replace(rule, strength=strength, weight=None)
