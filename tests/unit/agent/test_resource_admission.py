"""The last line of defence."""

from __future__ import annotations

import pytest

from mandor.agent.resource_admission import ResourceAdmission
from mandor.model.resources import Resources


def test_what_fits_comes_in_once_and_what_does_not_is_refused() -> None:
    admission = ResourceAdmission(Resources(1000, 100))
    assert not admission.admit("a", Resources(600, 10)).refusal
    assert not admission.admit("a", Resources(600, 10)).refusal
    assert admission.allocated == Resources(600, 10)
    assert "cpu 400m" in admission.admit("b", Resources(500, 10)).refusal
    assert not admission.admit("c", Resources(400, 90)).refusal


def test_what_can_never_fit_is_refused_though_others_are_leaving() -> None:
    admission = ResourceAdmission(Resources(1000, 100))
    admission.add_running("a", Resources(1000, 100))
    admission.mark_stopping("a")
    assert admission.admit("b", Resources(2000, 0)).refusal


def test_room_that_is_about_to_be_free_is_waited_for() -> None:
    admission = ResourceAdmission(Resources(1000, 100))
    admission.add_running("a", Resources(1000, 100))
    admission.mark_stopping("a")
    answer = admission.admit("b", Resources(1000, 0))
    assert (answer.refusal, bool(answer.wait)) == ("", True)
    assert admission.release("a")
    assert admission.admit("b", Resources(1000, 0)) == admission.admit("b", Resources(1000, 0))
    assert not admission.release("a")


def test_what_runs_is_kept_even_if_the_room_has_shrunk() -> None:
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
def test_every_resource_is_kept_to_in_the_same_way(share: Resources) -> None:
    admission = ResourceAdmission(Resources(1000, 1000, 1000, {"gpu": 10}))
    assert not admission.admit("a", share).refusal
    assert admission.admit("b", share).refusal, "there is no second one of it"
    admission.mark_stopping("a")
    assert admission.admit("b", share).wait, "what stops still holds it"
    admission.release("a")
    assert not admission.admit("b", share).refusal
