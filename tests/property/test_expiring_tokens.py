"""How many tokens end soon: kept by changes, as a look at each of them says."""

from __future__ import annotations

from collections import Counter
from typing import get_args

from hypothesis import given
from hypothesis import strategies as some

from mandor.api.auth import make_token
from mandor.api.expiring_tokens import ExpiringTokens
from mandor.model.record import Role, Token, ends_soon
from mandor.store.base import Change

DAY = 86_400.0
days = some.integers(0, 60)


@some.composite
def tokens(draw: some.DrawFn) -> Token:
    made = DAY * draw(days)
    lasts = draw(some.none() | days.map(lambda number: DAY * (number + 1)))
    role = draw(some.sampled_from(get_args(Role)))
    found, _ = make_token(role, "who", name="t", expires_at=made + lasts if lasts is not None else 0.0)
    return found.stamped(version=1, uid="u", created_at=made)


@given(some.lists(some.tuples(some.integers(0, 4), some.none() | tokens()), max_size=30), some.lists(days, min_size=1))
def test_what_is_kept_is_what_a_look_at_each_shows(
    written: list[tuple[int, Token | None]], looked_at: list[int]
) -> None:
    endings, stored = ExpiringTokens(), dict[int, Token]()
    for name, token in written:
        before = stored.pop(name, None)
        if token is not None:
            stored[name] = token
        endings.follow([Change(1, before, token)])
    for day in looked_at:  # a clock may be put back
        now = day * DAY + 1
        plain = Counter(
            each.spec.role
            for each in stored.values()
            if ends_soon(each.spec.role, each.ends_at - now, each.lasts_seconds)
        )
        assert endings.counts(now) == {(role,): plain[role] for role in get_args(Role)}
