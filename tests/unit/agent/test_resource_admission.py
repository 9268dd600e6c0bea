"""Admission of instances by the resources of the node."""

from __future__ import annotations

import pytest

from mandor.agent.resource_admission import ResourceAdmission
from mandor.model.resources import Resources


def test_an_instance_that_fits_is_admitted_once_and_others_are_refused() -> None:
    admission = ResourceAdmission(Resources(1000, 100))
    assert not admission.admit("a", Resources(600, 10)).refusal
    assert not admission.admit("a", Resources(600, 10)).refusal
    assert admission.allocated == Resources(600, 10)
    assert "cpu 400m" in admission.admit("b", Resources(500, 10)).refusal
    assert not admission.admit("c", Resources(400, 90)).refusal


def test_a_request_over_the_capacity_is_refused_even_if_others_are_stopping() -> None:
    admission = ResourceAdmission(Resources(1000, 100))
    admission.add_running("a", Resources(1000, 100))
    admission.mark_stopping("a")
    assert admission.admit("b", Resources(2000, 0)).refusal


def test_an_instance_waits_for_resources_of_a_stopping_one() -> None:
    admission = ResourceAdmission(Resources(1000, 100))
    admission.add_running("a", Resources(1000, 100))
    admission.mark_stopping("a")
    answer = admission.admit("b", Resources(1000, 0))
    assert (answer.refusal, bool(answer.wait)) == ("", True)
    assert admission.release("a")
    assert admission.admit("b", Resources(1000, 0)) == admission.admit("b", Resources(1000, 0))
    assert not admission.release("a")


def test_a_running_instance_is_counted_even_if_the_capacity_shrinks() -> None:
    admission = ResourceAdmission(Resources(100, 100))
    admission.add_running("a", Resources(500, 0))
    assert admission.admit("b", Resources(1, 0)).refusal
    assert not admission.admit("c", Resources()).refusal
    assert not admission.admit("d", Resources(0, 50)).refusal


def test_devices_count() -> None:
    admission = ResourceAdmission(Resources(1000, 100, devices={"gpu": 1}))
    assert not admission.admit("a", Resources(1, 1, devices={"gpu": 1})).refusal
    assert admission.admit("b", Resources(1, 1, devices={"gpu": 1})).refusal


@pytest.mark.req("S3-12", "S3-34")
@pytest.mark.parametrize(
    "share",
    [
        Resources(cpu_milli=600),
        Resources(memory_bytes=600),
        Resources(disk_bytes=600),
        Resources(devices={"gpu": 6}),
    ],
    ids=["cpu", "memory", "disk", "devices"],
)
def test_every_resource_is_limited(share: Resources) -> None:
    admission = ResourceAdmission(Resources(1000, 1000, 1000, {"gpu": 10}))
    assert not admission.admit("a", share).refusal
    assert admission.admit("b", share).refusal, "there is no second one of it"
    admission.mark_stopping("a")
    assert admission.admit("b", share).wait, "what stops still holds it"
    admission.release("a")
    assert not admission.admit("b", share).refusal
