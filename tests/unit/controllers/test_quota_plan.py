"""The used amounts of quotas equal a count of every instance."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mandor.controllers.quota_plan import plan
from mandor.lib.quantity import Cpu
from mandor.lib.steps import at_once
from mandor.model.claim import Claim
from mandor.model.instance import Instance
from mandor.model.meta import Meta
from mandor.model.phase import Phase
from mandor.model.quota import Quota, QuotaSpec
from mandor.model.resources import Resources
from tests.scenarios.make import make_instance

KINDS = st.tuples(
    st.sampled_from(["web", "db"]),
    st.sampled_from(["web.1", "web.2"]),
    st.sampled_from([Phase.RUNNING, Phase.PENDING, Phase.FAILED]),
    st.sampled_from([0, 500, 700]),
)


def request(instance: Instance) -> Resources:
    claim = instance.spec.claim
    milli = claim.cpu_milli if claim is not None else 100 * int(instance.spec.release[-1])
    return Resources(milli, 2, 3, {"gpu": 1})


def priority_class(instance: Instance) -> str:
    return "low" if instance.spec.workload == "db" else ""


@given(st.lists(KINDS, max_size=30))
def test_counting_equal_requests_together_equals_counting_each(kinds: list[tuple[str, str, Phase, int]]) -> None:
    instances = []
    for index, (workload, release, phase, claimed) in enumerate(kinds):
        made = make_instance(index, phase, workload=workload, release=release)
        if claimed:
            made = made.changed(
                spec=replace(made.spec, claim=Claim(task="t", pool="p", cpu_milli=claimed, memory_bytes=1))
            )
        instances.append(made)
    quotas = [
        Quota(
            meta=Meta(name=only or "all", namespace="default"),
            spec=QuotaSpec(cpu=Cpu(9), instances=9, devices={"gpu": 1}, priority_class=only),
        )
        for only in (None, "low")
    ]
    found = {each.meta.name: each.status.used for each in at_once(plan(quotas, instances, request, priority_class))}
    for quota in quotas:
        wanted = quota.spec.priority_class
        there = [
            each
            for each in instances
            if each.spec.node and not each.phase.over and (wanted is None or priority_class(each) == wanted)
        ]
        used = found[quota.meta.name]
        assert used.instances == len(there)
        assert used.cpu == Cpu(sum(request(each).cpu_milli for each in there))
        assert used.devices == {"gpu": len(there)}
