"""Rules against the same rules written as plain Python."""

from hypothesis import given
from hypothesis import strategies as st

from mandor.model.rule import parse_rule

FACTS = st.from_regex(r"[a-z][a-z0-9._-]{0,10}[a-z0-9]", fullmatch=True)
WORDS = st.from_regex(r"[a-z0-9._-]{1,8}", fullmatch=True)
VALUES = st.none() | WORDS


@given(FACTS, st.lists(WORDS, min_size=1, max_size=4), VALUES)
def test_membership_agrees_with_python(fact: str, words: list[str], value: str | None) -> None:
    listed = ", ".join(words)
    assert parse_rule(f"{fact} in [{listed}]").test(value) == (value in words)
    assert parse_rule(f"{fact} not in [{listed}]").test(value) == (value not in words)
    assert parse_rule(f"{fact} == {words[0]}").test(value) == (value == words[0])
    assert parse_rule(f"{fact} != {words[0]}").test(value) == (value != words[0])


@given(FACTS, st.integers(-1000, 1000), st.integers(-1000, 1000))
def test_comparison_agrees_with_python(fact: str, left: int, right: int) -> None:
    for op, wanted in (("<", left < right), ("<=", left <= right), (">", left > right), (">=", left >= right)):
        assert parse_rule(f"{fact} {op} {right}").test(str(left)) == wanted


@given(st.lists(st.integers(0, 99), min_size=3, max_size=3), st.lists(st.integers(0, 99), min_size=3, max_size=3))
def test_versions_compare_number_by_number(left: list[int], right: list[int]) -> None:
    one, two = (".".join(map(str, each)) for each in (left, right))
    assert parse_rule(f"v version < {two}").test(one) == (left < right)
    assert parse_rule(f"v version >= {two}").test(one) == (left >= right)


@given(st.text(max_size=60), VALUES)
def test_any_text_is_a_rule_or_a_value_error(text: str, value: str | None) -> None:
    try:
        rule = parse_rule(text)
    except ValueError:
        return
    assert rule.test(value) in {True, False}
