"""Help for people who mistyped, and finding what others plugged in."""

import pytest

from mandor.lib import registry
from mandor.lib.ids import new_uid
from mandor.lib.words import counted, did_you_mean


def test_a_near_word_is_offered() -> None:
    assert did_you_mean("replcias", ["replicas", "restart"]) == "did you mean `replicas`?"


def test_without_a_near_word_everything_is_shown_up_to_a_bound() -> None:
    assert did_you_mean("zzz", ["a", "b"]) == "there is: a, b"
    assert did_you_mean("zzz", []) == "there is none"
    assert did_you_mean("zzz", [f"k{n}" for n in range(50)]).endswith(" …")


def test_one_thing_is_not_called_many() -> None:
    assert (counted(1, "seed"), counted(0, "seed")) == ("1 seed", "0 seeds")
    assert counted(2, "strategy", "strategies") == "2 strategies"


def test_the_engines_of_the_package_are_registered() -> None:
    assert {"process", "fake"} <= set(registry.names("mandor.engines"))


def test_what_is_not_registered_is_an_error_that_shows_what_is() -> None:
    with pytest.raises(LookupError, match="did you mean `process`"):
        registry.load("mandor.engines", "proces")


def test_a_uid_is_never_the_same() -> None:
    assert len({new_uid() for _ in range(1000)}) == 1000
