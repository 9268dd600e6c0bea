"""Cron times: next, latest, time zones, and what is refused."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mandor.lib.cron import Cron, zone


def at(text: str, timezone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone(timezone)).timestamp()


def shown(moment: float | None, timezone: str = "UTC") -> str:
    assert moment is not None
    return datetime.fromtimestamp(moment, zone(timezone)).strftime("%Y-%m-%d %H:%M")


def test_the_next_time_is_after_and_the_latest_is_up_to_a_moment() -> None:
    cron = Cron(["*/15 * * * *"])
    noon = at("2026-11-15 12:00")
    assert shown(cron.after(noon)) == "2026-11-15 12:15"
    assert shown(cron.latest(noon)) == "2026-11-15 12:00"
    assert shown(cron.latest(noon - 0.5)) == "2026-11-15 11:45"
    assert shown(cron.latest(noon + 0.5)) == "2026-11-15 12:00"


def test_several_expressions_fire_when_any_does() -> None:
    cron = Cron(["0 6 * * MON", "0 18 * * *"])
    assert shown(cron.after(at("2026-11-15 12:00"))) == "2026-11-15 18:00"
    assert shown(cron.after(at("2026-11-15 18:00"))) == "2026-11-16 06:00"


def test_words_stand_for_the_usual_times() -> None:
    assert shown(Cron(["@daily"]).after(at("2026-11-15 12:00"))) == "2026-11-16 00:00"
    assert shown(Cron(["@monthly"]).after(at("2026-11-15 12:00"))) == "2026-12-01 00:00"


def test_a_time_zone_counts_and_so_do_its_changes() -> None:
    daily = Cron(["30 2 * * *"], "Europe/Paris")
    spring = daily.after(at("2026-03-28 12:00", "Europe/Paris"))
    assert shown(spring, "Europe/Paris") == "2026-03-29 03:00", "02:30 does not exist that day"
    autumn = daily.after(at("2026-10-24 12:00", "Europe/Paris"))
    assert shown(autumn, "Europe/Paris") == "2026-10-25 02:30"
    assert autumn is not None
    assert shown(daily.after(autumn), "Europe/Paris") == "2026-10-26 02:30", "02:30 comes twice that day, the run once"
    assert shown(Cron(["0 7 * * *"], "Asia/Jakarta").after(at("2026-11-15 12:00"))) == "2026-11-16 00:00"


@given(
    st.floats(min_value=0, max_value=4e9), st.sampled_from(["*/7 * * * *", "0 3 * * 1-5", "5 4 1,15 * *", "@hourly"])
)
def test_the_latest_is_never_after_and_the_next_never_before(moment: float, text: str) -> None:
    cron = Cron([text])
    before, after = cron.latest(moment), cron.after(moment)
    assert before is not None
    assert after is not None
    assert before <= moment < after
    assert cron.after(before) == after, "nothing lies in between"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("often", "not a cron expression; write five fields"),
        ("* * * * * *", "five fields"),
        ("61 * * * *", "bad minute"),
        ("*/0 * * * *", "bad minute"),
        ("0 0 30 2 *", "no such day in its months"),
        ("0 0 * * 9", "bad day-of-week"),
        ("0 0 L/2 * L", "bad day-of-week"),
    ],
)
def test_what_is_no_time_is_refused_with_words(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Cron([text])


def test_no_expression_and_no_zone_are_refused() -> None:
    with pytest.raises(ValueError, match="there is no cron expression"):
        Cron([])
    with pytest.raises(ValueError, match="'Mars/Olympus' is not a known time zone"):
        Cron(["@daily"], "Mars/Olympus")
