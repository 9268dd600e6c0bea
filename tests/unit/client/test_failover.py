"""Fail-over: the order of servers, and which requests are sent again."""

import pytest

from mandor.client.failover import PAUSE_SECONDS_MOST, TRIES, ServerList, pause_before, repeatable
from mandor.errors import TooMany, Unavailable


def test_a_server_that_is_left_is_tried_last() -> None:
    servers = ServerList("abc")
    servers.leave("a")
    assert servers.in_order() == ["b", "c", "a"]


def test_two_requests_that_fail_at_one_server_leave_it_once() -> None:
    servers = ServerList("abc")
    servers.leave("a")
    servers.leave("a")
    assert servers.first == "b"


def test_a_preferred_server_comes_first_and_the_order_stays() -> None:
    servers = ServerList("abc")
    servers.prefer("c")
    assert servers.in_order() == ["c", "a", "b"]


def test_only_reading_is_repeated_without_being_asked_for() -> None:
    assert repeatable("GET")
    assert not any(map(repeatable, ("POST", "PUT", "PATCH", "DELETE")))


@pytest.mark.parametrize(
    ("tries", "error"),
    [
        (TRIES, TooMany("busy", seconds=1.0)),
        (1, TooMany("busy", seconds=PAUSE_SECONDS_MOST + 1)),
        (1, TooMany("busy")),
        (1, Unavailable("away")),
    ],
)
def test_a_request_is_not_sent_again(tries: int, error: TooMany | Unavailable) -> None:
    assert pause_before(tries, error) is None


def test_the_pause_is_at_least_what_the_server_asks_for() -> None:
    pause = pause_before(1, TooMany("busy", seconds=2.0))
    assert pause is not None
    assert 2.0 <= pause <= 4.0
