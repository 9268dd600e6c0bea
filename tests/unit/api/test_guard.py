"""Tokens and the guard of a machine without them, as plain functions; and the limit of writes."""

import pytest

from mandor.api.auth import check_local, hash_secret, make_token, split_token
from mandor.api.endpoint import request_of
from mandor.api.http.rate_limiter import RateLimiter
from mandor.errors import Forbidden, TooMany
from mandor.lib.clock import ManualClock
from mandor.lib.loopback import is_loopback


def test_a_token_splits_into_its_name_and_secret() -> None:
    token, text = make_token("node", "node:n_1", name="node.n_1")
    parts = split_token(text)
    assert parts is not None
    assert parts[0] == "node.n_1"
    assert hash_secret(parts[1]) == token.spec.hash
    assert parts[1] not in repr(token)


@pytest.mark.parametrize("text", ["", "mdr", "mdr_", "mdr__", "mdr_x", "mdr_x_", "xyz_a_b", "mdr__secret"])
def test_what_cannot_be_a_token_is_none(text: str) -> None:
    assert split_token(text) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "LocalHost", "::1", "[::1]"])
def test_names_of_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", ["", "0.0.0.0", "10.0.0.1", "example.org", "127.0.0.1.nip.io", "localhost.evil", "::", "2130706433"]
)
def test_names_of_other_machines(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    "host", ["evil.example@127.0.0.1", "127.0.0.1@evil.example", "[::1", "127.0.0.1:80:90x", "a b"]
)
def test_a_host_that_tries_to_be_two_things_does_not_get_in_by_the_wrong_one(host: str) -> None:
    """What counts is where a browser would have gone for it: after the last `@`."""
    try:
        check_local({b"host": host.encode()})
    except Forbidden:
        return
    assert host.rpartition("@")[2].startswith("127.0.0.1")


def test_the_last_of_two_host_headers_counts() -> None:
    scope = {"method": "GET", "path": "/", "query_string": b""}
    request = request_of(scope | {"headers": [(b"host", b"127.0.0.1"), (b"host", b"evil.example")]})
    with pytest.raises(Forbidden):
        check_local(request.headers)


async def test_a_bucket_empties_and_fills_again() -> None:
    clock = ManualClock()
    limiter = RateLimiter(clock, per_second=2.0, burst=10)
    limiter.spend("user:a", 10)
    with pytest.raises(TooMany) as caught:
        limiter.spend("user:a", 1)
    assert caught.value.facts["seconds"] == 0.5
    limiter.spend("user:b", 10)
    await clock.advance(0.5)
    limiter.spend("user:a", 1)
    with pytest.raises(TooMany):
        limiter.spend("user:a", 1)
    await clock.advance(100)
    limiter.spend("user:a", 10)


def test_the_table_of_buckets_is_bounded() -> None:
    limiter = RateLimiter(ManualClock(), per_second=1.0, burst=10)
    for number in range(25_000):
        limiter.spend(f"user:{number}", 1)
    assert len(limiter._used) <= 20_001
