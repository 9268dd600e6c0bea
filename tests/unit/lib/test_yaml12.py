"""YAML 1.2, bounded, with lines."""

import json
import math

import pytest

from mandor.lib.yaml12 import List, Malformed, Map, dump, load_all


def one(text: str | bytes) -> object:
    (found,) = load_all(text)
    return found.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("true", True),
        ("FALSE", False),
        ("tRue", "tRue"),
        ("010", 10),
        ("0o10", 8),
        ("0x1F", 31),
        ("0b11", "0b11"),
        ("1_000", "1_000"),
        ("-7", -7),
        ("+7", 7),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("1.", 1.0),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("22:22", "22:22"),
        ("2001-01-01", "2001-01-01"),
        ("1.2.3", "1.2.3"),
        ("'10'", "10"),
        ('"true"', "true"),
        ("!!str 10", "10"),
        ("!!int 10", 10),
        ("[~, null, ]", [None, None]),
    ],
)
def test_a_scalar_means_what_version_1_2_shows(text: str, value: object) -> None:
    found = one(text)
    assert found == value
    assert type(found) is type(value) or isinstance(found, List)


def test_not_a_number_is_a_number_of_its_own() -> None:
    assert math.isnan(one("[.nan]")[0])  # type: ignore[index]


def test_every_key_and_item_knows_its_line() -> None:
    found = one("a: 1\nb:\n  - x\n\n  - y: 2\n# note\nc: {d: 1,\n  e: 2}\n")
    assert isinstance(found, Map)
    assert found.lines == {"a": 1, "b": 2, "c": 7}
    assert found["b"].lines == [3, 5]
    assert found["b"][1].lines == {"y": 5}
    assert found["c"].lines == {"d": 7, "e": 8}


def test_the_typed_text_of_a_number_is_kept() -> None:
    found = one("a: 1.10\nb: [0644, x]\nc: '1.10'")
    assert isinstance(found, Map)
    assert found.texts == {"a": "1.10"}
    assert found["b"].texts == {0: "0644"}


def test_keys_are_always_words() -> None:
    assert one("80: a\nno: b\n1.10: c") == {"80": "a", "no": "b", "1.10": "c"}


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3", "{b: 1,\na: 1,\n a: 2}", "'1': a\n\n1: b"])
def test_a_key_that_stands_twice_is_an_error_that_names_its_line(text: str) -> None:
    with pytest.raises(Malformed, match="is defined twice") as caught:
        load_all(text)
    assert caught.value.line == 3


def test_aliases_and_merges_stand_for_what_they_name() -> None:
    found = one("base: &b {x: 1, y: 2}\na: {<<: *b, y: 3}\nl: *b\nm:\n  <<: [{x: 9}, *b]\n")
    assert found == {"base": {"x": 1, "y": 2}, "a": {"x": 1, "y": 3}, "l": {"x": 1, "y": 2}, "m": {"x": 9, "y": 2}}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: *nobody", "is not defined"),
        ("a: &a [*a]", "refers to a value that contains it"),
        ("a: &a {b: *a}", "refers to a value that contains it"),
        ("a: {<<: 5}", "takes a mapping"),
        ("---\na: &a 1\n---\nb: *a", "is not defined"),
        ("a: !!python/object:os.system x", "tag"),
        ("a: !!binary aGk=", "tag"),
        ("a: !mine {}", "tag"),
        ("a: !!int x", "does not match its tag"),
        ("? [a]\n: b", "a key must be text"),
        ("a: [1", "not YAML"),
        ("a: b: c", "not YAML"),
        ("%YAML 9.9\n---\na", "not YAML"),
        ("a: " + "9" * 5000, "5000 digits"),
    ],
)
def test_what_cannot_be_read_is_refused_with_a_reason(text: str, says: str) -> None:
    with pytest.raises(Malformed, match=says) as caught:
        load_all(text)
    assert caught.value.line >= 1


def test_a_tab_in_the_indentation_is_named() -> None:
    with pytest.raises(Malformed) as caught:
        load_all("a:\n\t- b")
    assert caught.value.line == 2
    assert "tabs" in str(caught.value.hint)


def test_a_list_that_is_never_closed_is_reported_where_it_was_opened() -> None:
    with pytest.raises(Malformed) as caught:
        load_all("a: 1\nb: [1,\nc\n")
    assert caught.value.line == 2
    assert "bracket" in str(caught.value.hint)


def test_a_key_in_the_wrong_column_is_reported_with_its_line_and_what_to_look_at() -> None:
    with pytest.raises(Malformed) as caught:
        load_all("services:\n  web:\n    image: a\n   ports: [80]\n")
    assert (caught.value.line, "indentation" in str(caught.value.hint)) == (4, True)


@pytest.mark.parametrize(
    ("data", "line"), [(b"a: 1\nb: \xff\xfe", 2), (b"\x89PNG\r\n\x1a\n\x00", 1), (b"a: 1\n\n\x00", 3), ("\n\ud800", 2)]
)
def test_binary_garbage_is_refused_with_its_line(data: bytes | str, line: int) -> None:
    with pytest.raises(Malformed) as caught:
        load_all(data)
    assert caught.value.line == line


def test_a_bomb_of_aliases_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    with pytest.raises(Malformed, match="aliases") as caught:
        load_all("\n".join(lines))
    assert caught.value.over


def test_a_bomb_of_merges_is_refused() -> None:
    lines = ["a0: &a0 {" + ", ".join(f"k{n}: 1" for n in range(100)) + "}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}], x: *a{n - 1}}}" for n in range(1, 20)]
    with pytest.raises(Malformed) as caught:
        load_all("\n".join(lines))
    assert caught.value.over


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_endless_nesting_is_refused_without_reading_it_all(opening: str) -> None:
    with pytest.raises(Malformed) as caught:
        load_all(opening * 100_000)
    assert caught.value.over


def test_size_is_bounded_in_bytes() -> None:
    load_all("é" * 50, bytes_most=100)
    with pytest.raises(Malformed) as caught:
        load_all("é" * 51, bytes_most=100)
    assert caught.value.over


@pytest.mark.parametrize(
    "value",
    [{"a": [1, 2.5, None, True, "x\n\ty"]}, ['\U0001f600 \u00e9 \\ / " ud83d'], {"a": {"b": {"c": []}}}, "text", 5],
)
@pytest.mark.parametrize("style", [{}, {"indent": "\t"}, {"ensure_ascii": False}, {"indent": 2}])
def test_json_is_a_subset(value: object, style: dict[str, object]) -> None:
    assert one(json.dumps(value, **style)) == value  # type: ignore[arg-type]


def test_documents_are_separate_and_empty_ones_left_out() -> None:
    found = load_all("\ufeff# only a comment\n---\na: 1\n---\n---\nb: 2\n...\n")
    assert [(each.value, each.line) for each in found] == [({"a": 1}, 3), ({"b": 2}, 6)]


def test_what_is_dumped_is_read_back_the_same() -> None:
    tricky = ["no", "010", "0o7", "1e3", "~", "", " x ", "a: b", "#", "x\ny\n", "9" * 200, "true", "22:22", "é", "- a"]
    assert one(dump({"all": tricky, **{word: word for word in tricky if word}})) == {
        "all": tricky,
        **{word: word for word in tricky if word},
    }
