"""Renewal of credentials: at the configured age, and well before they expire."""

from __future__ import annotations

import math

import pytest

from mandor.api.auth import make_token
from mandor.api.renewal import seconds_left
from mandor.model.record import Token, ends_soon

NOW = 1_000_000.0
DAY = 86_400.0


def token(*, age: float = 0.0, lasts: float | None = None) -> Token:
    made = NOW - age
    found, _ = make_token("node", "node:n1", expires_at=made + lasts if lasts is not None else 0.0)
    return found.stamped(version=1, uid="u", created_at=made)


@pytest.mark.parametrize(
    ("age", "lasts", "most", "left"),
    [
        (0, None, 30 * DAY, 30 * DAY),
        (10 * DAY, None, 30 * DAY, 20 * DAY),
        (40 * DAY, None, 30 * DAY, 0),
        (0, 3 * DAY, 30 * DAY, 2 * DAY),
        (0, 300 * DAY, 30 * DAY, 30 * DAY),
        (0, 3 * DAY, math.inf, 2 * DAY),
        (10 * DAY, None, math.inf, math.inf),
    ],
)
def test_the_age_and_the_end_decide(age: float, lasts: float | None, most: float, left: float) -> None:
    assert seconds_left(token(age=age, lasts=lasts), NOW, most, chance=0) == pytest.approx(left)


def test_those_that_were_made_together_are_spread_towards_earlier() -> None:
    found = [seconds_left(token(), NOW, 10 * DAY, chance=each / 10) for each in range(11)]
    assert found == sorted(found, reverse=True)
    assert found[0] == 10 * DAY
    assert found[-1] == 9 * DAY


def test_one_that_is_being_made_is_new() -> None:
    made, _ = make_token("node", "node:n1")
    assert seconds_left(made, NOW, DAY, chance=0) == DAY


def test_a_nodes_own_ends_soon_only_if_it_was_not_renewed_when_it_was_due() -> None:
    due = 3 * DAY - seconds_left(token(lasts=3 * DAY), NOW, math.inf, chance=0)
    assert not ends_soon("node", due, 3 * DAY)
    assert ends_soon("node", due / 4, 3 * DAY)
    assert ends_soon("operator", due, 3 * DAY)
    assert not ends_soon("operator", math.inf, math.inf)
