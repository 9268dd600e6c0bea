"""The small language of node rules."""

import pytest

from mandor.model.rule import Rule, parse_rule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("zone == a", Rule("zone", "==", ("a",))),
        ("zone==a", Rule("zone", "==", ("a",))),
        ("  zone  !=  'a b' ", Rule("zone", "!=", ("a b",))),
        ("zone in [a, b]", Rule("zone", "in", ("a", "b"))),
        ('zone not in ["a, b"]', Rule("zone", "not in", ('"a', 'b"'))),
        ("zone not  in [a]", Rule("zone", "not in", ("a",))),
        ("gpu exists", Rule("gpu", "exists")),
        ("gpu not exists", Rule("gpu", "not exists")),
        ("cpu.cores >= 4", Rule("cpu.cores", ">=", ("4",))),
        ("kernel.version version >= 5.4", Rule("kernel.version", "version >=", ("5.4",))),
        ("cores integer >= -4", Rule("cores", "integer >=", ("-4",))),
        ("hostname =~ /^db-[0-9]+$/", Rule("hostname", "=~", ("^db-[0-9]+$",))),
        ("example.com/rack == r1", Rule("example.com/rack", "==", ("r1",))),
        ("a == x == y", Rule("a", "==", ("x == y",))),
    ],
)
def test_a_rule_is_a_fact_an_operator_and_values(text: str, rule: Rule) -> None:
    assert parse_rule(text) == rule


@pytest.mark.parametrize(
    "text",
    ["", "zone", "zone = a", "== a", "zone in a", "zone in []", "zone in [ , ]", "zone == ", "zone >= many", "a =~ /(/",
     "n integer > 4.5", "n integer >", "n integer > x",
     "zone ~ a", "zone exists a", "x" * 600 + " exists", "a version >= x", "zone === a]["],
)  # fmt: skip
def test_what_is_no_rule_is_refused_with_a_reason(text: str) -> None:
    with pytest.raises(ValueError, match=r"rule|needs|compares|regular"):
        parse_rule(text)


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        ("zone == a", ["a"], ["b", None, ""]),
        ("zone != a", ["b", None, ""], ["a"]),
        ("zone in [a, b]", ["a", "b"], ["c", None]),
        ("zone not in [a, b]", ["c", None], ["a", "b"]),
        ("zone exists", ["", "a"], [None]),
        ("zone not exists", [None], ["", "a"]),
        ("n > 4", ["5", "4.1", "1e3"], ["4", "3", "x", None, ""]),
        ("n <= 4", ["4", "-1"], ["5", None]),
        ("n > 9007199254740992", ["9007199254740993"], ["9007199254740992", "nan", "inf", "1_000"]),
        (
            "n integer > 4",
            ["5", "+5", "007"],
            ["4", "4.1", "5.5", "1e3", " 5", "5_0", "x", None, "", str(2**63)],
        ),
        ("n integer < -4", ["-5", "-9223372036854775808"], ["-4", "-4.5", "-9223372036854775809"]),
        ("v version >= 5.4", ["5.4", "5.10", "6.1.0-37-amd64", "5.4.1"], ["5.3.9", "4.19", None]),
        ("v version < 1.10", ["1.9", "1.2.3"], ["1.10", "1.11", "2"]),
        ("v version == 1.2", ["1.2", "1-2"], ["1.20", "1.2.0"]),
        ("h =~ /^db/", ["db-1"], ["mydb", None]),
    ],
)
def test_a_rule_answers_for_a_value(text: str, yes: list[str | None], no: list[str | None]) -> None:
    rule = parse_rule(text)
    assert [value for value in yes if not rule.test(value)] == []
    assert [value for value in no if rule.test(value)] == []
